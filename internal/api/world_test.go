//go:build integration

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is a server in front of a real API server, with the rights that it has in production. No
// controller runs: the tests create the claims.
type world struct {
	t      *testing.T
	admin  client.WithWatch
	server *Server
	url    string
	// document is the document that the server serves.
	document described
	// nth makes the namespaces of this world unique.
	nth int32
}

var worlds atomic.Int32

// in returns a namespace of this world.
func (w *world) in(namespace string) string { return fmt.Sprintf("%s-%d", namespace, w.nth) }

func newWorld(t *testing.T, changes ...func(*Options)) *world {
	t.Helper()
	config := testkit.APIServer(t)
	w := &world{t: t, admin: testkit.Client(t, config), nth: worlds.Add(1)}
	mine := rest.AnonymousClientConfig(config)
	mine.BearerToken, mine.QPS, mine.Burst = w.token("tarn-system", "tarn-api"), -1, -1
	options := Options{Client: testkit.Client(t, mine), Namespace: "default", Version: "v0.0.0-test", Log: logr.Discard(), Limits: DefaultLimits}
	options.As = func(token string) (client.Writer, error) {
		own := rest.CopyConfig(mine)
		own.BearerToken = token
		return client.New(own, client.Options{Scheme: w.admin.Scheme(), Mapper: w.admin.RESTMapper()})
	}
	options.Limits.Verdict = 0 // no controller runs
	if testing.Verbose() {
		options.Log = testr.New(t)
	}
	for _, change := range changes {
		change(&options)
	}
	server, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.ServeOn(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with: %v", err)
		}
	})
	w.server, w.url = server, "http://"+listener.Addr().String()
	w.document = readDocument(t, server)
	return w
}

func (w *world) create(objects ...client.Object) {
	w.t.Helper()
	for _, o := range objects {
		if err := w.admin.Create(context.Background(), o); err != nil && !apierrors.IsAlreadyExists(err) {
			w.t.Fatalf("creating %T %s: %v", o, o.GetName(), err)
		}
	}
}

// token returns the token of a service account.
func (w *world) token(namespace, name string) string {
	w.t.Helper()
	request := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := w.admin.SubResource("token").Create(context.Background(), account, request); err != nil {
		w.t.Fatalf("asking for a token of %s/%s: %v", namespace, name, err)
	}
	return request.Status.Token
}

// tenant creates a namespace with a service account that may do anything with its applications.
func (w *world) tenant(namespace string) *visitor {
	w.t.Helper()
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.in(namespace)}})
	return w.member(namespace, "deployer", "tarn-apps-edit")
}

// small is a paas.toml without volumes.
const small = "[app]\nimage = \"shop:1\"\n"

// created is tenant, and reserves the id shop.
func (w *world) created(namespace string) *visitor {
	w.t.Helper()
	c := w.tenant(namespace)
	c.post("/v1/apps", `{"id": "shop"}`).want(http.StatusCreated)
	return c
}

// deployed is created, and deploys a paas.toml.
func (w *world) deployed(namespace, file string) *visitor {
	w.t.Helper()
	c := w.created(namespace)
	c.deploy("shop", file).want(http.StatusAccepted)
	return c
}

// member creates a service account of a namespace with a role there; an empty role means none.
func (w *world) member(namespace, name, role string) *visitor {
	w.t.Helper()
	namespace = w.in(namespace)
	w.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	if role != "" {
		w.create(&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
		})
		testkit.Allowed(w.t, w.admin, authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + namespace + ":" + name,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "list", Group: tarnv1.GroupVersion.Group, Resource: "apps"},
		})
	}
	return &visitor{w: w, namespace: namespace, token: w.token(namespace, name)}
}

// class creates a storage class.
func (w *world) class(name string, expands bool) {
	w.t.Helper()
	w.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "example.com/none", AllowVolumeExpansion: &expands})
}

