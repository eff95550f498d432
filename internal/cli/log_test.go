package cli

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/go-logr/logr"
)

func TestALineIsTheSameWhateverIsAddedLate(t *testing.T) {
	write := func(wrap func(slog.Handler) slog.Handler) string {
		var out bytes.Buffer
		untimed := func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
		handler := wrap(slog.NewJSONHandler(&out, &slog.HandlerOptions{ReplaceAttr: untimed}))
		log := slog.New(handler).With("controller", "bind").With()
		one, other := log.With("name", "a"), log.WithGroup("").WithGroup("of").With("name", "b")
		one.Info("first", "x", 1)
		other.WithGroup("deeper").Warn("second", "y", 2)
		other.With("z", 3).Error("third")
		log.Debug("never")
		logr.FromSlogHandler(handler).WithName("mgr").WithValues("n", 1).Error(errors.New("no"), "fourth", "k", "v")
		return out.String()
	}
	want := write(func(h slog.Handler) slog.Handler { return h })
	if got := write(func(h slog.Handler) slog.Handler { return lateHandler{Handler: h} }); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// counted counts how often it is asked for its value.
type counted struct{ asked *int }

func (c counted) LogValue() slog.Value { *c.asked++; return slog.StringValue("value") }

func TestWhatIsAddedIsReadWhenALineIsWritten(t *testing.T) {
	var out bytes.Buffer
	asked := 0
	log := slog.New(lateHandler{Handler: slog.NewJSONHandler(&out, nil)}).With("it", counted{&asked})
	log.Debug("not written")
	if asked != 0 {
		t.Errorf("asked %d times before a line is written", asked)
	}
	log.Info("written")
	if asked != 1 || !bytes.Contains(out.Bytes(), []byte(`"it":"value"`)) {
		t.Errorf("asked %d times for %s", asked, out.String())
	}
}
