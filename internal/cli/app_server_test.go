package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestATokenIsSentNowhereButToTheServer(t *testing.T) {
	t.Setenv(tokenVariable, "secret")
	got := make(chan string, 1)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
		w.WriteHeader(http.StatusNotFound)
	}))
	defer elsewhere.Close()
	server := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	out, said, status := run(t, "", "app", "list", "--namespace", "default", "--server", server.URL)
	if status != 1 || !strings.Contains(said, "307 Temporary Redirect") || out != "" {
		t.Errorf("exit status %d:\n%s%s", status, out, said)
	}
	select {
	case token := <-got:
		t.Errorf("another server was sent %q", token)
	default:
	}
}
