package cli

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// lateHandler passes records on to another handler, and adds what a logger carries when one
// is written, not when the logger is made: each look of a controller makes three loggers, and
// few of them write anything. An Event that ended with its namespace is no error.
type lateHandler struct {
	slog.Handler
	last *addition
}

// addition is what was added to a logger last: attributes, or the name of a group.
type addition struct {
	before *addition
	attrs  []slog.Attr
	group  string
}

// Handle implements slog.Handler.
func (h lateHandler) Handle(ctx context.Context, record slog.Record) error {
	if record.Level >= slog.LevelError && lostWithNamespace(record) {
		if record.Level = everyStep; !h.Enabled(ctx, record.Level) {
			return nil
		}
	}
	return h.last.to(h.Handler).Handle(ctx, record)
}

// WithAttrs implements slog.Handler.
func (h lateHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(attrs) == 0 {
		return h
	}
	return lateHandler{h.Handler, &addition{before: h.last, attrs: attrs}}
}

// WithGroup implements slog.Handler.
func (h lateHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return lateHandler{h.Handler, &addition{before: h.last, group: name}}
}

// to gives the handler with all that was added, the first first.
func (a *addition) to(handler slog.Handler) slog.Handler {
	switch {
	case a == nil:
		return handler
	case a.group != "":
		return a.before.to(handler).WithGroup(a.group)
	}
	return a.before.to(handler).WithAttrs(a.attrs)
}

const (
	// everyStep is the level of --v=1.
	everyStep = slog.Level(-1)
	// eventsLogger is the name of the logger that a manager gives to what sends its Events.
	eventsLogger = "events"
)

// lostWithNamespace says whether a record tells of an Event that the API server rejected because
// its namespace is being deleted, or is gone. What controllers say of the objects in a namespace
// that is being deleted often comes too late, and nobody can read it there.
func lostWithNamespace(record slog.Record) bool {
	events, lost := false, false
	record.Attrs(func(a slog.Attr) bool {
		switch value := a.Value.Any().(type) {
		case string:
			events = events || a.Key == "logger" && value == eventsLogger
		case error:
			lost = lost || apierrors.HasStatusCause(value, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(value)
		}
		return true
	})
	return events && lost
}
