//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// The files of application shop. The first has a volume of every kind, and an unknown access mode.
// The second has only the preserved volume, with an access mode that it lacks, and no pod.
const (
	shopFile = `[app]
image = "busybox:1.36"
command = ["sh", "-c", "trap exit TERM; echo kept >> /media/note; while true; do sleep 1; done"]

[[volumes]]
name = "data"
mountPath = "/data"
size = "1Gi"
accessMode = "block"

[[volumes]]
name = "media"
mountPath = "/media"
size = "1Gi"
accessMode = "rwx"
preserveOnDelete = true

[[volumes]]
name = "scratch"
mountPath = "/scratch"
size = "1Gi"
storageClass = "local-path"
`
	shopAgain = `{"app": {"image": "busybox:1.36", "command": ["sh", "-c", "` + stays + `"], "replicas": 0}, "volumes": [{"name": "media", "mountPath": "/media", "size": "1Gi", "accessMode": "rwo"}]}`
	shop      = "/v1/apps/shop"
)

// TestTheRESTAPIAnswersAsItsTableSays makes the calls of docs/reference/rest-api.md in the order of
// an application's life. It wants every answer the table names.
func TestTheRESTAPIAnswersAsItsTableSays(t *testing.T) {
	t.Parallel()
	s := begin(t, "app-rest")
	s.needsClasses("ovh-csi-rbd", "ovh-csi-nfs", "local-path")
	s.app("shop")
	c := s.restCaller()
	c.takesAnId()
	c.deploysTheFile()
	c.keepsStrangersOut()
	c.refusesNonsense()
	c.scales()
	c.resizes()
	c.keepsWhatIsProtected()
	c.ends()
	c.findsItsVolumeAgain()
}

func (c *restCaller) takesAnId() {
	c.s.t.Helper()
	for path, want := range map[string]string{"/openapi.json": `"openapi": "3.1.0"`, "/docs": "<html"} {
		c.s.says(c.by("").get(path), want)
	}
	for _, call := range [][3]string{ // of an id that is not in use
		{http.MethodGet, ""}, {http.MethodDelete, ""}, {http.MethodPost, "/deploy", shopAgain}, {http.MethodPost, "/plan", shopAgain},
		{http.MethodPost, "/scale", `{"replicas": 1}`}, {http.MethodGet, "/volumes"}, {http.MethodPut, "/volumes/data", `{"new_size_gi": 2}`}, {http.MethodGet, "/events"},
	} {
		c.s.fails(c.call(http.StatusNotFound, call[0], shop+call[1], "application/json", call[2]), "not_found", "app 'shop' not found")
	}
	c.s.says(c.post(http.StatusCreated, "/v1/apps", `{"id": "shop"}`), `{"data":{"id":"shop","namespace":"`+c.s.name+`","status":"NotDeployed"`)
	c.s.fails(c.post(http.StatusConflict, "/v1/apps", `{"id": "shop"}`), "conflict", "app 'shop' exists already: choose another id")
	c.post(http.StatusUnprocessableEntity, "/v1/apps", `{"id": "Shop"}`)
	c.s.says(c.get("/v1/apps"), `{"data":[{"id":"shop"`)
	c.s.says(c.get(shop), `"status":"NotDeployed"`)
}

