package kube

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

func handlesIn(objects ...client.Object) client.Client {
	return fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(objects...).
		WithIndex(&corev1.PersistentVolume{}, VolumesByHandle, HandleOf).
		WithIndex(&tarnv1.PavVolume{}, RecordsByHandleAwaited, HandleAwaited).
		WithIndex(&tarnv1.PavVolume{}, "status.handle", func(o client.Object) []string { return []string{o.(*tarnv1.PavVolume).Status.Handle} }).
		Build()
}

// recordOf is the record of the claim with that UID, with handle "a" of driver "shelf".
func recordOf(uid types.UID, phase tarnv1.VolumePhase) *tarnv1.PavVolume {
	r := &tarnv1.PavVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(uid)}}
	r.Spec.Provisioner.Name = "shelf"
	r.Spec.Claim = tarnv1.ClaimReference{Namespace: "ns", Name: string(uid), UID: uid}
	r.Status.Phase, r.Status.Handle = phase, "a"
	return r
}

// handed marks a record whose PersistentVolume was written.
func handed(r *tarnv1.PavVolume) *tarnv1.PavVolume {
	meta.SetStatusCondition(&r.Status.Conditions, metav1.Condition{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionTrue, Reason: "Provisioned"})
	return r
}

// volumeFor is the PersistentVolume of a record, with policy Delete.
func volumeFor(r *tarnv1.PavVolume, changes ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	vol := sharedVolume(r.Name, "1Gi")
	vol.Spec.CSI.Driver, vol.Spec.CSI.VolumeHandle = "shelf", "a"
	vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	vol.Spec.ClaimRef = referenceTo(r.Spec.Claim.Name, string(r.Spec.Claim.UID))
	for _, change := range changes {
		change(vol)
	}
	return vol
}

func TestAHandleIsLetGoByWhatIsBeingDeleted(t *testing.T) {
	const created, deleting = tarnv1.VolumeCreated, tarnv1.VolumeDeleting
	claim := claimOf("u1", "", corev1.ClaimPending)
	goes := func(vol *corev1.PersistentVolume) {
		vol.DeletionTimestamp, vol.Finalizers = &metav1.Time{Time: metav1.Now().Time}, []string{volume.FinalizerExternal}
	}
	retain := func(vol *corev1.PersistentVolume) {
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	kept := handed(recordOf("u1", created))
	meta.SetStatusCondition(&kept.Status.Conditions, metav1.Condition{Type: tarnv1.ConditionDeletable, Status: metav1.ConditionFalse, Reason: "Retained"})
	lost := handed(recordOf("u1", created))
	lost.DeletionTimestamp, lost.Finalizers = &metav1.Time{Time: metav1.Now().Time}, []string{tarnv1.FinalizerRecord}
	for _, c := range []struct {
		name    string
		objects []client.Object
		want    string // "" for no holder
		going   bool
	}{
		{"a record that waits for the handle has nothing", []client.Object{recordOf("u1", tarnv1.VolumePending)}, "", false},
		{"nor while it is validated", []client.Object{recordOf("u1", tarnv1.VolumeValidating)}, "", false},
		{"nor one that is disputed", []client.Object{recordOf("u1", tarnv1.VolumeDisputed)}, "", false},
		{"a creation for a claim that is there", []client.Object{recordOf("u1", tarnv1.VolumeCreating), claim}, `PavVolume "pvc-u1" of claim ns/u1`, false},
		{"a creation whose claim is gone", []client.Object{recordOf("u1", tarnv1.VolumeCreating)}, `PavVolume "pvc-u1" of claim ns/u1`, true},
		{"a volume that is made for a claim that is there", []client.Object{recordOf("u1", created), claim}, `PavVolume "pvc-u1" of claim ns/u1`, false},
		{"a volume that is made, and its claim is gone", []client.Object{recordOf("u1", created)}, `PavVolume "pvc-u1" of claim ns/u1`, true},
		{"one that is undone", []client.Object{recordOf("u1", tarnv1.VolumeUndoing), claim}, `PavVolume "pvc-u1" of claim ns/u1`, true},
		{"one that is being deleted", []client.Object{recordOf("u1", deleting), volumeFor(recordOf("u1", deleting))}, `PersistentVolume "pvc-u1"`, true},
		{"one whose PersistentVolume is gone already", []client.Object{recordOf("u1", deleting)}, `PavVolume "pvc-u1" of claim ns/u1`, true},
		{"a bound volume", []client.Object{handed(recordOf("u1", created)), volumeFor(recordOf("u1", created)), claim}, `PersistentVolume "pvc-u1"`, false},
		{"a volume whose claim is gone, before anybody says so", []client.Object{handed(recordOf("u1", created)), volumeFor(recordOf("u1", created))}, `PersistentVolume "pvc-u1"`, true},
		{"a claim of the same name is another", []client.Object{handed(recordOf("u1", created)), volumeFor(recordOf("u1", created), func(vol *corev1.PersistentVolume) { vol.Spec.ClaimRef.UID = "u0" }), claim}, `PersistentVolume "pvc-u1"`, true},
		{"a volume of policy Retain stays", []client.Object{handed(recordOf("u1", created)), volumeFor(recordOf("u1", created), retain)}, `PersistentVolume "pvc-u1"`, false},
		{"so does its storage when it is deleted", []client.Object{handed(recordOf("u1", created)), volumeFor(recordOf("u1", created), retain, goes)}, `PersistentVolume "pvc-u1"`, false},
		{"a volume that somebody deletes", []client.Object{handed(recordOf("u1", created)), volumeFor(recordOf("u1", created), goes), claim}, `PersistentVolume "pvc-u1"`, true},
		{"a volume that a retention keeps", []client.Object{kept, volumeFor(kept)}, `PersistentVolume "pvc-u1"`, false},
		{"a volume that is free for another claim", []client.Object{handed(recordOf("u1", created)), volumeFor(recordOf("u1", created), func(vol *corev1.PersistentVolume) { vol.Spec.ClaimRef = nil })}, `PersistentVolume "pvc-u1"`, false},
		{"a volume that was removed by force", []client.Object{handed(recordOf("u1", created))}, `PavVolume "pvc-u1" of claim ns/u1`, false},
		{"one whose record is deleted then", []client.Object{lost}, `PavVolume "pvc-u1" of claim ns/u1`, true},
		{"a volume written by hand", []client.Object{volumeFor(recordOf("u1", created))}, `PersistentVolume "pvc-u1"`, false},
		{"one that is deleted, whose storage stays", []client.Object{volumeFor(recordOf("u1", created), goes)}, `PersistentVolume "pvc-u1"`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := handlesIn(c.objects...)
			holders, err := Handles{Cached: store, Live: store}.Holders(t.Context(), "shelf", "a", "pvc-mine")
			switch {
			case err != nil:
				t.Error(err)
			case c.want == "" && len(holders) > 0:
				t.Errorf("holders %+v, want none", holders)
			case c.want != "" && (len(holders) != 1 || holders[0].String() != c.want || holders[0].Name != "pvc-u1" || holders[0].Going != c.going):
				t.Errorf("holders %+v, want %s, going %v", holders, c.want, c.going)
			}
		})
	}
}

