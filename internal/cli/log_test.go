package cli

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

func TestAnEventThatEndedWithItsNamespaceIsNoError(t *testing.T) {
	ending := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "e", errors.New("because it is being terminated"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "shop")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "e", errors.New("no rights"))
	for _, c := range []struct {
		name, logger string
		err          error
		level        slog.Level
		want         string // in the line; empty for no line
	}{
		{"a namespace that is being deleted", "events", ending, slog.LevelInfo, ""},
		{"a namespace that is gone", "events", gone, slog.LevelInfo, ""},
		{"a namespace that is being deleted, with --v=1", "events", ending, everyStep, `"level":"DEBUG+3","msg":"Server rejected event"`},
		{"rights that are missing", "events", forbidden, slog.LevelInfo, `"level":"ERROR"`},
		{"another logger", "controller", ending, slog.LevelInfo, `"level":"ERROR"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			handler := lateHandler{Handler: slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: c.level})}
			logr.FromSlogHandler(handler).WithName(c.logger).Error(c.err, "Server rejected event")
			if got := out.String(); c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// counted counts how often its value is read.
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
