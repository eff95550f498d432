package cli

import (
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

var (
	shopData  = client.ObjectKey{Namespace: "shop", Name: "data"}
	someNow   = time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
	deletable = corev1.PersistentVolumeReclaimDelete
)

// released returns a volume whose claim shop/data is gone.
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

// inTrash returns a volume in the trash that is kept until a time.
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
		{"the volume alone", released(), nil, "", 0, "are unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			memory, err := memoryOf(c.vol, c.record)
			if err != nil {
				t.Fatal(err)
			}
			claim, note := claimFor(c.vol, memory, client.ObjectKey{Namespace: "a", Name: "b"})
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

// The user who deleted a namespace and the one who later created another of that name may be two
// tenants.
func TestAClaimComesBackToItsOwnNamespaceAlone(t *testing.T) {
	at := func(second int64) metav1.Time { return metav1.Unix(second, 0) }
	for _, c := range []struct {
		name      string
		namespace int64 // when it was created; the volume is of second 100
		claim     int64 // when the claim was, 0 for not known
		undeleted string
		change    func(*undelete)
		as        client.ObjectKey
		want      bool
	}{
		{name: "that of the claim", namespace: 10, claim: 90, want: true},
		{name: "that of the claim, of which only the volume is known", namespace: 10, want: true},
		{name: "that of a claim that took a spare", namespace: 200, claim: 210, want: true},
		{name: "one that was created later", namespace: 200, claim: 90},
		{name: "one that was created later, without a record", namespace: 200},
		{name: "one that was created later, if that is wanted", namespace: 200, claim: 90, change: func(u *undelete) { u.allowRecreated = true }, want: true},
		{name: "one that was created later, by its name", namespace: 200, claim: 90, as: shopData, want: true},
		{name: "one that was made to bring the claim back", namespace: 200, claim: 90, undeleted: "volume", want: true},
		{name: "one that was made to bring another volume back", namespace: 200, claim: 90, undeleted: "sibling", change: func(u *undelete) { u.mine = map[types.UID]bool{"sibling": true} }, want: true},
		{name: "one that claims to be so", namespace: 200, claim: 90, undeleted: "guessed"},
	} {
		lost := testkit.Claim("shop", "data", "u", "fast", func(c *corev1.PersistentVolumeClaim) { c.CreationTimestamp = metav1.Time{} })
		if c.claim != 0 {
			lost.CreationTimestamp = at(c.claim)
		}
		text, err := volume.RememberClaim(lost)
		if err != nil {
			t.Fatal(err)
		}
		vol := inTrash("v", someNow, func(v *corev1.PersistentVolume) {
			v.UID, v.CreationTimestamp, v.Annotations[tarnv1.AnnotationClaim] = "volume", at(100), text
		})
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", CreationTimestamp: at(c.namespace)}}
		if c.undeleted != "" {
			namespace.Annotations = map[string]string{tarnv1.AnnotationUndeleted: c.undeleted}
		}
		u := &undelete{client: fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(&vol, namespace).Build(), out: io.Discard, timeout: time.Nanosecond}
		if c.change != nil {
			c.change(u)
		}
		err = u.volume(t.Context(), "v", c.as) // nobody binds here
		claims := &corev1.PersistentVolumeClaimList{}
		if err := u.client.List(t.Context(), claims); err != nil {
			t.Fatal(err)
		}
		if made := len(claims.Items) == 1; made != c.want || !made && (err == nil || !strings.Contains(err.Error(), "--allow-recreated")) {
			t.Errorf("%s: the claim is made: %v, want %v (%v)", c.name, made, c.want, err)
		}
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
		"over: its retention has ended, then Delete", "guarded: in the trash, protected from deletion, then Delete",
		"soon: in the trash, then Delete", "late: in the trash, then Delete",
		"reserved: being restored; to continue: tarn undelete volume reserved, then Delete", "v: retained by its policy, then Retain",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for i, want := range map[int]string{0: "not in the trash", 1: "", 3: "", 4: "protected", 5: "being restored", 7: "not in the trash", 8: "not in the trash"} {
		if err := unpurgeable(&volumes[i]); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("purging %s: %v, want %q", volumes[i].Name, err, want)
		}
	}
}
