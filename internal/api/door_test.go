package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appplan "tarn.dev/tarn/internal/app/plan"
)

// reviewer accepts every token, for some audiences.
type reviewer struct {
	client.WithWatch
	audiences []string
}

// Create implements client.Writer.
func (r reviewer) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	if review, is := o.(*authenticationv1.TokenReview); is {
		review.Status.Authenticated, review.Status.Audiences = true, r.audiences
	}
	return nil
}

func TestATokenIsGoodForItsAudiencesAlone(t *testing.T) {
	for name, c := range map[string]struct {
		wanted, told []string
		good         bool
	}{
		"any will do":                {nil, nil, true},
		"it is for this one":         {[]string{"tarn", "shop"}, []string{"shop"}, true},
		"it is for another":          {[]string{"tarn"}, []string{"https://kubernetes.default.svc"}, false},
		"nobody looked at audiences": {[]string{"tarn"}, nil, false},
	} {
		d := newDoor(reviewer{audiences: c.told}, "default", c.wanted, DefaultLimits)
		_, err := d.who(context.Background(), "token", "192.0.2.7:4711")
		var known *appplan.Error
		if c.good != (err == nil) || err != nil && (!errors.As(err, &known) || known.Code != appplan.Unauthorized) {
			t.Errorf("%s: %v", name, err)
		}
		if hint := "it must be for audience " + strings.Join(c.wanted, " or "); !c.good && !strings.Contains(known.Message, hint) {
			t.Errorf("%s: %q does not say %q", name, known.Message, hint)
		}
	}
}

// silent is an API server that does not answer.
type silent struct{ client.WithWatch }

// Create implements client.Writer.
func (silent) Create(ctx context.Context, _ client.Object, _ ...client.CreateOption) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestACallEndsThoughKubernetesDoesNotSayWhoCalls(t *testing.T) {
	limits := DefaultLimits
	limits.Call = 50 * time.Millisecond
	s, err := New(Options{Client: silent{}, Log: logr.Discard(), Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequest(http.MethodGet, "/v1/apps", nil)
	request.Header.Set("Authorization", "Bearer token")
	answered := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.ServeHTTP(answered, request)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
	if text := answered.Body.String(); answered.Code != http.StatusInternalServerError || !strings.Contains(text, "could not check the token with Kubernetes") || strings.Contains(text, "deadline") {
		t.Errorf("answered %d %s", answered.Code, text)
	}
}

func TestAStrangerHasOneNeighbourhood(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7:4711":            "192.0.2.7",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::/64",
		"[2001:db8:1:2::9]:80":      "2001:db8:1:2::/64",
		"[::ffff:192.0.2.7]:80":     "::ffff:192.0.2.7",
		"[fe80::1%eth0]:80":         "fe80::/64",
		"a pipe":                    "a pipe",
	} {
		if got := neighbourhood(address); got != want {
			t.Errorf("neighbourhood(%s) = %s, want %s", address, got, want)
		}
	}
}

func TestCallsWithoutATokenAreLimitedByTheirAddress(t *testing.T) {
	s := alone(t)
	call := func(path, address, header string) int {
		request := httptest.NewRequest(http.MethodGet, path, nil)
		request.RemoteAddr = address
		request.Header.Set("Authorization", header)
		answered := httptest.NewRecorder()
		s.ServeHTTP(answered, request)
		return answered.Code
	}
	s.door.tokenless = newLimiter(0.01, 4)
	for i, want := range []int{http.StatusUnauthorized, http.StatusUnauthorized, http.StatusOK, http.StatusNotFound, http.StatusTooManyRequests, http.StatusTooManyRequests} {
		path := []string{"/v1/apps", "/v1/apps/shop", "/openapi.json", "/nowhere", "/v1/apps", "/openapi.json"}[i]
		if got := call(path, "192.0.2.7:1", []string{"", "Basic x"}[i%2]); got != want {
			t.Errorf("call %d, of %s: %d, want %d", i, path, got, want)
		}
	}
	if got := call("/openapi.json", "192.0.2.8:1", ""); got != http.StatusOK {
		t.Errorf("another address is answered %d", got)
	}
	if got := call("/openapi.json", "192.0.2.7:1", "Bearer token"); got != http.StatusOK {
		t.Errorf("one with a token is answered %d", got)
	}
}

func TestANamespaceLeavesStreamsToOthersHoweverManyAccountsItMints(t *testing.T) {
	told, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	account := func(namespace, name string) *caller {
		return &caller{user: authenticationv1.UserInfo{Username: "system:serviceaccount:" + namespace + ":" + name}, home: namespace}
	}
	for _, c := range []struct {
		each, all, alone, together int
	}{
		{8, 512, 6, 8},
		{512, 16, 3, 4},
	} {
		s := newStreams(Limits{Streams: c.each, AllStreams: c.all}, told)
		open := func(who ...*caller) (n int) {
			for _, one := range who {
				for range c.all {
					if _, err := s.begin(one); err == nil {
						n++
					}
				}
			}
			return n
		}
		if got := open(account("eager", "deployer")); got != c.alone {
			t.Errorf("%+v: one account has %d", c, got)
		}
		minted := make([]*caller, 100)
		for i := range minted {
			minted[i] = account("eager", fmt.Sprint(i))
		}
		if got := open(minted...) + c.alone; got != c.together {
			t.Errorf("%+v: a namespace has %d", c, got)
		}
		user := &caller{user: authenticationv1.UserInfo{Username: "jane"}}
		if got := open(user); got != c.together {
			t.Errorf("%+v: another user has %d", c, got)
		}
	}
}
