package procns

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tarn.dev/tarn/internal/node/hangguard"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/nodetest"
)

// long is more than anything takes that does not wait for a hanging server.
const long = 30 * time.Second

// In a container one volume may be mounted below another, so that the path leads through the
// other's server.
func TestAServerThatHangsAboveTheMountKeepsNobody(t *testing.T) {
	dir := nodetest.Tmpfs(t)
	above, again := filepath.Join(dir, "above"), filepath.Join(dir, "again")
	volume(t, again, "new")
	nodetest.Must(t, os.Mkdir(above, 0o755))
	server, err := nodetest.Serve(above)
	nodetest.Must(t, err)
	data := filepath.Join(above, nodetest.Below)
	volume(t, data, "old")
	c := start(t, data, 0)
	old := mounts.At(c.Table, data)
	if len(old) != 1 {
		t.Fatalf("the container has %v", old)
	}
	server.Hang()
	var asks hangguard.Asker
	for range 2 {
		answer := make(chan error, 1)
		go func() { answer <- c.Replace(&asks, 200*time.Millisecond, old[0], open(t, again)) }()
		select {
		case err := <-answer:
			if !errors.Is(err, hangguard.ErrNoAnswer) {
				t.Errorf("got %v, want that there is no answer", err)
			}
		case <-time.After(long):
			server.End()
			t.Fatalf("it keeps who exchanges the mount: %v in the end", <-answer)
		}
	}
	server.GoOn()
	for end := time.Now().Add(long); asks.Overdue(c.wayTo(old[0])) && time.Now().Before(end); {
	}
	if got := c.ask(); got != "old <nil>" {
		t.Errorf("the container finds %q when nobody waits any more, want what was there", got)
	}
	if err := c.Replace(&asks, long, old[0], open(t, again)); err != nil {
		t.Error(err)
	}
	if got := c.ask(); got != "new <nil>" {
		t.Errorf("then the container finds %q, want what is new", got)
	}
	server.End()
}
