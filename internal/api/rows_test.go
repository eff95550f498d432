//go:build integration

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
	appspec "tarn.dev/tarn/internal/app/spec"
)

const shop = `[app]
image = "registry.example.com/shop:1.4"
port = 8080

[[volumes]]
name = "data"
mountPath = "/data"
size = "10Gi"

[[volumes]]
name = "media"
mountPath = "/media"
size = "5Gi"
accessMode = "rwx"
preserveOnDelete = true
`

func TestAnIdIsTakenOnceAndFreeAgainWhenItsAppIsGone(t *testing.T) {
	w := newWorld(t)
	c := w.tenant("ids")
	created := data[appplan.App](c.post("/v1/apps", `{"id": "shop"}`).want(http.StatusCreated))
	if created.ID != "shop" || created.Namespace != c.namespace || created.Status != appplan.NotDeployed || !created.Settled {
		t.Errorf("created %+v", created)
	}
	c.post("/v1/apps", `{"id": "shop"}`).fails(http.StatusConflict, appplan.Conflict, "app 'shop' exists already: choose another id")
	c.post("/v1/apps", `{"id": "cart"}`).want(http.StatusCreated)
	if apps := data[[]appplan.App](c.get("/v1/apps").want(http.StatusOK)); len(apps) != 2 || apps[0].ID != "cart" || apps[1].ID != "shop" {
		t.Errorf("listed %+v", apps)
	}
	if got := data[appplan.App](c.get("/v1/apps/shop").want(http.StatusOK)); got.ID != "shop" {
		t.Errorf("got %+v", got)
	}
	if got := data[appplan.Deletion](c.delete("/v1/apps/shop").want(http.StatusOK)); got.ID != "shop" || got.Status != appplan.Deleting {
		t.Errorf("deleted %+v", got)
	}
	for _, r := range []*reply{c.get("/v1/apps/shop"), c.delete("/v1/apps/shop"), c.deploy("shop", shop), c.get("/v1/apps/shop/volumes"),
		c.post("/v1/apps/shop/scale", `{"replicas": 1}`), c.put("/v1/apps/shop/volumes/data", `{"new_size_gi": 20}`), c.get("/v1/apps/shop/events"),
		c.do(http.MethodPost, "/v1/apps/shop/plan", "application/toml", shop)} {
		r.fails(http.StatusNotFound, appplan.NotFound, "app 'shop' not found")
	}
	c.post("/v1/apps", `{"id": "shop"}`).want(http.StatusCreated)
}

func TestADeployWritesWhatTheFileSaysAndSaysWhatItDoes(t *testing.T) {
	w := newWorld(t)
	c := w.created("deploys")
	plan := data[appplan.Plan](c.do(http.MethodPost, "/v1/apps/shop/plan", "text/x-toml", shop).want(http.StatusAccepted))
	if w.app("deploys", "shop").Spec.Image != "" {
		t.Fatal("a plan changed the application")
	}
	deployed := data[appplan.Deployed](c.deploy("shop", shop).want(http.StatusAccepted))
	if fmt.Sprint(deployed.Plan) != fmt.Sprint(plan) {
		t.Errorf("planned %+v, deployed %+v", plan, deployed.Plan)
	}
	if len(plan.Changes) != 2 || plan.Changes[0].Action != appplan.Create || plan.Changes[0].ClaimName != "paas-app-shop-data" || plan.Strategy != appplan.Recreate || plan.Refused {
		t.Errorf("planned %+v", plan)
	}
	spec := w.app("deploys", "shop").Spec
	if spec.Image != "registry.example.com/shop:1.4" || len(spec.Volumes) != 2 || spec.Volumes[0].AccessMode != corev1.ReadWriteOnce ||
		spec.Volumes[1].AccessMode != corev1.ReadWriteMany || !spec.Volumes[1].PreserveOnDelete || spec.Volumes[1].SizeGi != 5 || *spec.Replicas != 1 {
		t.Errorf("stored %+v", spec)
	}
	before := w.app("deploys", "shop").ResourceVersion
	c.deploy("shop", shop).want(http.StatusAccepted)
	if now := w.app("deploys", "shop").ResourceVersion; now != before {
		t.Error("the same deploy wrote the application anew")
	}
	asJSON := `{"app": {"image": "shop:2"}, "volumes": [{"name": "data", "mountPath": "/data", "size": "10Gi"}]}`
	second := data[appplan.Deployed](c.post("/v1/apps/shop/deploy", asJSON).want(http.StatusAccepted))
	if !slices.ContainsFunc(second.Changes, func(c appplan.Change) bool { return c.Action == appplan.Detach && c.Volume == "media" }) || !second.Restart {
		t.Errorf("a deploy without the volume did %+v", second.Plan)
	}
}

