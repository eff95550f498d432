package cli

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// lateHandler passes records on to another handler. It adds a logger's attributes only when a
// record is written: each reconcile makes three loggers, and few of them write anything. It drops
// the error about an Event that was lost with its namespace.
type lateHandler struct {
	slog.Handler
	last *addition
}

// addition is the last thing added to a logger: attributes, or the name of a group.
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

// to returns the handler with all additions applied, the oldest first.
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
	// eventsLogger is the name of the logger of a manager's event sender.
	eventsLogger = "events"
)

// lostWithNamespace says whether a record reports an Event that the API server rejected because its
// namespace is being deleted or is gone. Controllers often report too late on objects in such a
// namespace, and a user could not read the Event there anyway.
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
