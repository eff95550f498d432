package explain

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// A volume may name a claim that it can never be bound to. The binder is not to blame for that.
func TestAVolumeThatIsForAClaimMayNotFitIt(t *testing.T) {
	made := func(changes ...func(*world)) *world {
		return with(newWorld().bound(), func(w *world) {
			w.claim.Spec.VolumeName, w.claim.Status.Phase, w.volume.Status.Phase = "", corev1.ClaimPending, corev1.VolumePending
			for _, change := range changes {
				change(w)
			}
		})
	}
	small := func(w *world) {
		w.volume.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	}
	other := func(w *world) { w.volume.Spec.VolumeAttributesClassName = new("gold") }
	doomed := func(w *world) { w.volume.DeletionTimestamp = &began }
	free := func(w *world) { w.volume.Status.Phase, w.volume.Spec.ClaimRef.UID = corev1.VolumeAvailable, "" }
	const vain, anew = "claim shop/data is Pending: the volume that was made for it does not fit it: volume \"pvc-claim-uid\" ", "when the claim is created again"
	const reserved = "it is reserved for claim shop/data, which it does not fit: volume \"pvc-claim-uid\" has 1Mi, the claim asks for 1Gi"
	for _, c := range []answer{
		{"it is too small", made(small), vain + "has 1Mi, the claim asks for 1Gi", "when its provisioner makes what the claim requests", ""},
		{"it has another attributes class", made(other), vain + "has volumeAttributesClassName \"gold\", the claim asks for \"\"", "when its provisioner makes", ""},
		{"it is being deleted", made(doomed), vain + "is being deleted", anew, "kubectl -n shop get pvc data -o yaml | kubectl patch --local -f - --type=merge -o yaml -p '{}' | kubectl replace --force -f -"},
		{"it fits", made(), "volume pvc-claim-uid is reserved for it, but no binder responds", "when a binder runs", ""},
		{"the volume was asked for", made(small).askedVolume(), "volume pvc-claim-uid is Pending: " + reserved, anew, ""},
		{"it is reserved by name", made(small, free).askedVolume(), "volume pvc-claim-uid is Available: " + reserved, anew, ""},
	} {
		t.Run(c.name, c.check)
	}
	if e := chain(made(free).askedVolume().view); !e.Healthy {
		t.Errorf("one that fits and is reserved by name: %s", e.Verdict)
	}
}

func TestAVolumeThatIsReservedForAClaimCameNearest(t *testing.T) {
	reserved := func(vol *corev1.PersistentVolume) {
		vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data"}
		vol.Spec.StorageClassName = "another"
	}
	w := with(newWorld(), func(w *world) {
		w.class.Provisioner, w.claim.Annotations, w.volumeView.Provisioner = noProvisioner, nil, nil
		w.claimView.Candidates = []corev1.PersistentVolume{freeVolume("large", "100Mi"), freeVolume("reserved", "1Mi", reserved), freeVolume("zero", "200Mi")}
		w.nearest()
	})
	answer{"", w, "its class gold makes no volumes, and no free one fits", "when a free PersistentVolume of class gold fits", `{"spec":{"resources":{"requests":{"storage":"1Mi"}}}}`}.check(t)
	if e := chain(w.view); !told(e, Volume, `it is reserved for the claim, which it does not fit: volume "reserved" has 1Mi, the claim asks for 1Gi`) {
		t.Errorf("it is not told that it is reserved: %+v", e.Links)
	}
	of := func(names ...string) *claimView {
		c := w.claimView
		c.Candidates = nil
		for _, name := range names {
			vol := freeVolume(name, map[string]string{"large": "100Mi", "half": "512Mi", "small": "1Mi", "fits": "2Gi"}[name])
			if name != "large" {
				reserved(&vol)
			}
			c.Candidates = append(c.Candidates, vol)
		}
		return c
	}
	for _, c := range []struct {
		of   []string
		want string
	}{
		{[]string{"large", "small", "half"}, "half"},
		{[]string{"half", "small", "large"}, "half"},
		{[]string{"small", "fits", "half"}, "fits"},
	} {
		if vol, _ := of(c.of...).nearestVolume(); vol == nil || vol.Name != c.want {
			t.Errorf("of %v the nearest is %v, want %s", c.of, vol, c.want)
		}
	}
}

