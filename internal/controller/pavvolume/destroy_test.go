package pavvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// try reconciles the volume of claim u1.
func (w *world) try() error {
	_, err := w.r.Reconcile(w.t.Context(), request("pvc-u1"))
	return err
}

// releasedWith is a world with a volume Released by claim ns/data of UID u1. It also has a claim of
// that name, with the given UID.
func releasedWith(t *testing.T, uid types.UID, changes ...testkit.With[*corev1.PersistentVolumeClaim]) *world {
	t.Helper()
	v := endingOf(tarnv1.VolumeCreated, volumeIs(corev1.VolumeReleased, corev1.PersistentVolumeReclaimDelete, false))
	v.Record.Finalizers, v.Volume.Finalizers = []string{tarnv1.FinalizerRecord}, []string{volume.FinalizerExternal}
	changes = append([]testkit.With[*corev1.PersistentVolumeClaim]{func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = v.Volume.Name }}, changes...)
	return newWorld(t, v.Record, v.Volume, v.Provisioner, testkit.Claim("ns", "data", uid, "prov", changes...))
}

func TestCase128AClaimThatIsThereKeepsItsReleasedVolume(t *testing.T) {
	w := releasedWith(t, "u1")
	for range 2 { // it retries, as no event of the volume reports the claim's end
		if err := w.try(); !errors.Is(err, errClaimThere) {
			t.Fatalf("got %v, want %v", err, errClaimThere)
		}
	}
	w.toldInUse("claim ns/data")
	if said := w.deletable(); w.status().Phase != tarnv1.VolumeCreated || said.Status != metav1.ConditionFalse || !strings.Contains(said.Message, "claim ns/data") {
		t.Errorf("status = %+v, want it Created, and the claim named", w.status())
	}
	w.must(w.store.Delete(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}}))
	if w.look("u1"); w.status().Phase != tarnv1.VolumeDeleting {
		t.Errorf("the claim gone, the record is %s, want Deleting", w.status().Phase)
	}
}

// toldInUse checks that one Event about the volume and one about the record say why they wait.
func (w *world) toldInUse(why string) {
	w.t.Helper()
	if n := len(w.events.Events); n != 2 {
		w.t.Fatalf("%d Events, want one of the volume and one of the record", n)
	}
	for range 2 {
		if told := <-w.events.Events; !strings.HasPrefix(told, "Normal "+eventInUse+" ") || !strings.Contains(told, why) {
			w.t.Errorf("told %q, want a Normal %s that says %q", told, eventInUse, why)
		}
	}
}

func TestCases122And127AStagedVolumeSaysOnceThatItIsInUse(t *testing.T) {
	for name, end := range map[string]func(*world, *tarnv1.PavStage) error{
		"until the stage is gone": func(w *world, stage *tarnv1.PavStage) error { return w.store.Delete(w.t.Context(), stage) },
		// The status that a compromised node agent writes cannot delay the deletion.
		"until the stage is given up before any pod was sent": func(w *world, stage *tarnv1.PavStage) error {
			stage.Status.Node = tarnv1.PavStageNodeStatus{Phase: tarnv1.StageStaged, Targets: []string{"/t"}}
			stage.Status.Pod.Phase = tarnv1.StagePodFailed
			return w.store.Update(w.t.Context(), stage)
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := endingOf(tarnv1.VolumeDeleting, withVolume(corev1.VolumeReleased, corev1.PersistentVolumeReclaimDelete))
			stage := &tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: tarnv1.PavStageSpec{VolumeName: v.Volume.Name, NodeName: "n1"}}
			w := newWorld(t, v.Record, v.Volume, v.Provisioner, stage)
			w.look("u1")
			w.look("u1")
			if w.status().Phase != tarnv1.VolumeDeleting || w.deletable().Reason != reasonStaged || len(w.pods()) > 0 {
				t.Errorf("status = %+v, %d pods, want it to wait", w.status(), len(w.pods()))
			}
			w.toldInUse("node n1")
			w.must(end(w, stage))
			if w.look("u1"); len(w.pods()) != 1 {
				t.Errorf("no more staged: %d pods, want the deletion pod", len(w.pods()))
			}
		})
	}
}

