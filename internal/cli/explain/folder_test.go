package explain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// byFolder makes tarn.dev/host-path the world's provisioner, which was called.
func byFolder(changes ...func(*world)) *world {
	return with(newWorld(), func(w *world) {
		w.class.Provisioner, w.class.Parameters, w.claim.Annotations[volume.AnnProvisioner] = hostPath, nil, hostPath
		w.volumeView.Provisioner, w.volumeView.Driver = nil, nil
		for _, change := range changes {
			change(w)
		}
	})
}

func TestWhatNoRetryMendsIsMadeAnew(t *testing.T) {
	refused := func(change func(*world)) *world {
		return byFolder(change).event(corev1.EventTypeWarning, "ProvisioningFailed", "tarn.dev/host-path cannot; remove it")
	}
	const no = "claim shop/data is Pending: provisioner tarn.dev/host-path makes no volumes "
	const claim, never = "kubectl -n shop get pvc data -o yaml | kubectl patch --local -f - --type=json -o yaml -p '", ": no retry can succeed"
	const class = "kubectl get storageclass gold -o yaml | kubectl patch --local -f - --type=json -o yaml -p '"
	const again = "' | kubectl replace --force -f -"
	selects := func(w *world) { w.claim.Spec.Selector = &metav1.LabelSelector{} }
	for _, c := range []answer{
		{"a data source", refused(func(w *world) {
			w.claim.Spec.DataSource = &corev1.TypedLocalObjectReference{}
			w.claim.Spec.DataSourceRef = &corev1.TypedObjectReference{}
		}), no + "from a data source, and the claim has spec.dataSource", "when the claim is created again without it" + never,
			claim + `[{"op":"remove","path":"/spec/dataSource"},{"op":"remove","path":"/spec/dataSourceRef"}]` + again},
		{"a selector", refused(selects), no + "from a selector, and the claim has spec.selector", "when the claim is created again without it" + never,
			claim + `[{"op":"remove","path":"/spec/selector"}]` + again},
		{"a selector, of which no Event tells", byFolder(selects), no + "from a selector", "when the claim is created again", claim},
		{"a selector, and a pod has a node", usedBy(refused(selects), somePod("shop", "web")), no + "from a selector", "when the claim is created again", ""},
		{"an attributes class", refused(func(w *world) { w.claim.Spec.VolumeAttributesClassName = ptr.To("fast") }), no + `from a VolumeAttributesClass, and the claim has spec.volumeAttributesClassName`,
			"when the claim is created again without it" + never, claim + `[{"op":"remove","path":"/spec/volumeAttributesClassName"}]` + again},
		{"a block device", refused(func(w *world) { w.claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }), no + "other than directories, and the claim has spec.volumeMode Block",
			"when the claim is created again with volumeMode Filesystem" + never, claim + `[{"op":"remove","path":"/spec/volumeMode"}]` + again},
		{"parameters", refused(func(w *world) {
			w.class.Parameters = map[string]string{"pth": "/x", "a.b/c": "1", tarnv1.AnnotationRetention: "1h"}
		}),
			no + `with parameters, and StorageClass gold has parameters`, "when StorageClass gold is created again without them" + never,
			class + `[{"op":"remove","path":"/parameters/a.b~1c"},{"op":"remove","path":"/parameters/pth"}]` + again},
		{"mount options", refused(func(w *world) { w.class.MountOptions = []string{"ro"} }), no + `with mount options, and StorageClass gold has mountOptions`,
			"when StorageClass gold is created again without them" + never, class + `[{"op":"remove","path":"/mountOptions"}]` + again},
		{"more than any volume can have", refused(func(w *world) { w.claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("10E") }), no + "as large, and the claim has spec.resources.requests.storage 10E",
			"when the claim is created again with a smaller request" + never, ""},
		{"what is mended elsewhere", refused(func(*world) {}), "provisioner tarn.dev/host-path cannot make its volume: tarn.dev/host-path cannot; remove it",
			"when that is fixed: tarn controller then continues by itself; last tried 60m ago", ""},
		{"what is mended elsewhere, while no controller runs", gaveUp(refused(func(*world) {})), "cannot make its volume: ", "when tarn controller runs", ""},
		{"what was said of a class that was made anew since", refused(func(w *world) { w.class.CreationTimestamp = *ahead(-time.Minute) }), "provisioner tarn.dev/host-path has not started", "", ""},
		{"a class that is another provisioner's now", byFolder(func(w *world) {
			w.class.Provisioner, w.class.Parameters = "csi.example.org", map[string]string{"pool": "a"}
		}), "has not started", "", ""},
		{"nothing but the retention of the trash", byFolder(func(w *world) { w.class.Parameters = map[string]string{tarnv1.AnnotationRetention: "1h"} }), "has not started", "", ""},
	} {
		t.Run(c.name, c.check)
	}
}

func TestTheFolderOfAVolumeThatWasRemovedByForceIsNotGivenUpUnsaid(t *testing.T) {
	lost := func(changes ...func(*world)) *world {
		return byFolder(append([]func(*world){func(w *world) {
			w.claim.Status.Phase, w.claim.Spec.VolumeName = corev1.ClaimLost, "pvc-claim-uid"
		}}, changes...)...)
	}
	const removed, again = "claim shop/data is Lost: its volume pvc-claim-uid was deleted while the claim was bound to it", "when a PersistentVolume of that name exists again"
	const gives, described = "kubectl -n shop delete pvc data", "claimRef of namespace shop, name data and uid claim-uid"
	for _, c := range []struct {
		answer
		told string
	}{
		{answer{"nothing tells where", lost(), removed, again, gives}, "its data may still be in ROOT/pvc-claim-uid on the node of tarn controller"},
		{answer{"how it comes back", lost(), removed, again, gives}, described},
		{answer{"what the deletion leaves", lost(), removed, again, gives}, "an existing directory stays, but no claim or volume records it"},
		{answer{"one that it did not make", lost(func(w *world) { w.claim.Spec.VolumeName, w.volumeView.Name = "by-hand", "by-hand" }), "its volume by-hand was deleted while the claim was bound to it", again, gives}, "create it again from a backup"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.check(t)
			if e := chain(c.of.view); !told(e, Volume, c.told) {
				t.Errorf("want %q told: %+v", c.told, e.Links)
			}
		})
	}
}
