package mounts

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"tarn.dev/tarn/internal/node/nodetest"
)

// A server that hangs would block the caller that checks its mount, with all its locks.
func TestWhatIsMountedIsToldWithoutAskingItsServer(t *testing.T) {
	dir := nodetest.Tmpfs(t)
	source, target := mkdir(t, dir, "source"), filepath.Join(dir, "target")
	server, err := nodetest.Serve(source)
	nodetest.Must(t, err)
	file := open(t, source)
	nodetest.Must(t, EnsureBind(Kernel{}, file, target, false))
	server.Hang()
	looked := make(chan bool)
	go func() {
		defer close(looked)
		looked <- Exists(target)
		right, err := Shows(Kernel{}, target, file, false)
		looked <- right && err == nil
		looked <- EnsureBind(Kernel{}, file, target, false) == nil
		other, err := os.Open(dir)
		if err != nil {
			return
		}
		defer func() { _ = other.Close() }()
		right, err = Shows(Kernel{}, target, other, false)
		looked <- !right && err == nil
	}()
	deadline := time.After(time.Minute)
	for _, what := range []string{"exists", "shows the source", "is bound", "shows nothing else"} {
		select {
		case is := <-looked:
			if !is {
				t.Errorf("it is not told that the target %s", what)
			}
		case <-deadline:
			t.Errorf("it is never told that the target %s", what)
			server.End()
			<-looked
			return
		}
	}
	server.End()
}