// Of other claims' volumes, those of another class, with other labels or too small come last.
func TestOfVolumesThatAreOthersTheOneThatWouldFitCameNearest(t *testing.T) {
	taken := func(vol *corev1.PersistentVolume) {
		vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "theirs", UID: "their-uid"}
		vol.Status.Phase = corev1.VolumeBound
	}
	another := func(vol *corev1.PersistentVolume) { vol.Spec.StorageClassName = "another" }
	ssd := map[string]string{"disk": "ssd"}
	volumes := map[string]corev1.PersistentVolume{
		"another": freeVolume("another", "2Gi", taken, another),
		"fits":    freeVolume("fits", "2Gi", taken),
		"large":   freeVolume("large", "512Mi", taken),
		"small":   freeVolume("small", "1Mi", taken),
		"ssd":     freeVolume("ssd", "2Gi", taken, func(vol *corev1.PersistentVolume) { vol.Labels = ssd }),
	}
	for _, c := range []struct {
		of   []string
		want string
		told string
		// selects is the selector of the claim; nil for none.
		selects map[string]string
	}{
		{[]string{"another", "small", "large"}, "large", `belongs to claim shop/theirs; nor would it fit: volume "large" has 512Mi, the claim asks for 1Gi`, nil},
		{[]string{"large", "fits", "another"}, "fits", `volume "fits" belongs to claim shop/theirs`, nil},
		{[]string{"another"}, "another", `belongs to claim shop/theirs; nor would it fit: volume "another" has class "another", the claim asks for "gold"`, nil},
		{[]string{"fits", "ssd"}, "ssd", `volume "ssd" belongs to claim shop/theirs`, ssd},
		{[]string{"large", "fits"}, "fits", `belongs to claim shop/theirs; nor would it fit: the labels of volume "fits" do not match the claim's selector`, ssd},
	} {
		w := with(newWorld(), func(w *world) {
			w.class.Provisioner, w.claim.Annotations, w.volumeView.Provisioner = noProvisioner, nil, nil
			if c.selects != nil {
				w.claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: c.selects}
			}
			for _, name := range c.of {
				w.claimView.Candidates = append(w.claimView.Candidates, volumes[name])
			}
			w.nearest()
		})
		if e := chain(w.view); !told(e, Volume, c.told) || !told(e, Volume, fmt.Sprintf("came nearest: volume %q", c.want)) {
			t.Errorf("of %v it is not told that %s %s: %+v", c.of, c.want, c.told, e.Links)
		}
	}
}

// A volume that was deleted by hand waits for the same as any other.
func TestAVolumeThatIsToGoWaitsForTheEndOfItsStorage(t *testing.T) {
	ends := func(changes ...func(*world)) *world {
		return released(corev1.PersistentVolumeReclaimDelete, append(changes, func(w *world) {
			w.volumeView.Claim = nil
			doomed(w, volume.FinalizerExternal)
		})...)
	}
	attached := func(w *world) {
		w.volumeView.Events = []corev1.Event{{Reason: "VolumeFailedDelete", Message: "still attached", LastTimestamp: began}}
	}
	theirs := func(w *world) {
		w.volumeView.Record, w.volumeView.Provisioner = nil, nil
		delete(w.volume.Annotations, tarnv1.AnnotationRecord)
	}
	for _, c := range []answer{
		{"the driver says why", ends(theirs, attached), "volume pvc-claim-uid is Terminating: its storage could not be destroyed: still attached", "when its provisioner retries; last tried", ""},
		{"the driver says nothing", ends(theirs), "claim shop/data is gone, and gold has not destroyed the storage yet", "when it is destroyed by gold", ""},
		{"no controller runs", ends(func(w *world) { w.view.Controller = nil }), "claim shop/data is gone, and its storage has to be destroyed", "when tarn controller runs", ""},
		{"it is protected", ends(func(w *world) { w.volume.Labels = map[string]string{tarnv1.LabelDeletionProtection: "true"} }),
			"its storage is not destroyed, as the volume's label " + tarnv1.LabelDeletionProtection + " protects it", "when the label is gone", "kubectl label pv pvc-claim-uid " + tarnv1.LabelDeletionProtection + "-"},
		{"it may be in use", ends(func(w *world) {
			w.record.Status.Conditions = append(w.record.Status.Conditions, metav1.Condition{Type: tarnv1.ConditionDeletable, Status: metav1.ConditionFalse, Reason: "InUse", Message: "pod shop/web may use it"})
		}), "its storage is not destroyed yet: pod shop/web may use it", "when that is no longer true", ""},
	} {
		t.Run(c.name, c.check)
	}
	kept := with(ends(theirs), func(w *world) { w.volume.Finalizers = append(w.volume.Finalizers, "example.org/backup") })
	if e := chain(kept.view); !told(e, Volume, "it belongs to the owner of the name example.org") || !strings.Contains(e.Verdict, "has not destroyed the storage yet") {
		t.Errorf("the finalizer beside it: %q, %+v", e.Verdict, e.Links)
	}
}
