//go:build integration

package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
	"tarn.dev/tarn/internal/testkit"
)

// everyCall makes every call about an application, in a namespace.
func everyCall(c *visitor, namespace, id string) []*reply {
	path, in := "/v1/apps/"+id, "?namespace="+namespace
	return []*reply{
		c.get(path + in), c.delete(path + in), c.do(http.MethodPost, path+"/deploy"+in, "application/toml", shop),
		c.do(http.MethodPost, path+"/plan"+in, "application/toml", shop), c.post(path+"/scale"+in, `{"replicas": 0}`),
		c.get(path + "/volumes" + in), c.put(path+"/volumes/data"+in, `{"new_size_gi": 20}`), c.get(path + "/events" + in),
	}
}

func TestATenantCannotTellWhatAnotherHas(t *testing.T) {
	w := newWorld(t)
	w.class("grows", true)
	red, blue := w.deployed("red", shop), w.tenant("blue")
	w.claim("red", "shop", "data", 10, corev1.ReadWriteOnce, "grows")
	before := w.app("red", "shop").ResourceVersion

	there, nowhere := everyCall(blue, red.namespace, "shop"), everyCall(blue, red.namespace, "none")
	for i := range there {
		there[i].fails(http.StatusNotFound, appplan.NotFound, "app 'shop' not found")
		// Except for the name, an existing and a missing application must get the same answer.
		if a, b := string(there[i].body), strings.ReplaceAll(string(nowhere[i].body), "'none'", "'shop'"); a != b || there[i].status != nowhere[i].status {
			t.Errorf("%s answered %s, and for what is not there %s", there[i].call, a, b)
		}
	}
	if now := w.app("red", "shop").ResourceVersion; now != before {
		t.Error("another tenant changed the application")
	}
	for _, namespace := range []string{red.namespace, "no-such-namespace"} {
		refusal := "system:serviceaccount:" + blue.namespace + ":deployer may not %s apps.tarn.dev in namespace '" + namespace + "'"
		blue.get("/v1/apps?namespace="+namespace).fails(http.StatusForbidden, appplan.Forbidden, fmt.Sprintf(refusal, "list"))
		blue.post("/v1/apps?namespace="+namespace, `{"id": "shop"}`).fails(http.StatusForbidden, appplan.Forbidden, fmt.Sprintf(refusal, "create"))
	}
	blue.post("/v1/apps", `{"id": "shop"}`).want(http.StatusCreated) // the same id, in a namespace of its own
	if apps := data[[]appplan.App](blue.get("/v1/apps").want(http.StatusOK)); len(apps) != 1 || apps[0].Namespace != blue.namespace || apps[0].Image != "" {
		t.Errorf("a tenant sees %+v", apps)
	}
}

func TestOneWhoMaySeeButNotChangeHearsThat(t *testing.T) {
	w := newWorld(t)
	w.deployed("green", shop)
	w.settle("green", "shop") // so that its events are over at once
	viewer := w.member("green", "viewer", "tarn-apps-view")
	var got []string
	for _, r := range everyCall(viewer, viewer.namespace, "shop") {
		method, _, _ := strings.Cut(r.call, " ")
		got = append(got, fmt.Sprintf("%s %d", method, r.status))
	}
	if want := []string{"GET 200", "DELETE 403", "POST 403", "POST 202", "POST 403", "GET 200", "PUT 403", "GET 200"}; !slices.Equal(got, want) {
		t.Errorf("one who may see is answered %q, want %q", got, want)
	}
	viewer.delete("/v1/apps/shop").fails(http.StatusForbidden, appplan.Forbidden, "system:serviceaccount:"+viewer.namespace+":viewer may not delete app 'shop' in namespace '"+viewer.namespace+"'")
	viewer.get("/v1/apps").want(http.StatusOK)
	viewer.post("/v1/apps", `{"id": "cart"}`).want(http.StatusForbidden)
	stranger := w.member("green", "stranger", "")
	stranger.get("/v1/apps/shop").fails(http.StatusNotFound, appplan.NotFound, "app 'shop' not found")
	stranger.get("/v1/apps").want(http.StatusForbidden)
}

