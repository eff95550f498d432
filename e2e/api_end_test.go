//go:build e2e

package e2e

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// claim is the claim of a volume of application shop, with only its name.
func (c *restCaller) claim(volume string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: c.s.name, Name: "paas-app-shop-" + volume}}
}

// stored is application shop as the API server stores it.
func (c *restCaller) stored() *tarn.App {
	c.s.t.Helper()
	app := &tarn.App{}
	if err := suite.live.Get(c.s.ctx, client.ObjectKey{Namespace: c.s.name, Name: "shop"}, app); err != nil {
		c.s.t.Fatal(err)
	}
	return app
}

// refusesNonsense makes calls that must be rejected for their path, their body, or a conflict.
func (c *restCaller) refusesNonsense() {
	c.s.t.Helper()
	for _, call := range []struct {
		status                         int
		code, method, path, kind, body string
	}{
		{http.StatusNotFound, "not_found", http.MethodGet, "/v1/volumes", "", ""},
		{http.StatusMethodNotAllowed, "method_not_allowed", http.MethodPut, shop, "application/json", "{}"},
		{http.StatusUnprocessableEntity, "invalid", http.MethodGet, "/v1/apps/Shop", "", ""},
		{http.StatusUnprocessableEntity, "invalid", http.MethodGet, "/v1/apps/shop%2F..%2Fcart", "", ""},
		{http.StatusUnprocessableEntity, "invalid", http.MethodGet, shop + "?namespace=Not_a_name", "", ""},
		{http.StatusUnprocessableEntity, "invalid", http.MethodPut, shop + "/volumes/Data", "application/json", `{"new_size_gi": 2}`},
		{http.StatusUnprocessableEntity, "invalid", http.MethodPut, shop + "/volumes/data", "application/json", `{"new_size_gi": "2"}`},
		{http.StatusUnsupportedMediaType, "unsupported_media_type", http.MethodPost, shop + "/deploy", "application/yaml", shopFile},
		{http.StatusRequestEntityTooLarge, "too_large", http.MethodPost, shop + "/deploy", "application/toml", shopFile + strings.Repeat("#", 300<<10)},
		{http.StatusRequestEntityTooLarge, "too_large", http.MethodPost, shop + "/scale", "application/json", `{"replicas": ` + strings.Repeat(" ", 5000) + `1}`},
	} {
		c.refuses(call.status, call.code, call.method, call.path, call.kind, call.body)
	}
	c.post(http.StatusCreated, "/v1/apps", `{"id": "cart"}`)
	c.s.fails(c.post(http.StatusConflict, "/v1/apps/cart/scale", `{"replicas": 3}`), "conflict", "app 'cart' has nothing deployed to scale: deploy it first")
	c.call(http.StatusOK, http.MethodDelete, "/v1/apps/cart", "", "")

	theirs := c.claim("other")
	theirs.Spec = corev1.PersistentVolumeClaimSpec{
		StorageClassName: &c.s.name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: size("1Gi")},
	}
	c.s.create(theirs)
	c.s.fails(c.deploy(http.StatusConflict, shop+"/deploy", strings.Replace(shopFile, `name = "data"`, `name = "other"`, 1)), "conflict",
		"volume 'other' cannot be created: claim 'paas-app-shop-other' exists and does not belong to app 'shop'; give the volume another name")
	c.s.remove(theirs)
}

// protect sets the label that protects an object from deletion, or removes it.
func (c *restCaller) protect(o client.Object, value any) {
	c.s.t.Helper()
	patch, err := json.Marshal(fields{"metadata": fields{"labels": fields{tarn.LabelDeletionProtection: value}}})
	if err == nil {
		err = suite.live.Patch(c.s.ctx, o, client.RawPatch(types.MergePatchType, patch))
	}
	if err != nil {
		c.s.t.Fatal(err)
	}
}

// keepsWhatIsProtected shows that no call deletes an application with a protecting label, nor any
// volume by itself.
func (c *restCaller) keepsWhatIsProtected() {
	c.s.t.Helper()
	app := c.stored()
	c.protect(app, "true")
	c.s.fails(c.call(http.StatusConflict, http.MethodDelete, shop, "", ""), "conflict", "app 'shop' is protected from deletion by its label tarn.dev/deletion-protection")
	c.protect(app, nil)
	var document struct{ Paths map[string]map[string]any }
	if err := json.Unmarshal([]byte(c.get("/openapi.json")), &document); err != nil {
		c.s.t.Fatal(err)
	}
	for path := range document.Paths {
		if calls := slices.Collect(maps.Keys(document.Paths[path])); slices.Contains(calls, "delete") != (path == "/v1/apps/{id}") {
			c.s.t.Errorf("%s has the calls %q; to delete is for an application alone", path, calls)
		}
	}
	c.refuses(http.StatusMethodNotAllowed, "method_not_allowed", http.MethodDelete, shop+"/volumes/media", "", "")
}

