package cli

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

func TestTheTimeIsThatOfTheAPIServerWhereClocksDiffer(t *testing.T) {
	for name, c := range map[string]struct {
		ahead time.Duration
		date  func(time.Time) string
	}{
		"the clocks agree":        {0, func(now time.Time) string { return now.UTC().Format(http.TimeFormat) }},
		"the server is ahead":     {5 * time.Minute, func(now time.Time) string { return now.UTC().Add(5 * time.Minute).Format(http.TimeFormat) }},
		"the server is behind":    {-5 * time.Minute, func(now time.Time) string { return now.UTC().Add(-5 * time.Minute).Format(http.TimeFormat) }},
		"the server does not say": {0, func(time.Time) string { return "" }},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Date"] = []string{c.date(time.Now())}
			if r.URL.Path != "/behind/proxy/version" {
				w.WriteHeader(http.StatusNotFound)
				t.Errorf("%s: asked for %s", name, r.URL.Path)
			}
		}))
		got := time.Until(serverTime(t.Context(), &rest.Config{Host: server.URL + "/behind/proxy"}))
		server.Close()
		if off := (got - c.ahead).Abs(); off > time.Minute {
			t.Errorf("%s: the time is %s ahead, want %s", name, got, c.ahead)
		}
	}
	if got := time.Until(serverTime(t.Context(), &rest.Config{Host: "http://127.0.0.1:1"})); got.Abs() > time.Minute {
		t.Errorf("without a server, the time is %s ahead", got)
	}
}
