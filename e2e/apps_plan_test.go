//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// ledger is application ledger, without pods. Each volume is written as name, size in GiB, access
// mode and class.
func ledger(volumes ...string) string {
	text := "[app]\nname = \"ledger\"\nimage = \"busybox:1.36\"\nreplicas = 0\n"
	for _, v := range volumes {
		of := strings.Fields(v)
		text += fmt.Sprintf("\n[[volumes]]\nname = %[1]q\nmountPath = \"/%[1]s\"\nsize = \"%[2]sGi\"\naccessMode = %[3]q\nstorageClass = %[4]q\n", of[0], of[1], of[2], of[3])
	}
	return text
}

// plan holds the fields that the cases read of a plan and of the answer to a deploy.
type plan struct {
	Refused  bool
	Warnings []string
	Changes  []struct {
		Action, Volume, Message string
		FromGi                  int64 `json:"from_gi"`
		ToGi                    int64 `json:"to_gi"`
	}
}

// lines gives each change as action, volume and sizes.
func (p plan) lines() []string {
	var lines []string
	for _, c := range p.Changes {
		lines = append(lines, fmt.Sprintf("%s %s %d-%d", c.Action, c.Volume, c.FromGi, c.ToGi))
	}
	return lines
}

// decoded reads JSON into a value.
func decoded[T any](s *scenario, text string) T {
	s.t.Helper()
	var value T
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		s.t.Fatalf("%v in:\n%s", err, text)
	}
	return value
}

// plans requests the plan of application ledger by HTTP and by both ways of the command line. It
// wants the same answer from all, and gives it.
func (c *restCaller) plans(file string) plan {
	c.s.t.Helper()
	answer := c.deploy(http.StatusAccepted, "/v1/apps/ledger/plan", file)
	told := decoded[struct{ Data any }](c.s, answer).Data
	p := decoded[struct{ Data plan }](c.s, answer).Data
	status := 0
	if p.Refused {
		status = 1
	}
	for _, way := range c.ways() {
		out, _ := way.runs(status, file, "app", "plan", "--file", "-", "--output", "json")
		if said := decoded[any](c.s, out); !reflect.DeepEqual(said, told) {
			c.s.t.Errorf("tarn app plan %s says %v, the API %v", way, said, told)
		}
	}
	return p
}

// stands gives the spec of application ledger, and the requests of its claims.
func (s *scenario) stands() map[string]string {
	s.t.Helper()
	app := &tarn.App{}
	if err := suite.live.Get(s.ctx, client.ObjectKey{Namespace: s.name, Name: "ledger"}, app); err != nil {
		s.t.Fatal(err)
	}
	all := map[string]string{"app": fmt.Sprintf("generation %d", app.Generation)}
	var claims corev1.PersistentVolumeClaimList
	if err := suite.live.List(s.ctx, &claims, client.InNamespace(s.name)); err != nil {
		s.t.Fatal(err)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		all[claim.Name] = fmt.Sprintf("%s of %s, labels %v", claim.Spec.Resources.Requests.Storage(), claim.UID, claim.Labels)
	}
	return all
}

func TestAPlanTellsWhatADeployDoesToWhatIsThere(t *testing.T) {
	t.Parallel()
	s := begin(t, "app-plan")
	s.needsClasses("ovh-csi-nfs", "local-path")
	s.app("ledger")
	c := s.restCaller()
	deploy := func(file string) plan {
		t.Helper()
		p := decoded[struct{ Data plan }](s, c.deploy(http.StatusAccepted, "/v1/apps/ledger/deploy", file)).Data
		s.says(c.follow("/v1/apps/ledger/events", "settled"), `"status":"Ready"`)
		return p
	}
	same := func(what string, got, want []string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	const kept, fixed, left, more = "kept 1 rwo local-path", "fixed 1 rwo local-path", "left 1 rwo local-path", "more 1 rwo local-path"
	c.post(http.StatusCreated, "/v1/apps", `{"id": "ledger"}`)
	deploy(ledger(kept, fixed, left, "grown 1 rwx ovh-csi-nfs"))
	for _, name := range []string{"kept", "fixed", "left", "grown"} {
		s.bound(s.ledgers(name))
	}
	theirs := s.ledgers("taken")
	theirs.Spec = corev1.PersistentVolumeClaimSpec{
		StorageClassName: &s.name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: size("1Gi")},
	}
	s.create(theirs)
	before := s.stands()

	larger := ledger(kept, fixed, "grown 2 rwx ovh-csi-nfs", more)
	want := []string{"keep kept 1-1", "keep fixed 1-1", "grow grown 1-2", "create more 0-1", "detach left 1-1"}
	same("planned", c.plans(larger).lines(), want)

	impossible := ledger(kept, strings.Replace(fixed, "1", "2", 1), "grown 2 rwx ovh-csi-nfs", "taken 1 rwo local-path")
	p := c.plans(impossible)
	same("planned what cannot be", p.lines(), []string{"keep kept 1-1", "refuse fixed 1-2", "grow grown 1-2", "refuse taken 0-1", "detach left 1-1"})
	reasons := []string{"storage class 'local-path' does not allow expansion", "volume 'taken' cannot be created: claim 'paas-app-ledger-taken' exists and does not belong to app 'ledger'; give the volume another name"}
	if !p.Refused || p.Changes[1].Message != reasons[0] || p.Changes[3].Message != reasons[1] {
		t.Errorf("refused: %t, for %+v, want %q", p.Refused, p.Changes, reasons)
	}
	s.fails(c.deploy(http.StatusUnprocessableEntity, "/v1/apps/ledger/deploy", impossible), "invalid", strings.Join(reasons, "\n"))
	for _, way := range c.ways() {
		_, said := way.runs(1, impossible, "app", "deploy", "--file", "-")
		s.says(said, append(reasons, "tarn: refused:\n")...)
	}
	if now := s.stands(); !maps.Equal(now, before) {
		t.Errorf("plans and refusals have changed %v to %v", before, now)
	}

	same("deployed", deploy(larger).lines(), want)
	s.bound(s.ledgers("more"))
	s.sized(s.resizedTo(s.ledgers("grown"), "2Gi"), "2Gi")
	s.says(c.get("/v1/apps/ledger/volumes"), fmt.Sprintf(`"name":"grown","pvc_name":"paas-app-ledger-grown","size_gi":2,"capacity_bytes":%d`, 2<<30))
	s.says(c.get("/v1/apps/ledger"), `"detached":[{"name":"left","pvc_name":"paas-app-ledger-left","size_gi":1,`)

	// No volume shrinks: the plan says that this part of the file has no effect.
	smaller := ledger(kept, fixed, "grown 1 rwx ovh-csi-nfs", more)
	before = s.stands()
	p = c.plans(smaller)
	for what, p := range map[string]plan{"planned": p, "deployed": deploy(smaller)} {
		same(what+" what is smaller", p.lines(), []string{"keep kept 1-1", "keep fixed 1-1", "keep grown 2-2", "keep more 1-1"})
		if !slices.Contains(p.Warnings, "volume 'grown' keeps its 2 GiB: the file asks for 1, and volumes never shrink") {
			t.Errorf("%s what is smaller, it warns of %q", what, p.Warnings)
		}
	}
	if now := s.stands(); !maps.Equal(now, before) {
		t.Errorf("a deploy of a smaller size has changed %v to %v", before, now)
	}
}

// ledgers is the claim of a volume of application ledger, with only its name.
func (s *scenario) ledgers(volume string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "paas-app-ledger-" + volume}}
}