// bringsBack makes a claim like one restored from the trash, after an earlier application with the
// id. This application has not mounted it.
func (c *restCaller) bringsBack(volume string) *corev1.PersistentVolumeClaim {
	c.s.t.Helper()
	return c.s.claimWith(c.claim(volume).Name, func(claim *corev1.PersistentVolumeClaim) {
		ofClass("local-path")(claim)
		claim.Labels = map[string]string{tarn.LabelApp: "shop", tarn.LabelAppVolume: volume}
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	})
}

// ends deletes the application while a label protects one of its claims. Until the label is
// removed, the application is being deleted and accepts no deploys.
func (c *restCaller) ends() {
	c.s.t.Helper()
	c.s.says(c.post(http.StatusOK, shop+"/scale", `{"replicas": 0}`), `"replicas":0`)
	data, scratch, media := c.s.volumeNamed("paas-app-shop-data"), c.s.volumeNamed("paas-app-shop-scratch"), c.s.bound(c.claim("media"))
	c.protect(c.claim("data"), "true")
	back := c.bringsBack("restored")
	c.s.says(c.call(http.StatusOK, http.MethodDelete, shop, "", ""), `"status":"Deleting","preserved":["paas-app-shop-media","paas-app-shop-restored"],"deleted":["paas-app-shop-data","paas-app-shop-scratch"]`)
	follows := c.listens(shop + "/events")
	if !c.s.gone(scratch) {
		c.s.t.FailNow()
	}
	c.s.says(c.get(shop), `"status":"Deleting"`, "claim paas-app-shop-data is protected from deletion by its label")
	c.s.fails(c.post(http.StatusConflict, shop+"/deploy", shopAgain), "conflict", "app 'shop' is being deleted: create it again when it is gone")
	c.post(http.StatusConflict, "/v1/apps", `{"id": "shop"}`)
	c.protect(c.claim("data"), nil)
	c.s.says(follows("deleted")[0], `{"kind":"progress"`)
	c.call(http.StatusNotFound, http.MethodGet, shop, "", "")
	if !c.s.gone(data) {
		c.s.t.FailNow()
	}

	c.call(http.StatusNotFound, http.MethodDelete, shop, "", "")
	kept := c.claim("media")
	if err := c.s.get(kept); err != nil || kept.UID != media.UID || kept.DeletionTimestamp != nil {
		c.s.t.Errorf("the claim to be preserved is %+v (%v)", kept.ObjectMeta, err)
	}
	if err := c.s.get(back); err != nil || back.DeletionTimestamp != nil {
		c.s.t.Errorf("the claim that no deploy has mounted is %+v (%v)", back.ObjectMeta, err)
	}
	c.s.remove(back)
	log := strings.Split(suite.machine.log(controller, 1<<20), "\n")
	if !slices.ContainsFunc(log, func(line string) bool {
		return containsAll(line, []string{"claim paas-app-shop-media is preserved; an App of the same name uses it again", string(media.UID)})
	}) {
		c.s.t.Error("the controller has not logged which claim it has preserved")
	}
}

// findsItsVolumeAgain deploys the application again. Its claim serves many pods, though the file
// asks for one.
func (c *restCaller) findsItsVolumeAgain() {
	c.s.t.Helper()
	media := c.s.volumeNamed("paas-app-shop-media")
	c.post(http.StatusCreated, "/v1/apps", `{"id": "shop"}`)
	c.s.says(c.post(http.StatusAccepted, shop+"/deploy", shopAgain), `{"action":"attach","volume":"media","pvc_name":"paas-app-shop-media","from_gi":1,"to_gi":1`,
		"volume 'media' stays ReadWriteMany: a claim's access mode cannot be changed; for ReadWriteOnce give the volume another name",
		"volume 'media' was preserved until now; from now on it is deleted with the app, because the file lacks preserveOnDelete = true")
	c.s.says(c.follow(shop+"/events", "settled"), `"status":"Ready"`)
	if again := c.s.volumeNamed("paas-app-shop-media"); again.UID != media.UID {
		c.s.t.Errorf("the new application has volume %s, want %s", again.Name, media.Name)
	}
	c.s.says(c.post(http.StatusOK, shop+"/scale", `{"replicas": 3}`), `"replicas":3`)
	c.s.says(c.follow(shop+"/events", "settled"), `"status":"Ready"`, `"ready_replicas":3`)
	c.s.says(c.post(http.StatusOK, shop+"/scale", `{"replicas": 0}`), `"replicas":0`)
	c.s.says(c.call(http.StatusOK, http.MethodDelete, shop, "", ""), `"preserved":[],"deleted":["paas-app-shop-media"]`)
	if !c.s.gone(media) {
		c.s.t.FailNow()
	}
}