func TestTheMappingOfAccessModesIsThatOfTheServer(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Classes = map[appspec.AccessMode]string{appspec.ReadWriteOnce: "fast", appspec.ReadWriteMany: "wide"}
	})
	c := w.deployed("mapping", shop)
	volumes := data[[]appplan.Volume](c.get("/v1/apps/shop/volumes").want(http.StatusOK))
	if len(volumes) != 2 || volumes[0].StorageClass != "fast" || volumes[1].StorageClass != "wide" {
		t.Errorf("the volumes are %+v", volumes)
	}
}

func TestEveryProblemOfAFileIsToldWithItsPlace(t *testing.T) {
	w := newWorld(t)
	c := w.created("problems")
	wrong := "[app]\nimage = \"a b\"\nprot = 80\n\n[[volumes]]\nname = \"data\"\nmountPath = \"data\"\nsize = \"10\"\n"
	for _, call := range []string{"deploy", "plan"} {
		r := c.do(http.MethodPost, "/v1/apps/shop/"+call, "application/toml", wrong).want(http.StatusUnprocessableEntity)
		var answer struct{ Error appplan.Error }
		if err := json.Unmarshal(r.body, &answer); err != nil {
			t.Fatal(err)
		}
		var places []string
		for _, p := range answer.Error.Problems {
			places = append(places, fmt.Sprintf("%d:%d %s", p.Line, p.Column, p.Key))
			if !strings.Contains(answer.Error.Message, p.Message) {
				t.Errorf("the message lacks %q: %s", p.Message, answer.Error.Message)
			}
		}
		if want := []string{"2:1 app.image", "3:1 app.prot", "7:1 volumes[0].mountPath", "8:1 volumes[0].size"}; answer.Error.Code != appplan.Invalid || !slices.Equal(places, want) {
			t.Errorf("%s told of %q, want %q", call, places, want)
		}
	}
	c.do(http.MethodPost, "/v1/apps/shop/deploy", "application/yaml", shop).
		fails(http.StatusUnsupportedMediaType, appplan.WrongType, `Content-Type "application/yaml" is not supported: send application/toml, text/x-toml or application/json`)
	packed := *c
	packed.encoding = "gzip"
	packed.deploy("shop", shop).
		fails(http.StatusUnsupportedMediaType, appplan.WrongType, `Content-Encoding "gzip" is not supported: send the body as it is, not compressed`)
	c.deploy("shop", shop+strings.Repeat("#", 300<<10)).want(http.StatusRequestEntityTooLarge)
	c.post("/v1/apps/shop/scale", `{"replicas": `+strings.Repeat(" ", 5000)+`1}`).want(http.StatusRequestEntityTooLarge)
	c.deploy("shop", "").want(http.StatusUnprocessableEntity)
}