func (c *restCaller) deploysTheFile() {
	c.s.t.Helper()
	wrong := strings.NewReplacer(`"/media"`, `"media"`, `"1Gi"`, `"1"`).Replace(shopFile)
	for _, call := range []string{"/deploy", "/plan"} {
		c.s.says(c.deploy(http.StatusUnprocessableEntity, shop+call, wrong), `"code":"invalid"`, `"line":8,"column":1,"key":"volumes[0].size"`,
			`"line":13,"column":1,"key":"volumes[1].mountPath"`, `"line":14,"column":1,"key":"volumes[1].size"`, `"line":21,"column":1,"key":"volumes[2].size"`)
	}
	planned := c.deploy(http.StatusAccepted, shop+"/plan", shopFile)
	c.s.says(c.get(shop), `"status":"NotDeployed"`) // a plan changes nothing
	deployed := c.deploy(http.StatusAccepted, shop+"/deploy", shopFile)
	for _, answer := range []string{planned, deployed} {
		c.s.says(answer, `{"action":"create","volume":"data","pvc_name":"paas-app-shop-data","to_gi":1,`, `{"action":"create","volume":"media"`,
			`{"action":"create","volume":"scratch"`, `"strategy":"Recreate"`,
			`volumes[0].accessMode: \"block\" is unknown, so the volume is block storage (rwo); write rwo or rwx`,
			`volume 'data' is ReadWriteOnce, so the running pod is stopped before a new one starts (strategy Recreate)`)
	}
	told := c.listens(shop + "/events")("settled") // the pod must be ready for five seconds, so there are events before
	c.s.says(told[0], `{"kind":"progress","app":{"id":"shop"`)
	c.s.says(told[len(told)-1], `"status":"Ready","settled":true`, `"ready_replicas":1`)
	stored := c.stored()
	c.deploy(http.StatusAccepted, shop+"/deploy", shopFile)
	if again := c.stored(); again.Generation != stored.Generation {
		c.s.t.Errorf("the same deploy changed the application: %+v, before %+v", again.Spec, stored.Spec)
	}

	var listed struct {
		Data []map[string]any `json:"data"`
	}
	if err := json.Unmarshal([]byte(c.get(shop+"/volumes")), &listed); err != nil || len(listed.Data) != 3 {
		c.s.t.Fatalf("listed %v, %v, want three volumes", listed, err)
	}
	for i, want := range []map[string]any{
		{"name": "data", "pvc_name": "paas-app-shop-data", "access_mode": "ReadWriteOnce", "storage_class": "ovh-csi-rbd", "preserve_on_delete": false},
		{"name": "media", "pvc_name": "paas-app-shop-media", "access_mode": "ReadWriteMany", "storage_class": "ovh-csi-nfs", "preserve_on_delete": true},
		{"name": "scratch", "pvc_name": "paas-app-shop-scratch", "access_mode": "ReadWriteOnce", "storage_class": "local-path", "preserve_on_delete": false},
	} {
		want["size_gi"], want["status"] = 1., "Bound"
		for key, value := range want {
			if got := listed.Data[i][key]; got != value {
				c.s.t.Errorf("volume %d has %s %v, want %v", i, key, got, value)
			}
		}
	}
	c.s.says(c.post(http.StatusAccepted, shop+"/plan", shopAgain), `{"action":"keep","volume":"media","pvc_name":"paas-app-shop-media","from_gi":1,"to_gi":1`, `{"action":"detach","volume":"data"`, `{"action":"detach","volume":"scratch"`)
}

// keepsStrangersOut shows that an account that may not see an application does not learn of its
// existence. One that may see it may not change it.
func (c *restCaller) keepsStrangersOut() {
	c.s.t.Helper()
	nobody, stranger, viewer := c.by(""), c.as("stranger", ""), c.as("viewer", "view")
	nobody.call(http.StatusUnauthorized, http.MethodGet, shop, "", "")
	c.s.fails(stranger.call(http.StatusNotFound, http.MethodGet, shop, "", ""), "not_found", "app 'shop' not found")
	c.s.fails(stranger.call(http.StatusNotFound, http.MethodDelete, shop, "", ""), "not_found", "app 'shop' not found")
	stranger.call(http.StatusForbidden, http.MethodGet, "/v1/apps", "", "")
	viewer.get(shop)
	viewer.post(http.StatusForbidden, shop+"/scale", `{"replicas": 0}`)
}

// scales shows that the live claim decides, whatever the file says of the volume.
func (c *restCaller) scales() {
	c.s.t.Helper()
	const refusal = "cannot scale to 3 replicas: volume 'data' is ReadWriteOnce (max 1 replica). Re-create the volume with accessMode 'ReadWriteMany' to scale out."
	shared := strings.Replace(shopFile, `"block"`, `"rwx"`, 1)
	c.s.says(c.deploy(http.StatusAccepted, shop+"/deploy", shared), "volume 'data' stays ReadWriteOnce: a claim's access mode cannot be changed; for ReadWriteMany give the volume another name")
	c.s.fails(c.post(http.StatusConflict, shop+"/scale", `{"replicas": 3}`), "conflict", refusal)
	c.s.says(c.deploy(http.StatusConflict, shop+"/deploy", strings.Replace(shared, "[app]", "[app]\nreplicas = 3", 1)), refusal)
	c.s.says(c.post(http.StatusOK, shop+"/scale", `{"replicas": 1}`), `"replicas":1`)
	for body, message := range map[string]string{
		`{"replicas": -1}`: "replicas must be between 0 and 1000", `{"replicas": 1001}`: "replicas must be between 0 and 1000",
		`{"replicas": 1.5}`: `replicas must be a whole number: send {"replicas": 3}`, `{"replica": 1}`: `key "replica" is unknown: send {"replicas": 3}`,
	} {
		c.s.fails(c.post(http.StatusUnprocessableEntity, shop+"/scale", body), "invalid", message)
	}
}