func TestOneWhoIsUnknownIsTurnedAway(t *testing.T) {
	w := newWorld(t)
	grey := w.created("grey")
	for token, message := range map[string]string{
		"":                          "send a Kubernetes token: Authorization: Bearer TOKEN",
		"made-up":                   "the token is not valid or has expired: get a new one, for example with `kubectl create token ACCOUNT`",
		"two words":                 "the header Authorization has no token: write it as Bearer TOKEN",
		strings.Repeat("long", 8e3): "",
	} {
		c := &visitor{w: w, namespace: grey.namespace, token: token}
		for _, r := range everyCall(c, grey.namespace, "shop") {
			if message == "" { // more header than is read
				r.want(http.StatusRequestHeaderFieldsTooLarge)
				continue
			}
			r.fails(http.StatusUnauthorized, appplan.Unauthorized, message)
			if r.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s does not say how to show who one is", r.call)
			}
		}
	}
	request, err := http.NewRequest(http.MethodGet, w.url+"/v1/apps", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth("admin", "admin")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		t.Errorf("a password is answered %s", response.Status)
	}
}

func TestNamesAreLookedAtBeforeKubernetesIsAsked(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Client = nil }) // asking would be the end of it
	c := &visitor{w: w, token: "anything"}
	for path, message := range map[string]string{
		"/v1/apps/Shop":                       `app id "Shop" is not a valid name: write lower-case letters, digits and -, beginning and ending with a letter or digit, at most 51`,
		"/v1/apps/a%2Fb":                      `app id "a/b" is not a valid name: write lower-case letters, digits and -, beginning and ending with a letter or digit, at most 51`,
		"/v1/apps/" + strings.Repeat("s", 52): `app id "` + strings.Repeat("s", 52) + `" is not a valid name: write lower-case letters, digits and -, beginning and ending with a letter or digit, at most 51`,
		"/v1/apps/shop?namespace=a.b":         `namespace "a.b" is not a valid name: write lower-case letters, digits and -, at most 63`,
		"/v1/apps?namespace=..%2F..":          `namespace "../.." is not a valid name: write lower-case letters, digits and -, at most 63`,
	} {
		c.get(path).fails(http.StatusUnprocessableEntity, appplan.Invalid, message)
	}
	c.put("/v1/apps/shop/volumes/da%20ta", `{"new_size_gi": 20}`).fails(http.StatusUnprocessableEntity, appplan.Invalid,
		`volume name "da ta" is not a valid name: write lower-case letters, digits and -, beginning and ending with a letter or digit`)
}

func TestACallWithoutANamespaceIsAboutTheCallersOwn(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Namespace = "elsewhere" })
	c := w.tenant("home")
	if got := data[appplan.App](c.post("/v1/apps", `{"id": "shop"}`).want(http.StatusCreated)); got.Namespace != c.namespace {
		t.Errorf("the application is in %s", got.Namespace)
	}
}

func TestOneWhoCallsTooOftenWaits(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limits = DefaultLimits; o.Limits.PerSecond, o.Limits.Burst = 0.01, 3 })
	eager, calm := w.tenant("eager"), w.tenant("calm")
	for range 3 {
		eager.get("/v1/apps").want(http.StatusOK)
	}
	r := eager.get("/v1/apps")
	r.fails(http.StatusTooManyRequests, appplan.TooMany, "that was too many calls: wait and try again")
	if after := r.header.Get("Retry-After"); after == "" || after == "0" {
		t.Errorf("Retry-After is %q", after)
	}
	calm.get("/v1/apps").want(http.StatusOK)
}

func TestANamespaceThatIsFullTakesNoMoreApps(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limits.Apps = 3 })
	c := w.tenant("full")
	for _, id := range []string{"a", "b", "c"} {
		c.post("/v1/apps", `{"id": "`+id+`"}`).want(http.StatusCreated)
	}
	c.post("/v1/apps", `{"id": "d"}`).fails(http.StatusUnprocessableEntity, appplan.Invalid,
		"namespace '"+c.namespace+"' has 3 apps, which is the limit: delete one, or ask the administrator to raise --apps-per-namespace of tarn api")
	w.tenant("roomy").post("/v1/apps", `{"id": "d"}`).want(http.StatusCreated)
}