func TestWhatHappensToAHandleWakesThoseThatWaitForIt(t *testing.T) {
	self := recordOf("self", tarnv1.VolumeUndoing)
	unnamed := recordOf("unnamed", tarnv1.VolumeUndoing)
	unnamed.Status.Handle = ""
	fresh := recordOf("fresh", tarnv1.VolumePending)
	fresh.Status.Handle = ""
	cached := handlesIn(self, unnamed, fresh,
		recordOf("pending", tarnv1.VolumePending), recordOf("validating", tarnv1.VolumeValidating), recordOf("deleting", tarnv1.VolumeDeleting),
		recordOf("creating", tarnv1.VolumeCreating), recordOf("created", tarnv1.VolumeCreated), recordOf("disputed", tarnv1.VolumeDisputed))
	byHand := volumeFor(recordOf("u1", ""))
	byHand.Spec.CSI.VolumeHandle = "pvc-unnamed"
	elsewhere := volumeFor(recordOf("u1", ""))
	elsewhere.Spec.CSI.Driver = "other"
	for _, c := range []struct {
		name string
		what client.Object
		want []string
	}{
		{"a record, but itself", self, []string{"pvc-deleting", "pvc-pending", "pvc-validating"}},
		{"a volume", volumeFor(recordOf("u1", "")), []string{"pvc-deleting", "pvc-pending", "pvc-self", "pvc-validating"}},
		{"one with the handle that another would have had", byHand, []string{"pvc-unnamed"}},
		{"that of another driver", elsewhere, nil},
		{"one that is not a CSI volume", &corev1.PersistentVolume{}, nil},
	} {
		var want []reconcile.Request
		for _, name := range c.want {
			want = append(want, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		}
		if got := HandleWaiters(t.Context(), cached, c.what); !slices.Equal(got, want) {
			t.Errorf("%s: it wakes %v, want %v", c.name, got, want)
		}
	}
}

// indexing is a manager that accepts each index only once, like a real one.
type indexing struct {
	ctrl.Manager
	added []string
	fails bool
}

func (m *indexing) GetFieldIndexer() client.FieldIndexer { return m }

func (m *indexing) IndexField(_ context.Context, _ client.Object, field string, _ client.IndexerFunc) error {
	if m.fails || slices.Contains(m.added, field) {
		return errors.New("indexer conflict: " + field)
	}
	m.added = append(m.added, field)
	return nil
}

func TestControllersOfOneManagerShareTheirIndexes(t *testing.T) {
	m := &indexing{fails: true}
	mgr := Shared(m)
	if IndexClaims(t.Context(), mgr) == nil {
		t.Error("an index that could not be added was taken for one that is there")
	}
	m.fails = false
	for range 3 {
		if err := errors.Join(IndexClaims(t.Context(), mgr), IndexHandles(t.Context(), mgr)); err != nil {
			t.Error(err)
		}
	}
	if want := []string{ClaimsByVolume, VolumesByHandle}; !slices.Equal(m.added, want) {
		t.Errorf("added %q, want %q", m.added, want)
	}
	own := func() error { return mgr.GetFieldIndexer().IndexField(t.Context(), &corev1.Pod{}, "own", nil) }
	if err := own(); err != nil {
		t.Error(err)
	}
	if own() == nil {
		t.Error("two controllers with an index of one name of their own were not told")
	}
}
