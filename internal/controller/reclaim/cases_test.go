package reclaim

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

// releasedWith is a world with a volume Released by claim ns/data of UID u1. It also has a claim of
// that name, with the given UID.
func releasedWith(t *testing.T, uid types.UID, changes ...testkit.With[*corev1.PersistentVolumeClaim]) *ending {
	t.Helper()
	v := viewOf(tarnv1.VolumeCreated, volumeIs(corev1.VolumeReleased, corev1.PersistentVolumeReclaimDelete, false))
	v.Record.Finalizers, v.Volume.Finalizers = []string{tarnv1.FinalizerRecord}, []string{kube.FinalizerExternalProvisioner}
	changes = append([]testkit.With[*corev1.PersistentVolumeClaim]{func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = v.Volume.Name }}, changes...)
	return endingOf(t, v.Record, v.Volume, v.Provisioner, testkit.Claim("ns", "data", uid, "prov", changes...))
}

func TestCase128AClaimThatIsThereKeepsItsReleasedVolume(t *testing.T) {
	e := releasedWith(t, "u1")
	for range 2 { // it retries, as no event of the volume reports the claim's end
		if err := e.look(); !errors.Is(err, errClaimThere) {
			t.Fatalf("got %v, want %v", err, errClaimThere)
		}
	}
	e.toldInUse("claim ns/data")
	said := meta.FindStatusCondition(e.status().Conditions, tarnv1.ConditionDeletable)
	if e.status().Phase != tarnv1.VolumeCreated || said == nil || said.Status != metav1.ConditionFalse || !strings.Contains(said.Message, "claim ns/data") {
		t.Errorf("status = %+v, want it Created, and the claim named", e.status())
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}}
	if err := e.store.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	if err := e.look(); err != nil || e.status().Phase != tarnv1.VolumeDeleting {
		t.Errorf("the claim gone, the record is %s, %v, want Deleting", e.status().Phase, err)
	}
}

// toldInUse checks that one Event about the volume and one about the record say why they wait.
func (e *ending) toldInUse(why string) {
	e.t.Helper()
	if n := len(e.events.Events); n != 2 {
		e.t.Fatalf("%d Events, want one of the volume and one of the record", n)
	}
	for range 2 {
		if told := <-e.events.Events; !strings.HasPrefix(told, "Normal "+eventInUse+" ") || !strings.Contains(told, why) {
			e.t.Errorf("told %q, want a Normal %s that says %q", told, eventInUse, why)
		}
	}
}

func TestCases122And127AStagedVolumeSaysOnceThatItIsInUse(t *testing.T) {
	t.Run("until the stage is gone", func(t *testing.T) {
		sayStaged(t, func(e *ending, stage *tarnv1.PavStage) error { return e.store.Delete(t.Context(), stage) })
	})
	// The status that a compromised node agent writes cannot delay the deletion.
	t.Run("until the stage is given up before any pod was sent", func(t *testing.T) {
		sayStaged(t, func(e *ending, stage *tarnv1.PavStage) error {
			stage.Status.Node = tarnv1.PavStageNodeStatus{Phase: tarnv1.StageStaged, Targets: []string{"/t"}}
			stage.Status.Pod.Phase = tarnv1.StagePodFailed
			return e.store.Update(t.Context(), stage)
		})
	})
}

func sayStaged(t *testing.T, end func(*ending, *tarnv1.PavStage) error) {
	t.Helper()
	v := viewOf(tarnv1.VolumeDeleting, withVolume(corev1.VolumeReleased, corev1.PersistentVolumeReclaimDelete))
	stage := &tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: tarnv1.PavStageSpec{VolumeName: v.Volume.Name, NodeName: "n1"}}
	e := endingOf(t, v.Record, v.Volume, v.Provisioner, stage)
	for range 2 {
		if err := e.look(); err != nil {
			t.Fatal(err)
		}
	}
	said := meta.FindStatusCondition(e.status().Conditions, tarnv1.ConditionDeletable)
	if e.status().Phase != tarnv1.VolumeDeleting || said == nil || said.Reason != reasonStaged || e.pods() > 0 {
		t.Errorf("status = %+v, %d pods, want it to wait", e.status(), e.pods())
	}
	e.toldInUse("node n1")
	if err := end(e, stage); err != nil {
		t.Fatal(err)
	}
	if err := e.look(); err != nil || e.pods() != 1 {
		t.Errorf("no more staged: %v, %d pods, want the deletion pod", err, e.pods())
	}
}