func TestTheLiveClaimDecidesWhetherAnAppMayBeScaled(t *testing.T) {
	w := newWorld(t)
	c := w.created("scales")
	c.post("/v1/apps/shop/scale", `{"replicas": 3}`).fails(http.StatusConflict, appplan.Conflict, "app 'shop' has nothing deployed to scale: deploy it first")
	c.deploy("shop", shop).want(http.StatusAccepted)
	refusal := "cannot scale to 3 replicas: volume 'data' is ReadWriteOnce (max 1 replica). Re-create the volume with accessMode 'ReadWriteMany' to scale out."
	scale := func(n int) *reply { return c.post("/v1/apps/shop/scale", fmt.Sprintf(`{"replicas": %d}`, n)) }
	scale(3).fails(http.StatusConflict, appplan.Conflict, refusal) // no claim yet: the file
	w.claim("scales", "shop", "data", 10, corev1.ReadWriteOnce, "fast")
	w.claim("scales", "shop", "media", 5, corev1.ReadWriteMany, "shared")
	scale(3).fails(http.StatusConflict, appplan.Conflict, refusal)
	for _, n := range []int{0, 1} {
		if got := data[appplan.App](scale(n).want(http.StatusOK)); got.Replicas != int32(n) {
			t.Errorf("scaled to %d, got %d", n, got.Replicas)
		}
	}
	scale(-1).fails(http.StatusUnprocessableEntity, appplan.Invalid, "replicas must be between 0 and 1000")
	scale(1001).fails(http.StatusUnprocessableEntity, appplan.Invalid, "replicas must be between 0 and 1000")
	c.post("/v1/apps/shop/scale", `{"replicas": 3.5}`).fails(http.StatusUnprocessableEntity, appplan.Invalid, `replicas must be a whole number: send {"replicas": 3}`)
	c.post("/v1/apps/shop/scale", `{"replica": 3}`).fails(http.StatusUnprocessableEntity, appplan.Invalid, `key "replica" is unknown: send {"replicas": 3}`)
	c.deploy("shop", strings.Replace(shop, "port = 8080", "replicas = 3", 1)).fails(http.StatusConflict, appplan.Conflict, refusal)

	c.post("/v1/apps", `{"id": "cart"}`).want(http.StatusCreated)
	c.deploy("cart", shop).want(http.StatusAccepted)
	w.claim("scales", "cart", "data", 10, corev1.ReadWriteMany, "shared") // another than the file says
	if got := data[appplan.App](c.post("/v1/apps/cart/scale", `{"replicas": 3}`).want(http.StatusOK)); got.Replicas != 3 {
		t.Errorf("the claim is ReadWriteMany, whatever the file says: %+v", got)
	}
	if got := *w.app("scales", "cart").Spec.Replicas; got != 3 {
		t.Errorf("%d replicas are stored", got)
	}
}

func TestVolumesAreShownAsTheirLiveClaimsSay(t *testing.T) {
	w := newWorld(t)
	c := w.deployed("shown", shop)
	w.claim("shown", "shop", "data", 12, corev1.ReadWriteMany, "other")
	w.claim("shown", "shop", "old", 3, corev1.ReadWriteOnce, "fast", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{tarnv1.AnnotationPreserve: "true"}
	})
	got := data[[]appplan.Volume](c.get("/v1/apps/shop/volumes").want(http.StatusOK))
	want := []appplan.Volume{
		{Name: "data", ClaimName: "paas-app-shop-data", SizeGi: 12, CapacityBytes: 12 << 30, Status: appplan.VolumeBound, AccessMode: "ReadWriteMany", StorageClass: "other", MountPath: "/data"},
		{Name: "media", ClaimName: "paas-app-shop-media", SizeGi: 5, Status: appplan.VolumeMissing, AccessMode: "ReadWriteMany", StorageClass: "ovh-csi-nfs", PreserveOnDelete: true, MountPath: "/media", Message: "its claim is not created yet"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %+v, want %+v", got, want)
	}
	app := data[appplan.App](c.get("/v1/apps/shop").want(http.StatusOK))
	if len(app.Detached) != 1 || app.Detached[0].ClaimName != "paas-app-shop-old" || !app.Detached[0].PreserveOnDelete {
		t.Errorf("detached %+v", app.Detached)
	}
	deletion := data[appplan.Deletion](c.delete("/v1/apps/shop").want(http.StatusOK))
	if !slices.Equal(deletion.Deleted, []string{"paas-app-shop-data"}) || !slices.Equal(deletion.Preserved, []string{"paas-app-shop-old"}) {
		t.Errorf("deleted %+v", deletion)
	}
}

