package cli

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

var (
	shopData  = client.ObjectKey{Namespace: "shop", Name: "data"}
	someNow   = time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
	deletable = corev1.PersistentVolumeReclaimDelete
)

// released is a volume whose claim shop/data has gone.
func released(changes ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	vol := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v"},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, StorageClassName: "fast",
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			ClaimRef:    &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "u"},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased},
	}
	for _, change := range changes {
		change(vol)
	}
	return vol
}

// inTrash is one that was held, and is kept until a time.
func inTrash(name string, until time.Time, changes ...func(*corev1.PersistentVolume)) corev1.PersistentVolume {
	return *released(append([]func(*corev1.PersistentVolume){func(vol *corev1.PersistentVolume) {
		vol.Name, vol.Spec.PersistentVolumeReclaimPolicy = name, deletable
		volume.Hold(vol, "1h")
		volume.Trash(vol, until)
	}}, changes...)...)
}

func TestWhatCannotBeBroughtBackSaysWhyAndWhatToDo(t *testing.T) {
	record := func(phase tarnv1.VolumePhase) *tarnv1.PavVolume {
		return testkit.Record(testkit.Claim("shop", "data", "u", "fast"), "fast", phase)
	}
	for _, c := range []struct {
		name   string
		vol    *corev1.PersistentVolume
		record *tarnv1.PavVolume
		target client.ObjectKey
		want   string
	}{
		{"one that is retained", released(), nil, shopData, ""},
		{"one of a PavProvisioner", released(), record(tarnv1.VolumeCreated), shopData, ""},
		{"one as another claim", released(), nil, client.ObjectKey{Namespace: "x", Name: "y"}, ""},
		{"one that is nobody's", released(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef, v.Status.Phase = nil, corev1.VolumeAvailable }), nil, shopData, ""},
		{"one reserved for the claim", released(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID, v.Status.Phase = "", corev1.VolumeAvailable }), nil, shopData, ""},
		{"one that is being deleted", released(func(v *corev1.PersistentVolume) { v.DeletionTimestamp = &metav1.Time{} }), nil, shopData, "is being deleted"},
		{"one whose storage is being destroyed", released(), record(tarnv1.VolumeDeleting), shopData, "PavVolume v is Deleting"},
		{"one that is bound", released(func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }), nil, shopData, "is Bound to claim shop/data"},
		{"one that failed", released(func(v *corev1.PersistentVolume) { v.Status.Phase, v.Status.Message = corev1.VolumeFailed, "disk full" }), nil, shopData, "disk full"},
		{"one whose time is over", released(func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = deletable }), nil, shopData, "its retention is over or it had none"},
		{"one that Kubernetes may be recycling", released(func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRecycle
		}), nil, shopData, "its data is gone, or is being deleted"},
		{"one that a claim is about to take", released(func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeAvailable }), nil, shopData, "is Available, not Released"},
		{"one reserved for another", released(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID, v.Spec.ClaimRef.Name = "", "other" }), nil, shopData, "reserved for claim shop/other"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := obstacle(c.vol, c.record, c.target)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestAClaimIsMadeOfTheBestThatIsKnown(t *testing.T) {
	lost := testkit.Claim("shop", "data", "u", "fast", func(c *corev1.PersistentVolumeClaim) {
		c.Labels = map[string]string{"app": "shop"}
		c.Annotations["owner"] = "me"
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "from"}
	})
	text, err := volume.RememberClaim(lost)
	if err != nil {
		t.Fatal(err)
	}
	remembered := released(func(v *corev1.PersistentVolume) { v.Annotations = map[string]string{tarnv1.AnnotationClaim: text} })
	record := testkit.Record(lost, "fast", tarnv1.VolumeCreated)
	record.Spec.ClaimSnapshot.Raw = []byte(`{"metadata":{"name":"data","labels":{"app":"old"},"annotations":{"pv.kubernetes.io/bind-completed":"yes","volume.kubernetes.io/selected-node":"n"}},"spec":{"resources":{"requests":{"storage":"1Gi"}}}}`)
	for _, c := range []struct {
		name      string
		vol       *corev1.PersistentVolume
		record    *tarnv1.PavVolume
		wantLabel string
		wantNotes int
		wantNote  string
	}{
		{"the trash before the record", remembered, record, "shop", 1, ""},
		{"the record before the volume", released(), record, "old", 0, ""},
		{"the volume alone", released(), nil, "", 0, "not known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			claim, note, err := claimFor(c.vol, c.record, client.ObjectKey{Namespace: "a", Name: "b"})
			if err != nil {
				t.Fatal(err)
			}
			size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
			if claim.Namespace != "a" || claim.Name != "b" || claim.Spec.VolumeName != "v" || claim.Spec.DataSource != nil || size.String() != "1Gi" {
				t.Errorf("claim = %+v", claim)
			}
			if claim.Labels["app"] != c.wantLabel || len(claim.Annotations) != c.wantNotes || (note == "") != (c.wantNote == "") || !strings.Contains(note, c.wantNote) {
				t.Errorf("labels %v, annotations %v, note %q; want app=%q, %d annotations, %q", claim.Labels, claim.Annotations, note, c.wantLabel, c.wantNotes, c.wantNote)
			}
		})
	}
}

func TestTheTrashListsWhatCanBeBroughtBack(t *testing.T) {
	volumes := []corev1.PersistentVolume{
		*released(),
		inTrash("late", someNow.Add(2*time.Hour)),
		inTrash("soon", someNow.Add(time.Hour)),
		inTrash("over", someNow.Add(-time.Second)),
		inTrash("guarded", someNow, func(v *corev1.PersistentVolume) { v.Labels[tarnv1.LabelDeletionProtection] = "true" }),
		inTrash("reserved", someNow, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "" }),
		inTrash("elsewhere", someNow, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Namespace = "other" }),
		inTrash("leaving", someNow, func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = deletable }),
		inTrash("in use", someNow, func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }),
	}
	var got []string
	for _, item := range trashItems(volumes, "shop", someNow) {
		got = append(got, item.Volume+": "+item.State+", then "+item.Then)
	}
	want := []string{
		"over: its time is over, then Delete", "guarded: in the trash, protected from deletion, then Delete",
		"soon: in the trash, then Delete", "late: in the trash, then Delete",
		"reserved: being brought back; to go on: tarn undelete volume reserved, then Delete", "v: retained by its policy, then Retain",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for i, want := range map[int]string{0: "not in the trash", 1: "", 3: "", 4: "protected", 5: "being brought back", 7: "not in the trash", 8: "not in the trash"} {
		if err := unpurgeable(&volumes[i]); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("purging %s: %v, want %q", volumes[i].Name, err, want)
		}
	}
}
