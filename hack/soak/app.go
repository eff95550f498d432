package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// paas describes an app whose pods share a volume: the first writes, and all check.
const paas = `[app]
name = "soak"
image = "busybox:1.36"
command = ["sh", "-ec", """trap exit TERM; cd /data
[ -e sum ] || { head -c 4194304 /dev/urandom > blob; sha256sum blob > new; sync; mv new sum; }
sha256sum -c sum; sleep 1d & wait"""]

[[volumes]]
name = "data"
mountPath = "/data"
size = "1Gi"
accessMode = "rwx"
`

// app deploys an app, scales it, and deletes it with its volume. While nodes fail, each of these may
// have to be repeated.
func (s *soak) app(ctx context.Context, _ event) error {
	for _, step := range []string{"deploy soak --file -", "scale soak 3", "scale soak 1", "delete soak --yes"} {
		say("app %s", step)
		var failed error
		err := wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
			cmd := exec.CommandContext(ctx, "tarn", append([]string{"app", "--namespace", namespace}, strings.Fields(step)...)...)
			cmd.Stdin = strings.NewReader(paas)
			out, err := cmd.CombinedOutput()
			if err != nil {
				failed = fmt.Errorf("%w: %s", err, out)
			}
			return err == nil, nil
		})
		if err != nil {
			return fmt.Errorf("tarn app %s: %w: %w", step, err, failed)
		}
	}
	return nil
}
