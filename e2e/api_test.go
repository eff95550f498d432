//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// restCaller calls the REST API of applications as a service account that may edit the
// case's namespace.
type restCaller struct {
	s          *scenario
	url, token string
}

// restCaller makes one, or ends a case on a cluster whose API cannot be reached.
func (s *scenario) restCaller() *restCaller {
	s.t.Helper()
	if !suite.machine.here() {
		s.t.Skip("the cluster is not on this machine, so nobody says where its REST API answers")
	}
	out, err := suite.machine.run("status", "--output", "json")
	if err != nil {
		s.t.Fatal(err)
	}
	var status struct{ Apps string }
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		s.t.Fatal(err)
	}
	if status.Apps == "" {
		s.t.Skip("this cluster runs without the REST API")
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "deployer"}}
	s.create(account)
	s.create(&rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "deployer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.name, Name: "deployer"}},
	})
	request := &authenticationv1.TokenRequest{}
	if err := suite.live.SubResource("token").Create(s.ctx, account, request); err != nil {
		s.t.Fatal(err)
	}
	return &restCaller{s, status.Apps, request.Status.Token}
}

func (c *restCaller) send(method, path, kind, body string) *http.Response {
	c.s.t.Helper()
	request, err := http.NewRequest(method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.s.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	request.Header.Set("Content-Type", kind)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		c.s.t.Fatal(err)
	}
	return response
}

// call makes a call, which must be answered with a status, and gives the answer.
func (c *restCaller) call(want int, method, path, kind, body string) string {
	c.s.t.Helper()
	response := c.send(method, path, kind, body)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != want {
		c.s.t.Fatalf("%s %s answered %s, want %d: %s %v", method, path, response.Status, want, text, err)
	}
	return string(text)
}

// follow reads the events of an application to the last, which must be of a kind.
func (c *restCaller) follow(path, want string) {
	c.s.t.Helper()
	response := c.send(http.MethodGet, path, "", "")
	defer response.Body.Close()
	var kinds []string
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if kind, is := strings.CutPrefix(lines.Text(), "event: "); is {
			kinds = append(kinds, kind)
		}
	}
	if err := lines.Err(); err != nil || len(kinds) == 0 || kinds[len(kinds)-1] != want {
		c.s.t.Fatalf("the events were %q, %v; want %s at last", kinds, err, want)
	}
	if before := kinds[:len(kinds)-1]; slices.ContainsFunc(before, func(kind string) bool { return kind != "progress" }) {
		c.s.t.Errorf("the events were %q", kinds)
	}
}

const shopFile = `[app]
image = "busybox:1.36"
command = ["sh", "-c", "trap exit TERM; while true; do sleep 1; done"]

[[volumes]]
name = "data"
mountPath = "/data"
size = "1Gi"
`

func TestTheRESTAPITakesAnAppThroughItsLife(t *testing.T) {
	t.Parallel()
	s := begin(t, "app-rest")
	s.needsClasses("ovh-csi-rbd")
	app, c := s.app("shop"), s.restCaller()
	const shop = "/v1/apps/shop"
	c.call(http.StatusCreated, http.MethodPost, "/v1/apps", "application/json", `{"id": "shop"}`)
	c.call(http.StatusAccepted, http.MethodPost, shop+"/deploy", "application/toml", shopFile)
	c.follow(shop+"/events", "settled")

	answer := c.call(http.StatusOK, http.MethodPut, shop+"/volumes/data", "application/json", `{"new_size_gi": 2}`)
	if want := `"pvc_name":"paas-app-shop-data","size_gi":2,"status":"Resizing","access_mode":"ReadWriteOnce"`; !strings.Contains(answer, want) {
		t.Errorf("a resize answered %s, want %s", answer, want)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "paas-app-shop-data"}}
	s.told(claim, "FileSystemResizeRequired")
	s.nudge(s.podOf(app))
	c.follow(shop+"/events", "settled")
	if listed, want := c.call(http.StatusOK, http.MethodGet, shop+"/volumes", "", ""), fmt.Sprintf(`"capacity_bytes":%d`, 2<<30); !strings.Contains(listed, want) {
		t.Errorf("the volumes are %s, want %s", listed, want)
	}

	volume := s.volumeNamed(claim.Name)
	c.call(http.StatusOK, http.MethodDelete, shop, "", "")
	c.follow(shop+"/events", "deleted")
	c.call(http.StatusNotFound, http.MethodGet, shop, "", "")
	if !s.gone(&tarn.App{ObjectMeta: app.ObjectMeta}) || !s.gone(claim) || !s.gone(volume) {
		t.FailNow()
	}
}
