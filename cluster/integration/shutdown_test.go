package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// generations is four pods. One serves the others and records when it is asked to end. One keeps
// writing for two seconds after it is asked to end. One ignores the request. In the last, the
// kernel ends all processes when the sandbox's process ends.
const generations = `
apiVersion: v1
kind: Pod
metadata: {name: server}
spec:
  priorityClassName: system-cluster-critical
  containers:
  - name: c
    image: ubuntu:20.04
    command: [bash, -c, "trap 'date +%s.%N > /shelf/asked; exit' TERM; touch /shelf/serves; while :; do sleep 0.1; done"]
    volumeMounts: [{name: shelf, mountPath: /shelf}]
  volumes: [{name: shelf, hostPath: {path: SHELF}}]
---
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  containers:
  - name: c
    image: ubuntu:20.04
    command:
    - bash
    - -c
    - |
      left=-1
      trap 'left=20; echo asked >> /shelf/writer-asked' TERM
      while [ $left -ne 0 ]; do
        date +%s.%N >> /shelf/written
        [ $left -lt 0 ] || left=$((left-1))
        sleep 0.1
      done
      date +%s.%N > /shelf/finished
    volumeMounts: [{name: shelf, mountPath: /shelf}]
  volumes: [{name: shelf, hostPath: {path: SHELF}}]
---
apiVersion: v1
kind: Pod
metadata: {name: deaf}
spec:
  containers:
  - name: c
    image: ubuntu:20.04
    command: [bash, -c, "while :; do date +%s.%N >> /shelf/deaf; sleep 0.1; done"]
    volumeMounts: [{name: shelf, mountPath: /shelf}]
  volumes: [{name: shelf, hostPath: {path: SHELF}}]
---
apiVersion: v1
kind: Pod
metadata: {name: sharing}
spec:
  shareProcessNamespace: true
  containers:
  - name: c
    image: ubuntu:20.04
    command: [bash, -c, "trap 'sleep 2; date +%s.%N > /shelf/shared; exit' TERM; touch /shelf/shares; while :; do sleep 0.1; done"]
    volumeMounts: [{name: shelf, mountPath: /shelf}]
  volumes: [{name: shelf, hostPath: {path: SHELF}}]
`

func TestCriticalPodsOutliveTheOthersWhenAClusterIsShutDown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "order")
	c.run("up", "--stock")
	shelf := t.TempDir()
	c.apply(strings.ReplaceAll(generations, "SHELF", shelf))
	for _, begun := range []string{"serves", "written", "deaf", "shares"} {
		c.eventually("there is "+begun, func() bool {
			_, err := os.Stat(filepath.Join(shelf, begun))
			return err == nil
		})
	}
	c.run("down", "--keep-data")

	lines := func(name string) []string {
		text, err := os.ReadFile(filepath.Join(shelf, name))
		if err != nil {
			t.Errorf("a pod has left no note: %v", err)
			return []string{""}
		}
		return strings.Fields(string(text))
	}
	last := func(name string) string { all := lines(name); return all[len(all)-1] }
	asked := last("asked")
	for what, when := range map[string]string{
		"the last pod that hears of it ended": last("finished"), "one that does not last wrote": last("deaf"), "one of one process namespace ended": last("shared"),
	} {
		if when >= asked {
			t.Errorf("%s at %s, and a critical pod was asked to end at %s, want that later", what, when, asked)
		}
	}
	if times := len(lines("writer-asked")); times != 1 {
		t.Errorf("a pod was asked to end %d times, want once", times)
	}
	c.leavesNothing()
}
