package api

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appplan "tarn.dev/tarn/internal/app/plan"
)

// asNobody returns a writer for any caller.
func asNobody(string) (client.Writer, error) { return empty{}, nil }

// empty is a Kubernetes that authorizes everyone and holds nothing. So each request gets as far
// into the server as it can.
type empty struct{ client.WithWatch }

func nothing(name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: "tarn.dev", Resource: "apps"}, name)
}

// Create implements client.Writer.
func (empty) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	switch o := o.(type) {
	case *authenticationv1.TokenReview:
		o.Status.Authenticated, o.Status.User.Username = true, "anybody"
	case *authorizationv1.SubjectAccessReview:
		o.Status.Allowed = true
	default:
		return nothing(o.GetName())
	}
	return nil
}

// Get implements client.Reader.
func (empty) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return nothing(key.Name)
}

// List implements client.Reader.
func (empty) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

func FuzzWhateverIsSentIsAnsweredAndNothingFails(f *testing.F) {
	for _, path := range []string{"/v1/apps", "/v1/apps/shop", "/v1/apps/shop/deploy", "/v1/apps/shop/plan?new=true", "/v1/apps/shop/scale", "/v1/apps/shop/volumes/data", "/v1/apps/shop/events", "/docs", "/v1/apps/..%2f", "//"} {
		for _, body := range []string{"", `{"id": "shop"}`, `{"replicas": 3}`, `{"new_size_gi": 1e400}`, "[app]\nimage = \"a\"\n", "{", "null", "\xff", `{"id": "a", "id": "b"}`} {
			f.Add("POST", path, "application/toml", body)
			f.Add("PUT", path, "application/json", body)
		}
		f.Add("GET", path, "", "")
		f.Add("DELETE", path, "", "")
	}
	limits := DefaultLimits
	limits.PerSecond, limits.Burst = math.MaxFloat64, math.MaxInt32
	s, err := New(Options{Client: empty{}, As: asNobody, Log: logr.Discard(), Limits: limits})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method, path, kind, body string) {
		where, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(path, "/") || strings.ContainsAny(method, " \t\r\n") || method == "" {
			return // no request has such a first line
		}
		r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body))
		r.Method, r.URL, r.RequestURI = method, where, path
		r.Header.Set("Authorization", "Bearer token")
		r.Header.Set("Content-Type", kind)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code >= http.StatusInternalServerError {
			t.Errorf("%s %s answered %d: %s", method, path, w.Code, w.Body)
		}
		if w.Code < http.StatusBadRequest || method == http.MethodHead {
			return
		}
		var answer struct{ Error *appplan.Error }
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Error == nil || answer.Error.Code == "" || answer.Error.Message == "" {
			t.Errorf("%s %s answered %d and no error: %s", method, path, w.Code, w.Body)
		}
	})
}

func FuzzAWholeNumberIsReadAsItIsWrittenOrRefused(f *testing.F) {
	for _, body := range []string{`{"n": 3}`, `{"n": 3.0}`, `{"n": -1e2}`, `{"n": 3.5}`, `{"n": 1e999}`, `{"n": "3"}`, `{"n": null}`, `{"n": 3, "n": 4}`, `{"N": 3}`, `{"n": 3} {}`, `[3]`, ``} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := whole(body, "n", `{"n": 3}`)
		if err != nil {
			if !strings.HasSuffix(err.Error(), `: send {"n": 3}`) {
				t.Errorf("%q is refused without saying what to send: %v", body, err)
			}
			return
		}
		var want map[string]float64
		if json.Unmarshal(body, &want) != nil {
			return // beyond what a float holds, and so beyond all bounds
		}
		if value, has := want["n"]; !has || len(want) != 1 || math.Abs(value) < 1<<53 && float64(got) != value {
			t.Errorf("%q is read as %d, want %v", body, got, want)
		}
	})
}