func TestAResizeIsCheckedInTheOrderAUserExpects(t *testing.T) {
	w := newWorld(t)
	w.class("grows", true)
	w.class("rigid", false)
	c := w.deployed("resizes", shop)
	resize := func(volume, size string) *reply {
		return c.put("/v1/apps/shop/volumes/"+volume, `{"new_size_gi": `+size+`}`)
	}
	bounds := "new_size_gi must be between 1 and 1000"
	for _, size := range []string{"0", "-1", "1001", "1e30", "99999999999999999999"} {
		resize("data", size).fails(http.StatusUnprocessableEntity, appplan.Invalid, bounds)
	}
	resize("none", "20").fails(http.StatusNotFound, appplan.NotFound, "volume 'none' not found on app 'shop'")
	resize("data", "20").fails(http.StatusConflict, appplan.Conflict, "volume 'data' is not created yet: try again when it is Bound")
	claim := w.claim("resizes", "shop", "data", 10, corev1.ReadWriteOnce, "grows")
	phase := func(is corev1.PersistentVolumeClaimPhase) {
		claim.Status.Phase = is
		if err := w.admin.Status().Update(context.Background(), claim); err != nil {
			t.Fatal(err)
		}
	}
	phase(corev1.ClaimPending)
	resize("data", "20").fails(http.StatusConflict, appplan.Conflict, "volume 'data' is Pending: try again when it is Bound")
	phase(corev1.ClaimBound)
	w.claim("resizes", "shop", "media", 5, corev1.ReadWriteMany, "rigid")
	noShrink := "size must be strictly greater than current size (no shrink)"
	for _, size := range []string{"1", "9", "10"} {
		resize("data", size).fails(http.StatusUnprocessableEntity, appplan.Invalid, noShrink)
	}
	resize("media", "5").fails(http.StatusUnprocessableEntity, appplan.Invalid, noShrink)
	resize("media", "6").fails(http.StatusUnprocessableEntity, appplan.Invalid, "storage class 'rigid' does not allow expansion")
	for _, body := range []string{`{"new_size_gi": "20"}`, `{"new_size_gi": 20.5}`} {
		c.put("/v1/apps/shop/volumes/data", body).fails(http.StatusUnprocessableEntity, appplan.Invalid, `new_size_gi must be a whole number: send {"new_size_gi": 20}`)
	}
	r := resize("data", "20").want(http.StatusOK)
	if want := `{"data":{"name":"data","pvc_name":"paas-app-shop-data","size_gi":20,"status":"Resizing","access_mode":"ReadWriteOnce"}}`; string(r.body) != want {
		t.Errorf("a resize answered %s, want %s", r.body, want)
	}
	if got := w.app("resizes", "shop").Spec.Volumes[0].SizeGi; got != 20 {
		t.Errorf("%d GiB are stored, want 20", got)
	}
	resize("data", "15").fails(http.StatusUnprocessableEntity, appplan.Invalid, noShrink) // 20 are on their way
	if got := data[[]appplan.Volume](c.get("/v1/apps/shop/volumes"))[0]; got.Status != appplan.VolumeResizing || got.SizeGi != 20 || got.CapacityBytes != 10<<30 {
		t.Errorf("a volume that grows is listed as %+v", got)
	}
	deployed := data[appplan.Deployed](c.deploy("shop", shop).want(http.StatusAccepted))
	if got := w.app("resizes", "shop").Spec.Volumes[0].SizeGi; got != 20 || !slices.Contains(deployed.Warnings, "volume 'data' keeps its 20 GiB: the file asks for 10, and volumes never shrink") {
		t.Errorf("a deploy of the old size left %d GiB and warned %q", got, deployed.Warnings)
	}
}