func TestAnAppIsBoundedAndAListLeavesOutWhatIsLarge(t *testing.T) {
	w := newWorld(t)
	c := w.tenant("bulky")
	half := strings.Repeat("x", 1<<17)
	for i := range 120 { // more than a page
		w.create(&tarnv1.App{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: fmt.Sprintf("app-%03d", i)}, Spec: tarnv1.AppSpec{Args: []string{"large"}}})
	}
	for i, app := range data[[]appplan.App](c.get("/v1/apps").want(http.StatusOK)) {
		if app.ID != fmt.Sprintf("app-%03d", i) || app.Args != nil {
			t.Errorf("%d is %s, with args %q", i, app.ID, app.Args)
		}
	}
	for name, spec := range map[string]tarnv1.AppSpec{
		"together": {Command: []string{half}, Env: map[string]string{"A": half}},
		"of one":   {Args: []string{half + half + "x"}},
		"items":    {Args: make([]string, 2001)},
	} {
		app := &tarnv1.App{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "large"}, Spec: spec}
		if err := w.admin.Create(t.Context(), app); !apierrors.IsInvalid(err) {
			t.Errorf("too much %s: %v", name, err)
		}
	}
}

func TestOneWhoMintsAccountsCallsNoMoreOften(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limits = DefaultLimits; o.Limits.PerSecond, o.Limits.Burst = 0.01, 8 })
	eager, calm := w.tenant("minting"), w.tenant("frugal")
	for range 6 {
		eager.get("/v1/apps").want(http.StatusOK)
	}
	eager.get("/v1/apps").want(http.StatusTooManyRequests) // the rest is for others of its namespace
	for i := range 4 {
		want := http.StatusOK
		if i >= 2 {
			want = http.StatusTooManyRequests
		}
		w.member("minting", fmt.Sprintf("minted-%d", i), "tarn-apps-view").get("/v1/apps").want(want)
	}
	calm.get("/v1/apps").want(http.StatusOK)
}

func TestAStolenServerMayWriteNoApp(t *testing.T) {
	w := newWorld(t)
	c := w.deployed("owner", shop)
	mine := rest.AnonymousClientConfig(testkit.APIServer(t))
	mine.BearerToken = w.token("tarn-system", "tarn-api")
	stolen, app := testkit.Client(t, mine), w.app("owner", "shop")
	for _, namespace := range []string{c.namespace, "kube-system"} {
		mined := &tarnv1.App{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "miner"}, Spec: tarnv1.AppSpec{Image: "miner"}}
		if err := stolen.Create(t.Context(), mined); !apierrors.IsForbidden(err) {
			t.Errorf("creating an App in %s: %v", namespace, err)
		}
	}
	if err := stolen.Update(t.Context(), app); !apierrors.IsForbidden(err) {
		t.Errorf("writing the App: %v", err)
	}
	if err := stolen.Delete(t.Context(), app); !apierrors.IsForbidden(err) {
		t.Errorf("deleting the App: %v", err)
	}
	c.delete("/v1/apps/shop").want(http.StatusOK)
}

func TestAStreamEndsWhenItsCallerMaySeeTheAppNoMore(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limits = DefaultLimits; o.Limits.Heartbeat = 20 * time.Millisecond })
	c := w.deployed("revoked", small)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	defer cancel()
	err := c.through().Events(ctx, "", "shop", func(appplan.Event) error {
		return w.admin.Delete(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "deployer"}})
	})
	var answered *appplan.Error
	if !errors.As(err, &answered) || answered.Code != appplan.NotFound || answered.Message != "app 'shop' not found" {
		t.Errorf("the stream ended with %v, want that there is no such app", err)
	}
}

func TestWhoeverKeepsStrangersBusyKeepsOutNobodyElse(t *testing.T) {
	w := newWorld(t)
	c := w.tenant("regular")
	c.get("/v1/apps").want(http.StatusOK)
	w.server.door.addresses = newLimiter(0, 0)                    // as many made-up tokens leave it
	w.server.door.reviewed.Remove(sha256.Sum256([]byte(c.token))) // as time does
	c.get("/v1/apps").want(http.StatusOK)
	stranger := &visitor{w: w, namespace: c.namespace, token: "made-up"}
	stranger.get("/v1/apps").want(http.StatusTooManyRequests)
}
