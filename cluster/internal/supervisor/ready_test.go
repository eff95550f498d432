package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tarn.dev/tarn/cluster/internal/layout"
)

func TestAComponentThatNeverGetsReadyIsToldByItsLastAnswerAndItsLog(t *testing.T) {
	l, err := layout.New("x", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &Supervisor{config: Config{Layout: l}, units: map[string]*unit{"c": supervise(t, "exec sleep 60")}}
	log := l.Log("c")
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, []byte("starting\nwaiting for the moon\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	asked := 0
	err = s.until(t.Context(), 200*time.Millisecond, "c", func(ctx context.Context) error {
		if asked++; asked == 1 {
			return errors.New("503 [-]moon failed")
		}
		<-ctx.Done()
		return ctx.Err()
	})
	for _, want := range []string{"c is not ready after 200ms", "503 [-]moon failed", "waiting for the moon", "tarn-cluster logs c --name x"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}
