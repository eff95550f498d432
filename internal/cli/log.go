package cli

import (
	"context"
	"log/slog"
)

// lateHandler passes records on to another handler, and adds what a logger carries when one
// is written, not when the logger is made: each look of a controller makes three loggers, and
// few of them write anything.
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