func TestTheLiveClassDecidesWhetherAVolumeMayGrow(t *testing.T) {
	w := newWorld(t)
	w.class("changing", false)
	c := w.deployed("classes", shop)
	w.claim("classes", "shop", "data", 10, corev1.ReadWriteOnce, "changing")
	larger := strings.Replace(shop, `"10Gi"`, `"11Gi"`, 1)
	c.deploy("shop", larger).fails(http.StatusUnprocessableEntity, appplan.Invalid, "storage class 'changing' does not allow expansion")
	if got := w.app("classes", "shop").Spec.Volumes[0].SizeGi; got != 10 {
		t.Errorf("a refused deploy changed the size to %d GiB", got)
	}
	plan := data[appplan.Plan](c.do(http.MethodPost, "/v1/apps/shop/plan", "application/toml", larger).want(http.StatusAccepted))
	if !plan.Refused || plan.Changes[0].Action != appplan.Refuse || plan.Changes[0].Message != "storage class 'changing' does not allow expansion" {
		t.Errorf("planned %+v", plan)
	}
	class, expands := &storagev1.StorageClass{}, true
	if err := w.admin.Get(context.Background(), client.ObjectKey{Name: "changing"}, class); err != nil {
		t.Fatal(err)
	}
	class.AllowVolumeExpansion = &expands
	if err := w.admin.Update(context.Background(), class); err != nil {
		t.Fatal(err)
	}
	deployed := data[appplan.Deployed](c.deploy("shop", larger).want(http.StatusAccepted))
	if got := deployed.Changes[0]; got.Action != appplan.Grow || got.FromGi != 10 || got.ToGi != 11 {
		t.Errorf("deployed %+v", got)
	}
	if err := w.admin.Delete(context.Background(), class); err != nil {
		t.Fatal(err)
	}
	c.put("/v1/apps/shop/volumes/data", `{"new_size_gi": 30}`).
		fails(http.StatusUnprocessableEntity, appplan.Invalid, "storage class 'changing' does not exist, so volume 'data' cannot be expanded")
}

func TestAnAppThatIsBeingDeletedTakesNoMore(t *testing.T) {
	w := newWorld(t)
	c := w.created("going")
	app := w.app("going", "shop")
	app.Finalizers = []string{tarnv1.FinalizerApp}
	if err := w.admin.Update(context.Background(), app); err != nil {
		t.Fatal(err)
	}
	c.delete("/v1/apps/shop").want(http.StatusOK)
	c.deploy("shop", shop).fails(http.StatusConflict, appplan.Conflict, "app 'shop' is being deleted: create it again when it is gone")
	c.post("/v1/apps", `{"id": "shop"}`).want(http.StatusConflict)
	if got := data[appplan.App](c.get("/v1/apps/shop")); got.Status != appplan.Deleting || got.Settled {
		t.Errorf("got %+v", got)
	}
	gone := w.app("going", "shop")
	gone.Finalizers = nil
	if err := w.admin.Update(context.Background(), gone); err != nil {
		t.Fatal(err)
	}
	c.get("/v1/apps/shop").want(http.StatusNotFound)
}

func TestWhatFailsUnexpectedlyIsPassedOn(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Client = denied{o.Client} })
	c := w.tenant("broken")
	c.get("/v1/apps").fails(http.StatusInternalServerError, appplan.Internal, "listing the apps of namespace '"+c.namespace+"': "+errDenied.Error())
}

// errDenied is Kubernetes' error for a server that lacks a right.
var errDenied = apierrors.NewForbidden(schema.GroupResource{Group: tarnv1.Group, Resource: "apps"}, "", errors.New("the server was given no right"))

// denied is the client of such a server.
type denied struct{ client.WithWatch }

// List implements client.Reader.
func (d denied) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errDenied
}
