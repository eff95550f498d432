//go:build e2e

package e2e

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// allSteps are the five steps of a dynamic volume, in order.
var allSteps = []tarn.Step{tarn.StepValidation, tarn.StepCreation, tarn.StepStaging, tarn.StepUnstaging, tarn.StepDeletion}

// dynamicLife takes a volume of five sections through its whole life. It is made for a claim, its
// class is deleted before use, a pod reads it, and everything is deleted. It returns the claim.
func (s *scenario) dynamicLife() *corev1.PersistentVolumeClaim {
	s.t.Helper()
	s.fiveSections()
	class := s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	s.delete(class)
	pod := s.consumer("reader", claim.Name, readsBoth(claim.Name))
	s.succeeded(pod)
	s.unmarked(pod)
	s.unmarked(claim)
	s.remove(pod)
	s.remove(claim)
	s.remove(&pav.PavProvisioner{ObjectMeta: named(s.name)})
	return claim
}

// logged checks that the log of a component, filtered by a UID, has lines with these words, in this
// order.
func (s *scenario) logged(component, uid string, want ...[]string) {
	s.t.Helper()
	if !suite.machine.here() {
		return
	}
	var lines []string
	for line := range strings.Lines(suite.machine.log(component, math.MaxInt)) {
		if strings.Contains(line, uid) {
			lines = append(lines, line)
		}
	}
	at := 0
	for _, words := range want {
		found := slices.IndexFunc(lines[at:], func(line string) bool { return containsAll(line, words) })
		if found < 0 {
			s.t.Fatalf("the log of %s has no line with %q after line %d of those with %s:\n%s", component, words, at, uid, strings.Join(lines, ""))
		}
		at += found + 1
	}
}

// unmarked wants a user's object to carry no marks of Tarn.
func (s *scenario) unmarked(o client.Object) {
	s.t.Helper()
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(o), o); err != nil {
		s.t.Fatal(err)
	}
	marks := slices.Concat(o.GetFinalizers(), slices.Collect(maps.Keys(o.GetLabels())), slices.Collect(maps.Keys(o.GetAnnotations())))
	for _, mark := range marks {
		if strings.Contains(mark, tarn.Group) {
			s.t.Errorf("%s carries %s, which is Tarn's", describe(o), mark)
		}
	}
}

func TestADynamicVolumeLivesThroughItsFiveSections(t *testing.T) {
	t.Parallel()
	s := begin(t, "dynamic")
	claim := s.dynamicLife()
	for _, step := range allSteps {
		s.ran(step, 1)
	}
	record, pod := `"kind":"PavVolume"`, `"kind":"Pod"`
	s.logged(controller, string(claim.UID),
		[]string{`"msg":"create"`, record},
		[]string{`"msg":"create"`, pod, "validation"},
		[]string{`"msg":"create"`, pod, "creation"},
		[]string{`"msg":"create"`, `"kind":"PersistentVolume"`},
		[]string{`"msg":"update status"`, record, `"Provisioned":"True Provisioned`},
		[]string{`"msg":"create"`, pod, "staging"},
		[]string{`"msg":"create"`, pod, "unstaging"},
		[]string{`"msg":"create"`, pod, "deletion"},
		[]string{`"msg":"delete"`, `"kind":"PersistentVolume"`},
		[]string{`"msg":"delete"`, record})
	if n := suite.news.of(s.name).stages; n != 1 {
		t.Errorf("saw %d stages, want 1", n)
	}
}

func TestAStaticVolumeOutlivesItsClaimAndProvisioner(t *testing.T) {
	t.Parallel()
	s := begin(t, "static")
	s.fiveSections()
	volume := s.example("static/volume.yaml")
	volume.SetName(s.name)
	set(t, volume, s.name, "spec", "csi", "driver")
	s.create(volume)
	t.Cleanup(func() { s.deleteIfThere(volume) })
	unbound := s.example("static/claim.yaml")
	unbound.SetNamespace(s.name)
	set(t, unbound, s.name, "spec", "volumeName")
	s.create(unbound)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: named("static")}
	claim.Namespace = s.name
	claim = s.bound(claim)

	pod := s.consumer("reader", claim.Name, readsBoth(claim.Name))
	s.succeeded(pod)
	s.remove(pod)
	s.remove(claim)
	s.remove(&pav.PavProvisioner{ObjectMeta: named(s.name)})

	kept := &corev1.PersistentVolume{ObjectMeta: named(s.name)}
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(kept), kept); err != nil {
		t.Fatalf("the static volume is gone with its claim and provisioner: %v", err)
	}
	if kept.DeletionTimestamp != nil {
		t.Errorf("somebody has requested the deletion of the static volume")
	}
	s.remove(kept)
	s.ran(tarn.StepValidation, 1)
	seen := suite.news.of(s.name)
	for _, step := range []tarn.Step{tarn.StepCreation, tarn.StepDeletion} {
		if seen.pods[step] > 0 {
			t.Errorf("saw %d pods for %s of a static volume, want none", seen.pods[step], step)
		}
	}
}

func set(t *testing.T, o *unstructured.Unstructured, value string, path ...string) {
	t.Helper()
	if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
		t.Fatal(err)
	}
}

func TestTheHelloWorldExampleWorksAsItIs(t *testing.T) {
	t.Parallel()
	s := begin(t, "hello")
	var made []client.Object
	for _, file := range []string{"1-provisioner", "2-class", "3-claim", "4-pod"} {
		o := s.example("hello-world/" + file + ".yaml")
		s.create(o)
		made = append(made, o)
	}
	t.Cleanup(func() {
		for _, o := range made {
			s.deleteIfThere(o)
		}
	})
	pod := &corev1.Pod{ObjectMeta: named("hello-world")}
	pod.Namespace = "default"
	s.ready(pod)
	s.prints(pod, "Hello, hello-world! I am volume pvc-")
	s.remove(pod)
	for _, o := range []client.Object{made[2], made[1], made[0]} {
		s.delete(o)
		s.gone(o)
	}
	if suite.machine.here() {
		t.Run("and the page for a start does what it says", followsThePageForAStart)
	}
}

func TestAProvisionerInUseIsDeletedAfterItsVolumes(t *testing.T) {
	t.Parallel()
	s := begin(t, "deletion")
	s.fiveSections()
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	provisioner := &pav.PavProvisioner{ObjectMeta: named(s.name)}
	s.delete(provisioner)

	// From now on the provisioner serves neither a new claim nor a new staging, and reports that.
	second := s.claim("second")
	s.told(second, "ProvisioningFailed", s.name, "delet")
	pod := s.consumer("reader", claim.Name, "true")
	s.told(pod, "FailedMount", s.name, "delet")
	s.remove(pod)
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(provisioner), provisioner); err != nil {
		t.Fatalf("the provisioner of a volume that exists: %v", err)
	}
	if phase := s.phase(second); phase != corev1.ClaimPending {
		t.Errorf("the claim made after the deletion request is %s, want Pending", phase)
	}

	// A claim that was never served does not keep the provisioner.
	s.remove(claim)
	s.gone(provisioner)
	if seen := suite.news.of(s.name); seen.pods[tarn.StepStaging] > 0 {
		t.Errorf("saw %d staging pods, want none", seen.pods[tarn.StepStaging])
	}
	s.remove(second)
}

// phase gives the present phase of a claim.
func (s *scenario) phase(claim *corev1.PersistentVolumeClaim) corev1.PersistentVolumeClaimPhase {
	s.t.Helper()
	now := claim.DeepCopy()
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(now), now); err != nil {
		s.t.Fatal(err)
	}
	return now.Status.Phase
}