func TestCase133AnUnknownPolicyIsAnEventOfItsOwn(t *testing.T) {
	v := endingOf(tarnv1.VolumeCreated, volumeIs(corev1.VolumeReleased, "Burn", false))
	w := newWorld(t, v.Record, v.Volume, v.Provisioner)
	if w.look("u1"); len(w.pods()) > 0 || w.status().Phase != tarnv1.VolumeCreated {
		t.Fatalf("%d pods, %s, want it left alone", len(w.pods()), w.status().Phase)
	}
	if told := <-w.events.Events; !strings.Contains(told, eventUnknownPolicy) || !strings.Contains(told, `"Burn"`) {
		t.Errorf("told %q, want %s with the policy's name", told, eventUnknownPolicy)
	}
	// After Retain, Delete: the kept volume is deleted.
	for _, c := range []struct {
		policy corev1.PersistentVolumeReclaimPolicy
		want   tarnv1.VolumePhase
	}{{corev1.PersistentVolumeReclaimRetain, tarnv1.VolumeCreated}, {corev1.PersistentVolumeReclaimDelete, tarnv1.VolumeDeleting}} {
		vol := w.volume("u1")
		vol.Spec.PersistentVolumeReclaimPolicy = c.policy
		w.must(w.store.Update(t.Context(), vol))
		if w.look("u1"); w.status().Phase != c.want {
			t.Errorf("with policy %s the record is %s, want %s", c.policy, w.status().Phase, c.want)
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
			v := endingOf(tarnv1.VolumeCreated, volumeIs(corev1.VolumeReleased, corev1.PersistentVolumeReclaimDelete, false))
			v.Volume.Spec.StorageClassName = "prov"
			v.Volume.Status.LastPhaseTransitionTime = &metav1.Time{Time: now}
			if c.change != nil {
				c.change(v)
			}
			w := newWorld(t, append(c.objects, v.Record, v.Volume, v.Provisioner)...)
			result, said := w.look("u1"), w.deletable()
			if w.status().Phase != tarnv1.VolumeCreated || said.Reason != reasonRetained || result.RequeueAfter != retentionLook {
				t.Fatalf("the record is %s, %+v, looked at again after %s; want it Created, and why", w.status().Phase, said, result.RequeueAfter)
			}
			w.r.clock = testclock.NewFakePassiveClock(now.Add(time.Hour))
			if w.look("u1"); w.status().Phase != tarnv1.VolumeDeleting {
				t.Errorf("after an hour the record is %s, want Deleting", w.status().Phase)
			}
		})
	}
}

func TestAVolumeWhoseRetentionTheCacheDoesNotHaveYetIsNotDeleted(t *testing.T) {
	w := releasedWith(t, "u2")
	live := build(w.volume("u1"), &tarnv1.PersistentVolumeSet{
		ObjectMeta: metav1.ObjectMeta{Name: "all", Annotations: map[string]string{tarnv1.AnnotationRetention: "1h"}},
	})
	w.r.reader = live
	vol, err := kube.Get(t.Context(), live, types.NamespacedName{Name: "pvc-u1"}, &corev1.PersistentVolume{})
	w.must(err)
	v := endingOf(tarnv1.VolumeCreated, func(v *View) { v.Volume = vol })
	if err := w.r.confirmReleased(t.Context(), v); !errors.Is(err, kube.ErrStale) {
		t.Errorf("got %v, want kube.ErrStale", err)
	}
}

