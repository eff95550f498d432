//go:build integration

package api

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"tarn.dev/tarn/internal/api/client"
	appplan "tarn.dev/tarn/internal/app/plan"
	"tarn.dev/tarn/internal/testkit"
)

// through returns the client of a visitor.
func (c *visitor) through() *client.Client {
	c.w.t.Helper()
	calls, err := client.New(client.Options{URL: c.w.url, Token: func() (string, error) { return c.token, nil }})
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
	c := w.tenant("events")
	c.post("/v1/apps", `{"id": "shop"}`).want(http.StatusCreated)
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
	c := w.tenant("ending")
	c.post("/v1/apps", `{"id": "shop"}`).want(http.StatusCreated)
	c.post("/v1/apps/shop/deploy", `{"app": {"image": "shop:1"}}`).want(http.StatusAccepted)
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
	c := w.tenant("lasting")
	c.post("/v1/apps", `{"id": "shop"}`).want(http.StatusCreated)
	c.post("/v1/apps/shop/deploy", `{"app": {"image": "shop:1"}}`).want(http.StatusAccepted)
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
	c, other := w.tenant("streams"), w.tenant("streams-2")
	for _, each := range []*visitor{c, other} {
		each.post("/v1/apps", `{"id": "shop"}`).want(http.StatusCreated)
		each.post("/v1/apps/shop/deploy", `{"app": {"image": "shop:1"}}`).want(http.StatusAccepted)
	}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	for range 2 {
		c.open(ctx, "shop")
	}
	r := c.get("/v1/apps/shop/events")
	r.fails(http.StatusTooManyRequests, appplan.TooMany, "that was too many streams of events: end one, or wait and try again")
	var busy *client.TooMany
	if err := c.through().Events(ctx, "", "shop", func(appplan.Event) error { return nil }); !errors.As(err, &busy) || busy.After <= 0 {
		t.Errorf("the client says %v", err)
	}
	other.open(ctx, "shop")
	leave()
	for w.server.streams.count() > 0 { // the test's own time limit ends this
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
	c := w.tenant("stopping")
	c.post("/v1/apps", `{"id": "shop"}`).want(http.StatusCreated)
	c.post("/v1/apps/shop/deploy", `{"app": {"image": "shop:1"}}`).want(http.StatusAccepted)
	events := c.follow("shop", func(event appplan.Event) {
		if event.Kind == appplan.Progress {
			w.server.stop()
		}
	})
	if got := kinds(events); !slices.Equal(got, []appplan.EventKind{appplan.Progress, appplan.Expired}) {
		t.Errorf("told of %q", got)
	}
}
