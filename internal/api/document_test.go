package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

// described is the document that a server serves.
type described struct {
	OpenAPI    string                                      `json:"openapi"`
	Paths      map[string]map[string]describedCall         `json:"paths"`
	Components struct{ Schemas map[string]map[string]any } `json:"components"`
}

type describedCall struct {
	OperationID string `json:"operationId"`
	Parameters  []describedParameter
	RequestBody *struct {
		Required bool
		Content  map[string]any
	}
	Responses map[string]struct {
		Content map[string]struct{ Schema map[string]any }
	}
}

type describedParameter struct {
	Name, In string
	Required bool
}

// readDocument reads the document of a server.
func readDocument(t *testing.T, s *Server) described {
	t.Helper()
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	if answer.Code != http.StatusOK || answer.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("/openapi.json answered %d %s", answer.Code, answer.Header().Get("Content-Type"))
	}
	var d described
	if err := json.Unmarshal(answer.Body.Bytes(), &d); err != nil {
		t.Fatalf("/openapi.json is no JSON: %v", err)
	}
	return d
}

// alone returns a server that cannot reach Kubernetes, for tests that need none.
func alone(t *testing.T) *Server {
	t.Helper()
	s, err := New(Options{Log: logr.Discard(), Version: "v0.0.0-test"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheDocumentHasEveryCallWithItsNamesAndAnswers(t *testing.T) {
	d := readDocument(t, alone(t))
	if d.OpenAPI != "3.1.0" {
		t.Errorf("the document is of OpenAPI %s", d.OpenAPI)
	}
	var got []string
	for path, calls := range d.Paths {
		for method, call := range calls {
			answers := slices.Sorted(maps.Keys(call.Responses))
			got = append(got, fmt.Sprintf("%s %s %s", strings.ToUpper(method), path, strings.Join(answers, " ")))
			for _, name := range regexp.MustCompile(`\{([a-z]+)\}`).FindAllStringSubmatch(path, -1) {
				if !slices.ContainsFunc(call.Parameters, func(p describedParameter) bool { return p.Name == name[1] && p.In == "path" && p.Required }) {
					t.Errorf("%s %s: parameter %s is not described", method, path, name[1])
				}
			}
			if !slices.ContainsFunc(call.Parameters, func(p describedParameter) bool { return p.Name == "namespace" && p.In == "query" }) {
				t.Errorf("%s %s: the namespace is not described", method, path)
			}
			if takes := method == "post" || method == "put"; takes != (call.RequestBody != nil && call.RequestBody.Required && len(call.RequestBody.Content) > 0) {
				t.Errorf("%s %s: its body is %+v", method, path, call.RequestBody)
			}
		}
	}
	slices.Sort(got)
	want := []string{
		"DELETE /v1/apps/{id} 200 401 403 404 409 422 429 500",
		"GET /v1/apps 200 401 403 422 429 500",
		"GET /v1/apps/{id} 200 401 403 404 422 429 500",
		"GET /v1/apps/{id}/events 200 401 403 404 422 429 500",
		"GET /v1/apps/{id}/volumes 200 401 403 404 422 429 500",
		"POST /v1/apps 201 401 403 404 408 409 413 422 429 500",
		"POST /v1/apps/{id}/deploy 202 401 403 404 408 409 413 415 422 429 500",
		"POST /v1/apps/{id}/plan 202 401 403 404 408 409 413 415 422 429 500",
		"POST /v1/apps/{id}/scale 200 401 403 404 408 409 413 422 429 500",
		"PUT /v1/apps/{id}/volumes/{name} 200 401 403 404 408 409 413 422 429 500",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the document has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestTheDocumentRefersToWhatItHas(t *testing.T) {
	answer := httptest.NewRecorder()
	alone(t).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	d := readDocument(t, alone(t))
	refs := regexp.MustCompile(`"\$ref": "([^"]*)"`).FindAllStringSubmatch(answer.Body.String(), -1)
	if len(refs) < 20 {
		t.Fatalf("the document has %d references, want many", len(refs))
	}
	for _, ref := range refs {
		if name, here := strings.CutPrefix(ref[1], "#/components/schemas/"); !here || d.Components.Schemas[name] == nil {
			t.Errorf("%s is nowhere", ref[1])
		}
	}
}

func TestThePageShowsEveryCallAndNeedsNothingFromElsewhere(t *testing.T) {
	s := alone(t)
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/docs", nil))
	page := answer.Body.String()
	if answer.Code != http.StatusOK || !strings.HasPrefix(answer.Header().Get("Content-Type"), "text/html") {
		t.Fatalf("/docs answered %d %s", answer.Code, answer.Header().Get("Content-Type"))
	}
	for path, calls := range readDocument(t, s).Paths {
		for _, call := range calls {
			if !strings.Contains(page, `id="`+call.OperationID+`"`) || !strings.Contains(page, path) {
				t.Errorf("the page does not show %s", path)
			}
		}
	}
	if found := regexp.MustCompile(`(src|href)="[^#/]|https?://[^r]|<script|@import|url\(`).FindString(page); found != "" {
		t.Errorf("the page reaches elsewhere: %s", found)
	}
}

func TestWhatHasNoPathIsAnsweredAsAllFailuresAre(t *testing.T) {
	s := alone(t)
	for call, want := range map[string]string{
		"GET /":                      `404 {"error":{"code":"not_found","message":"there is no such path: see /docs"}}`,
		"PATCH /v1/apps":             `405 {"error":{"code":"method_not_allowed","message":"PATCH is not for this path: it takes GET, HEAD, POST"}}`,
		"DELETE /v1/apps/shop/scale": `405 {"error":{"code":"method_not_allowed","message":"DELETE is not for this path: it takes POST"}}`,
		"GET /v1/apps":               `401 {"error":{"code":"unauthorized","message":"send a Kubernetes token: Authorization: Bearer TOKEN"}}`,
	} {
		method, path, _ := strings.Cut(call, " ")
		answer := httptest.NewRecorder()
		s.ServeHTTP(answer, httptest.NewRequest(method, path, nil))
		if got := fmt.Sprintf("%d %s", answer.Code, strings.TrimSpace(answer.Body.String())); got != want {
			t.Errorf("%s answered %s, want %s", call, got, want)
		}
		if answer.Code == http.StatusUnauthorized && answer.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%s does not say how to show who one is", call)
		}
	}
}
