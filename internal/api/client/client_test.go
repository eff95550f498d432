package client

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	appplan "tarn.dev/tarn/internal/app/plan"
)

// answering returns a client of a server that answers every call with handler.
func answering(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c, err := New(Options{URL: server.URL + "/below/", Token: func() (string, error) { return "mine", nil }})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestACallIsSentWithItsTokenNamespaceAndKind(t *testing.T) {
	var got string
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		got = strings.Join([]string{r.Method, r.URL.RequestURI(), r.Header.Get("Authorization"), r.Header.Get("Content-Type")}, " ")
		_, _ = w.Write([]byte(`{"data": {}}`))
	})
	ctx := context.Background()
	for want, call := range map[string]func() error{
		"GET /below/v1/apps/shop?namespace=red Bearer mine ":                                  func() error { _, err := c.Get(ctx, "red", "shop"); return err },
		"DELETE /below/v1/apps/a%2Fb Bearer mine ":                                            func() error { _, err := c.Delete(ctx, "", "a/b"); return err },
		"POST /below/v1/apps/shop/plan?namespace=red&new=true Bearer mine application/toml":   func() error { _, err := c.Plan(ctx, "red", "shop", appplan.Source{}, true); return err },
		"POST /below/v1/apps/shop/deploy Bearer mine application/json":                        func() error { _, err := c.Deploy(ctx, "", "shop", appplan.Source{JSON: true}); return err },
		"PUT /below/v1/apps/shop/volumes/data?namespace=red Bearer mine application/json":     func() error { _, err := c.Resize(ctx, "red", "shop", "data", 2); return err },
		"POST /below/v1/apps/shop/scale?namespace=red%26new%3D1 Bearer mine application/json": func() error { _, err := c.Scale(ctx, "red&new=1", "shop", 2); return err },
	} {
		if err := call(); err != nil || got != want {
			t.Errorf("sent %q, want %q (%v)", got, want, err)
		}
	}
}

func TestANameThatLeadsElsewhereIsNotSent(t *testing.T) {
	c := answering(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("sent %s", r.URL) })
	for _, id := range []string{"", ".", ".."} {
		var known *appplan.Error
		if _, err := c.Get(context.Background(), "", id); !errors.As(err, &known) || known.Code != appplan.Invalid {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestAnErrorIsTheServers(t *testing.T) {
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"error": {"code": "too_many_requests", "message": "wait"}}`))
	})
	_, err := c.List(context.Background(), "")
	var known *appplan.Error
	if !errors.As(err, &known) || known.Code != appplan.TooMany || err.Error() != "wait" {
		t.Errorf("List = %v", err)
	}
}

func TestAnAnswerOfSomethingElseIsNoSuccess(t *testing.T) {
	for _, answer := range []struct {
		status int
		body   string
	}{{200, `<html>`}, {200, `{}`}, {200, `{"data": null}`}, {502, `bad gateway`}, {404, `{"error": "no"}`}, {302, ``}} {
		c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(answer.status)
			_, _ = w.Write([]byte(answer.body))
		})
		if _, err := c.Get(context.Background(), "", "shop"); err == nil {
			t.Errorf("%+v passes for an answer", answer)
		}
	}
}

func TestEventsThatBreakOffAreAnError(t *testing.T) {
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("event: progress\ndata: {\"kind\": \"progress\", \"app\": {\"id\": \"shop\"}}\n\n: nothing new\n\n"))
	})
	var seen []string
	err := c.Events(context.Background(), "", "shop", func(event appplan.Event) error { seen = append(seen, event.App.ID); return nil })
	if err == nil || !strings.Contains(err.Error(), "before they were over") || len(seen) != 1 || seen[0] != "shop" {
		t.Errorf("Events = %v, saw %q", err, seen)
	}
	stop := errors.New("enough")
	if err := c.Events(context.Background(), "", "shop", func(appplan.Event) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Events = %v, want what stopped it", err)
	}
}

func TestAnAddressThatIsNoneIsSaid(t *testing.T) {
	for _, url := range []string{"", "tarn.example.com", "ftp://tarn.example.com", "http://", "://"} {
		if _, err := New(Options{URL: url}); err == nil || !strings.Contains(err.Error(), "https://tarn.example.com") {
			t.Errorf("%q: %v", url, err)
		}
	}
}
