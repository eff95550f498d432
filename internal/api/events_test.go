//go:build integration

package api

import (
	"bufio"
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apiclient "tarn.dev/tarn/internal/api/client"
	appplan "tarn.dev/tarn/internal/app/plan"
	appservice "tarn.dev/tarn/internal/app/service"
	"tarn.dev/tarn/internal/testkit"
)

// through returns the client of a visitor.
func (c *visitor) through() *apiclient.Client {
	c.w.t.Helper()
	calls, err := apiclient.New(apiclient.Options{URL: c.w.url, Token: func() (string, error) { return c.token, nil }})
	if err != nil {
		c.w.t.Fatal(err)
	}
	return calls
}

// follow collects the events of an application. It calls act with each.
func (c *visitor) follow(id string, act func(appplan.Event)) []appplan.Event {
	c.w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	defer cancel()
	var events []appplan.Event
	err := c.through().Events(ctx, "", id, func(event appplan.Event) error {
		events = append(events, event)
		act(event)
		return nil
	})
	if err != nil {
		c.w.t.Fatalf("following '%s' after %+v: %v", id, events, err)
	}
	return events
}

func kinds(events []appplan.Event) []appplan.EventKind {
	var all []appplan.EventKind
	for _, event := range events {
		all = append(all, event.Kind)
	}
	return all
}

func TestEventsTellOfADeployUntilItIsSettled(t *testing.T) {
	w := newWorld(t)
	c := w.created("events")
	c.deploy("shop", `{"app": {"image": "shop:1"}}`).want(http.StatusUnprocessableEntity)
	c.post("/v1/apps/shop/deploy", `{"app": {"image": "shop:1"}}`).want(http.StatusAccepted)
	events := c.follow("shop", func(event appplan.Event) {
		if event.Kind == appplan.Progress {
			w.settle("events", "shop")
		}
	})
	if got := kinds(events); !slices.Equal(got, []appplan.EventKind{appplan.Progress, appplan.Settled}) {
		t.Errorf("told of %q", got)
	}
	if first, last := events[0].App, events[len(events)-1].App; first.Status != appplan.Deploying || last.Status != appplan.Ready {
		t.Errorf("told of %s, then %s", first.Status, last.Status)
	}
	if got := kinds(c.follow("shop", func(appplan.Event) {})); !slices.Equal(got, []appplan.EventKind{appplan.Settled}) {
		t.Errorf("where nothing is under way, told of %q", got)
	}
}

func TestEventsEndWhenTheAppIsGone(t *testing.T) {
	w := newWorld(t)
	c := w.deployed("ending", small)
	events := c.follow("shop", func(event appplan.Event) {
		if event.Kind == appplan.Progress {
			c.delete("/v1/apps/shop").want(http.StatusOK)
			c.post("/v1/apps", `{"id": "shop"}`).want(http.StatusCreated) // another of its id is not it
		}
	})
	if got := kinds(events); !slices.Equal(got, []appplan.EventKind{appplan.Progress, appplan.Deleted}) {
		t.Errorf("told of %q", got)
	}
}

func TestAStreamThatLastsTooLongSaysSo(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Limits = DefaultLimits
		o.Limits.StreamLife, o.Limits.Heartbeat = 2*time.Second, 20*time.Millisecond
	})
	c := w.deployed("lasting", small)
	r := c.get("/v1/apps/shop/events").want(http.StatusOK)
	text := string(r.body)
	if !strings.Contains(text, ": nothing new\n\n") || strings.Count(text, "event: expired\ndata: {") != 1 || strings.Contains(text[strings.Index(text, "event: expired"):], "event: progress") {
		t.Errorf("streamed %s", text)
	}
	if got := r.header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("streamed as %s", got)
	}
}

func TestStreamsAreBoundedAndFreedWhenTheirCallerLeaves(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Limits = DefaultLimits
		o.Limits.Streams, o.Limits.Heartbeat = 2, 20*time.Millisecond
	})
	c, other := w.deployed("streams", small), w.deployed("streams-2", small)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	for range 2 {
		c.open(ctx, "shop")
	}
	r := c.get("/v1/apps/shop/events")
	r.fails(http.StatusTooManyRequests, appplan.TooMany, "that was too many streams of events: end one, or wait and try again")
	if after := r.header.Get("Retry-After"); after != "1" {
		t.Errorf("Retry-After is %q", after)
	}
	other.open(ctx, "shop")
	leave()
	streams := func() int {
		w.server.streams.mu.Lock()
		defer w.server.streams.mu.Unlock()
		return w.server.streams.sum
	}
	for streams() > 0 { // the test's own time limit ends this
		time.Sleep(5 * time.Millisecond)
	}
	again, end := context.WithCancel(context.Background())
	defer end()
	c.open(again, "shop")
}

// open opens a stream and reads its first event; the stream closes when ctx ends.
func (c *visitor) open(ctx context.Context, id string) {
	c.w.t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.w.url+"/v1/apps/"+id+"/events", nil)
	if err != nil {
		c.w.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		c.w.t.Fatal(err)
	}
	context.AfterFunc(ctx, func() { _ = response.Body.Close() })
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() && lines.Text() != "event: progress" { // signs of life may come before
	}
	if lines.Text() != "event: progress" || response.StatusCode != http.StatusOK {
		c.w.t.Fatalf("a stream began with %s, %v", response.Status, lines.Err())
	}
}

func TestAServerThatEndsEndsItsStreams(t *testing.T) {
	w := newWorld(t)
	c := w.deployed("stopping", small)
	events := c.follow("shop", func(event appplan.Event) {
		if event.Kind == appplan.Progress {
			w.server.stop()
		}
	})
	if got := kinds(events); !slices.Equal(got, []appplan.EventKind{appplan.Progress, appplan.Expired}) {
		t.Errorf("told of %q", got)
	}
}

func TestAWatchThatBreaksOffIsNotBegunWithoutEnd(t *testing.T) {
	w := newWorld(t)
	c := w.deployed("breaking", small)
	begun := 0
	calls := &appservice.Calls{Client: interceptor.NewClient(w.admin, interceptor.Funcs{
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			begun++
			return watch.NewEmptyWatch(), nil
		},
	})}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	last := appplan.Progress
	if err := calls.Events(ctx, c.namespace, "shop", func(event appplan.Event) error { last = event.Kind; return nil }); err != nil || last != appplan.Expired {
		t.Errorf("the events ended with %s, %v", last, err)
	}
	if begun > 26 { // one at once, and then not before a fifth of a second is over
		t.Errorf("%d watches were begun within five seconds", begun)
	}
}