func (c *restCaller) resizes() {
	c.s.t.Helper()
	volumes := shop + "/volumes/"
	for size, message := range map[string]string{
		"0": "new_size_gi must be between 1 and 1000", "1001": "new_size_gi must be between 1 and 1000", "1": "size must be strictly greater than current size (no shrink)",
	} {
		c.s.fails(c.put(http.StatusUnprocessableEntity, volumes+"data", `{"new_size_gi": `+size+`}`), "invalid", message)
	}
	c.s.fails(c.put(http.StatusUnprocessableEntity, volumes+"scratch", `{"new_size_gi": 2}`), "invalid", "storage class 'local-path' does not allow expansion")
	c.s.fails(c.put(http.StatusNotFound, volumes+"none", `{"new_size_gi": 2}`), "not_found", "volume 'none' not found on app 'shop'")
	c.beyondQuota(volumes + "data")

	if got, want := c.put(http.StatusOK, volumes+"data", `{"new_size_gi": 2}`), `{"data":{"name":"data","pvc_name":"paas-app-shop-data","size_gi":2,"status":"Resizing","access_mode":"ReadWriteOnce"}}`; strings.TrimSpace(got) != want {
		c.s.t.Errorf("a resize answered %s, want %s", got, want)
	}
	follows := c.listens(shop + "/events")
	c.s.told(c.claim("data"), "FileSystemResizeRequired")
	c.s.nudge(c.s.podOf(&tarn.App{ObjectMeta: metav1.ObjectMeta{Namespace: c.s.name, Name: "shop"}}))
	told := follows("settled")
	c.s.says(told[0], `{"kind":"progress"`, `"status":"Resizing","message":"volume `)
	c.s.says(told[len(told)-1], `"status":"Ready"`)
	c.s.says(c.get(shop+"/volumes"), fmt.Sprintf(`"name":"data","pvc_name":"paas-app-shop-data","size_gi":2,"capacity_bytes":%d`, 2<<30))
	c.s.says(c.deploy(http.StatusAccepted, shop+"/plan", shopFile), `{"action":"keep","volume":"data","pvc_name":"paas-app-shop-data","from_gi":2,"to_gi":2}`,
		"volume 'data' keeps its 2 GiB: the file asks for 1, and volumes never shrink")
}

// beyondQuota requests a resize that Kubernetes rejects. The answer has the cause, and nothing
// changes.
func (c *restCaller) beyondQuota(path string) {
	c.s.t.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: c.s.name, Name: "small"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("9Gi")},
	}}
	c.s.create(quota)
	c.s.quotaCounted(quota)
	c.s.says(c.put(http.StatusInternalServerError, path, `{"new_size_gi": 100}`), `"code":"internal"`, "resizing volume 'data' of app 'shop': ", "exceeded quota: small")
	c.s.says(c.get(shop+"/volumes"), `"name":"data","pvc_name":"paas-app-shop-data","size_gi":1,`)
	c.s.delete(quota)
}

// quotaCounted waits until the use of a quota has been counted. Until then the quota rejects
// everything with another message.
func (s *scenario) quotaCounted(quota *corev1.ResourceQuota) {
	s.t.Helper()
	ctx, stop := context.WithTimeout(s.ctx, s.limit())
	defer stop()
	changes, err := suite.logs.CoreV1().ResourceQuotas(s.name).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + quota.Name})
	if err != nil {
		s.t.Fatal(err)
	}
	defer changes.Stop()
	for change := range changes.ResultChan() {
		if now, is := change.Object.(*corev1.ResourceQuota); is && len(now.Status.Used) > 0 {
			return
		}
	}
	s.t.Fatalf("the use of quota %s is not counted", quota.Name)
}