func TestAVolumeIsNotDeletedAsLongAsAClaimNamesIt(t *testing.T) {
	drawn := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "data", UID: "u2"}}
	drawn.Spec.VolumeName, drawn.Status.Phase = "pvc-u1", corev1.ClaimBound
	made := testkit.Claim("ns", "data", "u1", "prov")
	made.Spec.VolumeName, made.Status.Phase = "pvc-u1", corev1.ClaimBound
	for _, c := range []struct {
		name   string
		phase  tarnv1.VolumePhase
		volume func(*corev1.PersistentVolume) // nil if it was removed by force
		claim  *corev1.PersistentVolumeClaim
	}{
		{"its claimRef was cleared under the claim it was made for", tarnv1.VolumeCreated, available, made},
		{"its claimRef was cleared under a claim that has drawn it", tarnv1.VolumeCreated, available, drawn},
		{"its claimRef was cleared while it was being deleted", tarnv1.VolumeDeleting, available, drawn},
		{"it was removed by force, and its record is deleted", tarnv1.VolumeCreated, nil, drawn},
		{"it was removed by force while it was being deleted", tarnv1.VolumeDeleting, nil, drawn},
	} {
		t.Run(c.name, func(t *testing.T) {
			record := ending(c.phase, "h")
			objects := []client.Object{record, c.claim.DeepCopy(), testkit.Provisioner("prov")}
			if c.volume != nil {
				vol := testkit.Volume(record)
				c.volume(vol)
				objects = append(objects, vol)
			} else {
				record.DeletionTimestamp, record.Finalizers = &metav1.Time{Time: now}, []string{tarnv1.FinalizerRecord}
			}
			w := newWorld(t, objects...)
			for range 3 {
				if err := w.try(); !errors.Is(err, errClaimThere) {
					t.Errorf("looked: %v, want to be asked again", err)
				}
			}
			told := w.deletable()
			if w.status().Phase != c.phase || len(w.pods()) > 0 || told.Reason != reasonClaimThere || !strings.Contains(told.Message, c.claim.Namespace+"/data") {
				t.Fatalf("the record is %s, %d pods, condition %+v", w.status().Phase, len(w.pods()), told)
			}
			w.must(w.store.Delete(t.Context(), c.claim.DeepCopy()))
			w.look("u1")
			w.look("u1")
			if len(w.pods()) != 1 {
				t.Errorf("%d deletion pods when the claim is gone, want 1", len(w.pods()))
			}
		})
	}
}

// available makes a volume one without a claimRef that is being deleted.
func available(vol *corev1.PersistentVolume) {
	vol.Spec.ClaimRef, vol.Status.Phase = nil, corev1.VolumeAvailable
	vol.DeletionTimestamp, vol.Finalizers = &metav1.Time{Time: now}, []string{"kubernetes.io/pv-protection"}
}

// goesInOrder reconciles until the volume is gone. It checks the order: the deletion pod ends, the
// volume is deleted, its finalizer is removed, the record is deleted.
func (w *world) goesInOrder(number string) {
	w.t.Helper()
	var gone []string // without pods
	w.through(interceptor.NewClient(w.store, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			o.SetCreationTimestamp(metav1.NewTime(now)) // there is no API server to set it
			return c.Create(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if _, pod := o.(*corev1.Pod); !pod {
				gone = append(gone, fmt.Sprintf("%T", o))
			}
			return c.Delete(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if _, vol := o.(*corev1.PersistentVolume); vol && !slices.Contains(o.GetFinalizers(), volume.FinalizerExternal) {
				gone = append(gone, "finalizer")
			}
			return c.Patch(ctx, o, patch, opts...)
		},
	}))
	w.settle()
	if w.status().Phase != tarnv1.VolumeDeleting || len(w.pods()) != 1 || len(gone) > 0 {
		w.t.Fatalf("%s: the record is %s, %d pods, and %q has gone; want its deletion pod alone", number, w.status().Phase, len(w.pods()), gone)
	}
	pod := w.pods()[0]
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, tarnv1.AnnotationResult, `{"succeeded": true}`)
	w.must(w.store.Update(w.t.Context(), &pod))
	pod.Status.Phase = corev1.PodSucceeded // the kubelet's status alone says that a deletion is done
	w.must(w.store.Status().Update(w.t.Context(), &pod))
	w.look("u1")
	if want := []string{"*v1.PersistentVolume", "finalizer", "*v1alpha1.PavVolume"}; !slices.Equal(gone, want) {
		w.t.Errorf("%s: after the storage has gone %q, want %q", number, gone, want)
	}
	if w.record("u1") != nil || w.volume("u1") != nil {
		w.t.Errorf("%s: record %v, volume %v", number, w.record("u1"), w.volume("u1"))
	}
}

func TestAReleasedVolumeGoesWhateverClaimHasTheName(t *testing.T) {
	for _, c := range []struct {
		name string
		uid  types.UID
		has  string
	}{
		{"cases 122 and 129: one that is made anew, and has another volume", "u2", "pvc-u2"},
		{"case 46: one that names the volume, which has the uid of another cluster", "u2", "pvc-u1"},
		{"case 46: one that waits", "u2", ""},
		{"cases 76 and 115: the very claim, with another volume", "u1", "other"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := releasedWith(t, c.uid, func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = c.has })
			w.goesInOrder(c.name)
			claim := &corev1.PersistentVolumeClaim{}
			if err := w.store.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "data"}, claim); err != nil || claim.Spec.VolumeName != c.has {
				t.Errorf("the claim is %+v, %v, want it left alone", claim, err)
			}
		})
	}
}