func TestCase133AnUnknownPolicyIsAnEventOfItsOwn(t *testing.T) {
	v := viewOf(tarnv1.VolumeCreated, volumeIs(corev1.VolumeReleased, "Burn", false))
	e := endingOf(t, v.Record, v.Volume, v.Provisioner)
	if err := e.look(); err != nil || e.pods() > 0 || e.status().Phase != tarnv1.VolumeCreated {
		t.Fatalf("%d pods, %s, %v, want it left alone", e.pods(), e.status().Phase, err)
	}
	if told := <-e.events.Events; !strings.Contains(told, eventUnknownPolicy) || !strings.Contains(told, `"Burn"`) {
		t.Errorf("told %q, want %s with the policy's name", told, eventUnknownPolicy)
	}
	// After Retain, Delete: the kept volume is deleted.
	vol := &corev1.PersistentVolume{}
	for _, c := range []struct {
		policy corev1.PersistentVolumeReclaimPolicy
		want   tarnv1.VolumePhase
	}{{corev1.PersistentVolumeReclaimRetain, tarnv1.VolumeCreated}, {corev1.PersistentVolumeReclaimDelete, tarnv1.VolumeDeleting}} {
		if err := e.store.Get(t.Context(), types.NamespacedName{Name: "pvc-u1"}, vol); err != nil {
			t.Fatal(err)
		}
		vol.Spec.PersistentVolumeReclaimPolicy = c.policy
		if err := e.store.Update(t.Context(), vol); err != nil {
			t.Fatal(err)
		}
		if err := e.look(); err != nil || e.status().Phase != c.want {
			t.Errorf("with policy %s the record is %s, %v, want %s", c.policy, e.status().Phase, err, c.want)
		}
	}
}

// No retention controller runs here, which would have held the volume.
func TestAReleasedVolumeIsKeptByARetentionWithoutTheTrash(t *testing.T) {
	set := &tarnv1.PersistentVolumeSet{
		ObjectMeta: metav1.ObjectMeta{Name: "pooled", Annotations: map[string]string{tarnv1.AnnotationRetention: "1h"}},
		Spec:       tarnv1.PersistentVolumeSetSpec{Selector: map[string]string{"pool": "a"}},
	}
	class := testkit.Class("prov", func(c *storagev1.StorageClass) { c.Annotations = map[string]string{tarnv1.AnnotationRetention: "1h"} })
	snapshot := apiextensionsv1.JSON{Raw: []byte(`{"metadata": {"name": "prov"}, "parameters": {"tarn.dev/retention": "1h"}}`)}
	for name, c := range map[string]struct {
		objects []client.Object
		change  func(*View)
	}{
		"of its class":                         {objects: []client.Object{class}},
		"of its class as it was, that is gone": {change: func(v *View) { v.Record.Spec.ClassSnapshot = snapshot }},
		"of its set":                           {objects: []client.Object{set}, change: func(v *View) { v.Volume.Labels = set.Spec.Selector }},
		"of its own":                           {change: func(v *View) { v.Volume.Annotations = set.Annotations }},
	} {
		t.Run(name, func(t *testing.T) {
			v := viewOf(tarnv1.VolumeCreated, volumeIs(corev1.VolumeReleased, corev1.PersistentVolumeReclaimDelete, false))
			v.Volume.Spec.StorageClassName = "prov"
			v.Volume.Status.LastPhaseTransitionTime = &metav1.Time{Time: now}
			if c.change != nil {
				c.change(v)
			}
			e := endingOf(t, append(c.objects, v.Record, v.Volume, v.Provisioner)...)
			result, err := e.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "pvc-u1"}})
			said := meta.FindStatusCondition(e.status().Conditions, tarnv1.ConditionDeletable)
			if err != nil || e.status().Phase != tarnv1.VolumeCreated || said == nil || said.Reason != reasonRetained || result.RequeueAfter != retentionLook {
				t.Fatalf("the record is %s, %+v, looked at again after %s, %v; want it Created, and why", e.status().Phase, said, result.RequeueAfter, err)
			}
			e.clock = testclock.NewFakePassiveClock(now.Add(time.Hour))
			if err := e.look(); err != nil || e.status().Phase != tarnv1.VolumeDeleting {
				t.Errorf("after an hour the record is %s, %v, want Deleting", e.status().Phase, err)
			}
		})
	}
}

func TestAVolumeWhoseRetentionTheCacheDoesNotHaveYetIsNotDeleted(t *testing.T) {
	e := releasedWith(t, "u2")
	vol := &corev1.PersistentVolume{}
	if err := e.store.Get(t.Context(), types.NamespacedName{Name: "pvc-u1"}, vol); err != nil {
		t.Fatal(err)
	}
	live := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(vol, &tarnv1.PersistentVolumeSet{
		ObjectMeta: metav1.ObjectMeta{Name: "all", Annotations: map[string]string{tarnv1.AnnotationRetention: "1h"}},
	}).Build()
	if err := live.Get(t.Context(), types.NamespacedName{Name: "pvc-u1"}, vol); err != nil {
		t.Fatal(err)
	}
	e.reader = live
	view := &View{Record: viewOf(tarnv1.VolumeCreated).Record, Volume: vol}
	if _, err := e.confirmReleased(t.Context(), view); !errors.Is(err, kube.ErrStale) {
		t.Errorf("got %v, want kube.ErrStale", err)
	}
}