// claim creates the bound claim of a volume, as the apps controller would.
func (w *world) claim(namespace, app, volume string, sizeGi int64, mode corev1.PersistentVolumeAccessMode, class string, changes ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(sizeGi<<30, resource.BinarySI)}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.in(namespace), Name: appspec.ClaimName(app, volume),
			Labels: map[string]string{tarnv1.LabelApp: app, tarnv1.LabelAppVolume: volume},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}
	for _, change := range changes {
		change(claim)
	}
	w.create(claim)
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size, AccessModes: claim.Spec.AccessModes}
	if err := w.admin.Status().Update(context.Background(), claim); err != nil {
		w.t.Fatal(err)
	}
	return claim
}

// app reads an application from the API server.
func (w *world) app(namespace, id string) *tarnv1.App {
	w.t.Helper()
	app := &tarnv1.App{}
	if err := w.admin.Get(context.Background(), client.ObjectKey{Namespace: w.in(namespace), Name: id}, app); err != nil {
		w.t.Fatal(err)
	}
	return app
}

// settle writes the status that the apps controller writes when everything is as asked for.
func (w *world) settle(namespace, id string) {
	w.t.Helper()
	app := w.app(namespace, id)
	before := app.DeepCopy()
	app.Status.ObservedGeneration = app.Generation
	app.Status.Conditions = nil
	for _, kind := range []string{tarnv1.ConditionDeployed, tarnv1.ConditionReady} {
		app.Status.Conditions = append(app.Status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: kind, ObservedGeneration: app.Generation, LastTransitionTime: metav1.Now(),
		})
	}
	if err := w.admin.Status().Patch(context.Background(), app, client.MergeFrom(before)); err != nil {
		w.t.Fatal(err)
	}
}

// visitor calls the server with a token.
type visitor struct {
	w         *world
	namespace string
	token     string
	encoding  string // of the bodies it sends
}

// reply is an answer of the server.
type reply struct {
	t      *testing.T
	call   string
	status int
	header http.Header
	body   []byte
}

// do makes a call, and fails unless the document describes the answer.
func (c *visitor) do(method, path, contentType, body string) *reply {
	c.w.t.Helper()
	request, err := http.NewRequest(method, c.w.url+path, strings.NewReader(body))
	if err != nil {
		c.w.t.Fatal(err)
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	if c.encoding != "" {
		request.Header.Set("Content-Encoding", c.encoding)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		c.w.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		c.w.t.Fatal(err)
	}
	r := &reply{t: c.w.t, call: method + " " + path, status: response.StatusCode, header: response.Header, body: bytes.TrimSpace(text)}
	c.w.document.check(c.w.t, r, method, path)
	return r
}

func (c *visitor) get(path string) *reply    { return c.do(http.MethodGet, path, "", "") }
func (c *visitor) delete(path string) *reply { return c.do(http.MethodDelete, path, "", "") }
func (c *visitor) post(path, body string) *reply {
	return c.do(http.MethodPost, path, "application/json", body)
}
func (c *visitor) put(path, body string) *reply {
	return c.do(http.MethodPut, path, "application/json", body)
}
func (c *visitor) deploy(id, toml string) *reply {
	return c.do(http.MethodPost, "/v1/apps/"+id+"/deploy", "application/toml", toml)
}

// want fails unless the status is as expected.
func (r *reply) want(status int) *reply {
	r.t.Helper()
	if r.status != status {
		r.t.Fatalf("%s answered %d, want %d: %s", r.call, r.status, status, r.body)
	}
	return r
}

// fails checks that the answer is an error with this code and message.
func (r *reply) fails(status int, code appplan.Code, message string) {
	r.t.Helper()
	r.want(status)
	var answer struct{ Error *appplan.Error }
	if err := json.Unmarshal(r.body, &answer); err != nil || answer.Error == nil {
		r.t.Fatalf("%s answered %s, want an error: %v", r.call, r.body, err)
	}
	if answer.Error.Code != code || answer.Error.Message != message {
		r.t.Errorf("%s answered %s %q, want %s %q", r.call, answer.Error.Code, answer.Error.Message, code, message)
	}
}

// data returns the data of an answer.
func data[T any](r *reply) T {
	r.t.Helper()
	var answer struct{ Data *T }
	if err := json.Unmarshal(r.body, &answer); err != nil || answer.Data == nil {
		r.t.Fatalf("%s answered %s, want data: %v", r.call, r.body, err)
	}
	return *answer.Data
}
