package explain

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// unlisted is a claim of class st, which has no StorageClass object, and some volumes.
func unlisted(change func(*corev1.PersistentVolumeClaim), volumes ...corev1.PersistentVolume) *world {
	return with(withoutClass(newWorld(), ptr.To("st")), func(w *world) {
		change(w.claim)
		w.claimView.Candidates = volumes
		w.nearest()
	})
}

func asIs(*corev1.PersistentVolumeClaim) {}

func ofSt(vol *corev1.PersistentVolume) { vol.Spec.StorageClassName = "st" }

func forData(uid types.UID) func(*corev1.PersistentVolume) {
	return func(vol *corev1.PersistentVolume) {
		vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: uid}
	}
}

// Volumes that are written by hand need no StorageClass object.
func TestAClaimOfAStaticClassIsToldOfItsVolumesAndNotMovedToAnother(t *testing.T) {
	const none = `claim shop/data is Pending: StorageClass "st" does not exist, so no volume is made, and no free one of that class fits`
	const next = "when a free PersistentVolume of class st fits, or StorageClass st is created"
	const nextReserved = next + ", or the claim is created again so that this one fits"
	released := func(vol *corev1.PersistentVolume) { vol.Status.Phase = corev1.VolumeReleased }
	deleted := func(vol *corev1.PersistentVolume) {
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	}
	for _, c := range []struct {
		answer
		told string // of the volume
	}{
		{answer{"too small and reserved", unlisted(asIs, freeVolume("r4", "512Mi", ofSt, forData(""))), none, nextReserved, `{"spec":{"resources":{"requests":{"storage":"512Mi"}}}}`},
			`it is reserved for the claim, which it does not fit: volume "r4" has 512Mi, the claim asks for 1Gi`},
		{answer{"too small", unlisted(asIs, freeVolume("small", "512Mi", ofSt), freeVolume("other", "2Gi")), none, next, `{"spec":{"resources":{"requests":{"storage":"512Mi"}}}}`},
			`came nearest: volume "small" has 512Mi, the claim asks for 1Gi`},
		{answer{"of other access modes", unlisted(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}, freeVolume("one", "1Gi", ofSt)), none, next, ""}, `came nearest: volume "one" has access modes RWO, the claim asks for RWX`},
		{answer{"of another mode", unlisted(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }, freeVolume("files", "1Gi", ofSt)),
			none, next, ""}, `came nearest: volume "files" has volumeMode Filesystem, the claim asks for Block`},
		{answer{"of another mode and reserved", unlisted(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }, freeVolume("files", "1Gi", forData(""))),
			none, nextReserved, ""}, `it is reserved for the claim, which it does not fit: volume "files" has volumeMode Filesystem`},
		{answer{"of other labels", unlisted(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}, freeVolume("bare", "1Gi", ofSt)), none, next, ""}, `came nearest: the labels of volume "bare" do not match`},
		{answer{"of another attributes class", unlisted(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("fast") }, freeVolume("slow", "1Gi", ofSt)),
			none, next, ""}, `came nearest: volume "slow" has volumeAttributesClassName "", the claim asks for "fast"`},
		{answer{"that names the claim by a wrong uid", unlisted(asIs, freeVolume("r9", "1Gi", ofSt, forData("typo"), released), freeVolume("small", "512Mi", ofSt)), none, next,
			`{"apiVersion":"v1","kind":"PersistentVolumeClaim","namespace":"shop","name":"data","uid":"claim-uid"}`},
			`volume "r9" is Released, not Available; it names claim shop/data by UID typo, and this claim has another UID (claim-uid), and it is kept with its data`},
		{answer{"that names it so and is too small", unlisted(asIs, freeVolume("r9", "1Mi", ofSt, forData("typo"), released), freeVolume("small", "512Mi", ofSt)), none, next, ""},
			`came nearest: volume "r9" names claim shop/data by UID typo, and this claim has another UID (claim-uid); nor would it fit: volume "r9" has 1Mi, the claim asks for 1Gi`},
		{answer{"that an earlier claim of the name has left to be destroyed", unlisted(asIs, freeVolume("was", "1Mi", ofSt, forData("before"), released, deleted), freeVolume("small", "512Mi", ofSt)), none, next, "512Mi"},
			`came nearest: volume "small" has 512Mi`},
		{answer{"that names it and no namespace", unlisted(asIs, freeVolume("rc11", "1Gi", ofSt, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = &corev1.ObjectReference{Name: "data"} })), none, next, ""},
			`volume "rc11" names claim data without a namespace, as its spec.claimRef.namespace is missing`},
		{answer{"that another has", unlisted(asIs, freeVolume("theirs", "1Gi", ofSt, func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "b", Name: "x"}
		})), none, next, ""}, `volume "theirs" belongs to claim b/x`},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.check(t)
			if e := chain(c.of.view); !told(e, Volume, c.told) || strings.Contains(strings.Join(e.commands(), "\n"), "storageClassName") {
				t.Errorf("want %q told of the volume, and the class let be: %+v", c.told, e.Links)
			}
		})
	}
}

func TestAnotherClassIsOfferedWhereNoVolumeOfTheMissingOneIsThere(t *testing.T) {
	const missing, next, moves = `StorageClass "st" does not exist`, "when StorageClass st is created", `{"spec":{"storageClassName":`
	named := func(w *world, name string) *world {
		w.class.Name = name
		return w
	}
	free := freeVolume("other", "1Gi")
	for _, c := range []answer{
		{"no volume of it", unlisted(asIs, free), missing, next, moves + `"gold"}}`},
		{"a class of a name like it", named(unlisted(asIs, free), "std"), missing, next, moves + `"std"}}`},
		{"volumes that nobody may see", hides(unlisted(asIs), Object{Kind: Volume}), missing, next, ""},
		{"volumes that nobody may see, and a class of a name like it", hides(named(unlisted(asIs), "std"), Object{Kind: Volume}), missing, next, moves + `"std"}}`},
	} {
		t.Run(c.name, c.check)
	}
	w := named(unlisted(asIs, freeVolume("small", "1Mi", ofSt)), "std")
	if e := chain(w.view); !told(e, storageClass, "there is StorageClass std") || strings.Contains(strings.Join(e.commands(), "\n"), moves) {
		t.Errorf("volumes of the class and a class of a name like it: %+v", e.Links)
	}
}

