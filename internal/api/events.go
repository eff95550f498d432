package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	appplan "tarn.dev/tarn/internal/app/plan"
)

// eventsOperation is the id of the operation that streams.
const eventsOperation = "app-events"

// writeTime is how long a caller may take to read one event.
const writeTime = 10 * time.Second

// streams limits how many streams of events are open.
type streams struct {
	each, all int
	metrics   *metrics

	mu   sync.Mutex
	open map[string]int
	sum  int
}

func newStreams(limits Limits, told *metrics) *streams {
	return &streams{each: limits.Streams, all: limits.AllStreams, metrics: told, open: map[string]int{}}
}

// begin counts a new stream of a caller; end counts it as closed. One group gets at most a quarter
// of all streams, even if its own limit is higher.
func (s *streams) begin(c *caller) (end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	each := min(s.each, max(1, s.all/4))
	counted := map[string]int{c.group(): each}
	if c.home != "" {
		counted[c.user.Username] = share(each)
	}
	for who, most := range counted {
		if s.open[who] >= most || s.sum >= s.all {
			return nil, &tooMany{"streams of events: end one, or wait and try again", time.Second}
		}
	}
	for who := range counted {
		s.open[who]++
	}
	s.sum++
	s.metrics.streams.Set(float64(s.sum))
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for who := range counted {
			if s.open[who]--; s.open[who] == 0 {
				delete(s.open, who)
			}
		}
		s.sum--
		s.metrics.streams.Set(float64(s.sum))
	}), nil
}

func (s *Server) registerEvents(routes huma.API) {
	op := operation(eventsOperation, http.MethodGet, "/v1/apps/{id}/events", "watch", "Follow a deploy or a resize",
		"Server-sent events: progress at each change of the application, then a last one: settled when nothing is under way any more, "+
			"deleted when it is gone, expired when it takes longer than one stream may last. The data of each is an Event. "+
			"A stream that cannot continue, for example because a right is missing, ends with the event error. Its data is the body of a failed call.",
		http.StatusOK, http.StatusNotFound)
	huma.Register(routes, op, func(ctx context.Context, in *OfApp) (*huma.StreamResponse, error) {
		inside := scopeOf(ctx)
		bounded, cancel := context.WithTimeout(ctx, s.limits.Call)
		defer cancel()
		if _, err := s.calls.Get(bounded, inside.namespace, in.ID); err != nil {
			return nil, failed(err)
		}
		end, err := s.streams.begin(inside.caller)
		if err != nil {
			return nil, failed(err)
		}
		return &huma.StreamResponse{Body: func(hctx huma.Context) {
			defer end()
			r, w := humago.Unwrap(hctx)
			s.stream(r.Context(), w, inside, in.ID)
		}}, nil
	})
}

// stream sends the events of an application. It ends after the last event, when the caller
// disconnects or loses the right to see the application, or when the server stops.
func (s *Server) stream(ctx context.Context, w http.ResponseWriter, inside scope, id string) {
	ctx, cancel := context.WithTimeout(ctx, s.limits.StreamLife)
	defer cancel()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // proxies must not buffer the events
	w.WriteHeader(http.StatusOK)
	out := &sender{w: w, control: http.NewResponseController(w)}
	// The deadline for reading the request would otherwise end the stream.
	if err := out.control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return
	}
	events := make(chan appplan.Event)
	ended := make(chan error, 1)
	go func() {
		ended <- s.calls.Events(ctx, inside.namespace, id, func(event appplan.Event) error {
			select {
			case events <- event:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	heartbeat := time.NewTicker(s.limits.Heartbeat)
	defer heartbeat.Stop()
	last := appplan.Event{Kind: appplan.Expired}
	for {
		var err error
		select {
		case event := <-events:
			last.App = event.App
			err = out.event(event)
		case <-heartbeat.C:
			if denied := s.denied(ctx, inside); denied != nil {
				s.endStream(ctx, out, last, denied)
				return
			}
			err = out.send(": nothing new\n\n")
		case err := <-ended:
			s.endStream(ctx, out, last, err)
			return
		case <-s.stopping:
			_ = out.event(last)
			return
		}
		if err != nil {
			return // the caller has disconnected
		}
	}
}

// denied returns why a caller may no longer see the application, nil if it may or if that is
// unknown.
func (s *Server) denied(ctx context.Context, inside scope) error {
	bounded, cancel := context.WithTimeout(ctx, s.limits.Call)
	defer cancel()
	err := inside.still(bounded)
	var answered *appplan.Error
	if !errors.As(err, &answered) || answered.Code == appplan.TooMany {
		return nil
	}
	return err
}

// endStream tells the caller why a stream ends without a last event.
func (s *Server) endStream(ctx context.Context, out *sender, last appplan.Event, err error) {
	switch {
	case err == nil:
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		_ = out.event(last)
	case ctx.Err() == nil:
		note(ctx, func(r *record) { r.err = err })
		var f *failure
		if errors.As(failed(err), &f) {
			text, _ := json.Marshal(f)
			_ = out.send(fmt.Sprintf("event: error\ndata: %s\n\n", text))
		}
	}
}

// sender writes events.
type sender struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func (s *sender) event(event appplan.Event) error {
	text, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("encoding an event: %w", err)
	}
	return s.send(fmt.Sprintf("event: %s\ndata: %s\n\n", event.Kind, text))
}

func (s *sender) send(text string) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("giving an event its time: %w", err)
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return fmt.Errorf("sending an event: %w", err)
	}
	return s.control.Flush()
}