func TestOfSeveralDefaultClassesItIsSaidWhichIsUsedAndWhy(t *testing.T) {
	marked := func(w *world) {
		w.class.Annotations = map[string]string{volume.AnnDefaultClass: "true"}
		older := testkit.Class("amber")
		older.Annotations, older.CreationTimestamp = w.class.Annotations, began
		w.class.CreationTimestamp = began
		w.claimView.Classes = []*storagev1.StorageClass{w.class, older}
	}
	for want, change := range map[string]func(*world){
		"2 StorageClasses are marked as the default; the newest, gold, is used":            func(w *world) { w.class.CreationTimestamp = *ahead(-60e9) },
		"; the newest, amber, is used; of several that are as new it is the first by name": func(*world) {},
	} {
		w := with(with(withoutClass(newWorld(), nil), marked), change)
		if e := chain(w.view); !told(e, storageClass, want) {
			t.Errorf("want %q: %+v", want, e.Links)
		}
	}
	w := with(withoutClass(newWorld(), nil), func(w *world) { w.class.Annotations = map[string]string{volume.AnnDefaultClass: "true"} })
	if e := chain(w.view); told(e, storageClass, "marked as the default") {
		t.Errorf("of the only one it says: %+v", e.Links)
	}
}

func TestAMisspeltProvisionerIsToldOfTheNearestThatIsKnown(t *testing.T) {
	called := func(name string) *world {
		return with(newWorld(), func(w *world) {
			w.class.Provisioner, w.claim.Annotations[volume.AnnProvisioner] = name, name
			w.volumeView.Provisioner, w.volumeView.Driver = nil, nil
		})
	}
	const unknown, next = "has not responded, and it is not registered", "when the provisioner is installed"
	for _, c := range []answer{
		{"like Tarn's own", called("tarn.dev/hostpath"), unknown, next,
			`kubectl get storageclass gold -o yaml | kubectl patch --local -f - --type=merge -o yaml -p '{"provisioner":"tarn.dev/host-path"}' | kubectl replace --force -f -`},
		{"like none", called("csi.example.org"), unknown, next, ""},
	} {
		t.Run(c.name, c.check)
	}
	if e := chain(called("tarn.dev/hostpath").view); !told(e, "provisioner", "; there is tarn.dev/host-path; the command creates the class again with tarn.dev/host-path") {
		t.Errorf("it is not told: %+v", e.Links)
	}
}

func TestAClaimThatNamesAVolumeIsToldWhoseThatIs(t *testing.T) {
	naming := func(ref corev1.ObjectReference, changes ...func(*world)) *world {
		return with(newWorld(), func(w *world) {
			vol := freeVolume("mine", "1Gi")
			vol.Spec.ClaimRef = &ref
			w.claim.Spec.VolumeName, w.volumeView.Volume = "mine", &vol
			for _, change := range changes {
				change(w)
			}
		})
	}
	released := func(w *world) { w.volumeView.Volume.Status.Phase = corev1.VolumeReleased }
	const others, freed = "it names volume mine, which belongs to another claim", "when the volume is freed"
	for _, c := range []struct {
		answer
		told string
	}{
		{answer{"reserved by name", naming(corev1.ObjectReference{Namespace: "shop", Name: "rc2"}), others, freed, ""}, "it is reserved for claim shop/rc2"},
		{answer{"by uid, which is gone", naming(corev1.ObjectReference{Namespace: "shop", Name: "rc2", UID: "x"}, released), others, freed, `"uid":"claim-uid"`}, "it belongs to claim shop/rc2, uid x, which is gone"},
		{answer{"by a wrong uid of its own name", naming(corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "x"}, released, func(w *world) { w.volumeView.Claim = w.claim }), others, freed,
			`{"op":"replace","path":"/spec/claimRef","value":{"apiVersion":"v1","kind":"PersistentVolumeClaim","namespace":"shop","name":"data","uid":"claim-uid"}}`},
			"it belongs to claim shop/data, uid x, and this claim has another UID (claim-uid)"},
		{answer{"of a name that is another's now", naming(corev1.ObjectReference{Namespace: "shop", Name: "rc2", UID: "x"}, released, func(w *world) {
			w.volumeView.Claim = testkit.Claim("shop", "rc2", "y", "gold")
		}), others, freed, `"uid":"claim-uid"`}, "it belongs to claim shop/rc2, uid x, and the claim that has this name now has another UID (y)"},
		{answer{"of no namespace", naming(corev1.ObjectReference{Name: "data"}), "it names volume mine, whose spec.claimRef.namespace is missing", "when spec.claimRef.namespace of the volume is set", ""},
			"it names claim data without a namespace"},
		{answer{"of no namespace and another's name", naming(corev1.ObjectReference{Name: "rc2"}), "it names volume mine, whose spec.claimRef.namespace is missing", "when spec.claimRef.namespace of the volume is set", ""},
			"it names claim rc2 without a namespace"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.check(t)
			e := chain(c.of.view)
			if !told(e, Volume, c.told) || strings.Contains(e.Links[len(e.Links)-1].Message, "uid ;") {
				t.Errorf("want %q told: %+v", c.told, e.Links)
			}
		})
	}
}
