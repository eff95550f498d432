package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

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
	const no = "claim shop/data is Pending: provisioner tarn.dev/host-path makes no volume "
	const claim, never = "kubectl -n shop get pvc data -o yaml | kubectl patch --local -f - --type=", ": no retry can succeed"
	selects := func(w *world) { w.claim.Spec.Selector = &metav1.LabelSelector{} }
	for _, c := range []answer{
		{"a data source", refused(func(w *world) {
			w.claim.Spec.DataSource = &corev1.TypedLocalObjectReference{}
			w.claim.Spec.DataSourceRef = &corev1.TypedObjectReference{}
		}), no + "from a data source, which spec.dataSource of the claim requests", "when the claim is created again without it" + never,
			claim + `json -o yaml -p '[{"op":"remove","path":"/spec/dataSource"},{"op":"remove","path":"/spec/dataSourceRef"}]' | kubectl replace --force -f -`},
		{"a selector", refused(selects), no + "for a selector, which spec.selector of the claim requests", "when the claim is created again without it" + never,
			claim + `json -o yaml -p '[{"op":"remove","path":"/spec/selector"}]' | kubectl replace --force -f -`},
		{"a selector, of which no Event tells", byFolder(selects), no + "for a selector", "when the claim is created again", claim},
		{"a selector, and a pod has a node", usedBy(refused(selects), somePod("shop", "web")), no + "for a selector", "when the claim is created again", ""},
		{"an attributes class", refused(func(w *world) { w.claim.Spec.VolumeAttributesClassName = ptr.To("fast") }), no + `of a VolumeAttributesClass, which spec.volumeAttributesClassName "fast" of the claim requests`,
			"when the claim is created again without it" + never, claim + `json -o yaml -p '[{"op":"remove","path":"/spec/volumeAttributesClassName"}]' | kubectl replace --force -f -`},
		{"a block device", refused(func(w *world) { w.claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }), no + "other than directories, which spec.volumeMode Block of the claim requests",
			"when the claim is created again with volumeMode Filesystem" + never, claim + `merge -o yaml -p '{"spec":{"volumeMode":"Filesystem"}}' | kubectl replace --force -f -`},
		{"parameters", refused(func(w *world) {
			w.class.Parameters = map[string]string{"pth": "/x", "a.b/c": "1", tarnv1.AnnotationRetention: "1h"}
		}),
			no + `with parameters, and StorageClass gold has a.b/c="1", pth="/x"`, "when StorageClass gold is created again without them" + never,
			`kubectl get storageclass gold -o yaml | kubectl patch --local -f - --type=json -o yaml -p '[{"op":"remove","path":"/parameters/a.b~1c"},{"op":"remove","path":"/parameters/pth"}]' | kubectl replace --force -f -`},
		{"mount options, which can be taken off", refused(func(w *world) { w.class.MountOptions = []string{"ro"} }), no + `with mount options, and StorageClass gold has mountOptions ["ro"]`,
			"when mountOptions of StorageClass gold are removed", `kubectl patch storageclass gold --type=json -p '[{"op":"remove","path":"/mountOptions"}]'`},
		{"more than any volume can have", refused(func(w *world) { w.claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("10E") }), no + "as large as spec.resources.requests.storage 10E of the claim",
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

// folder returns a volume of another claim, beside the lost one.
func folder(name, root, on string) corev1.PersistentVolume {
	return freeVolume(name, "1Gi", func(v *corev1.PersistentVolume) {
		v.Annotations = map[string]string{volume.AnnProvisionedBy: hostPath, tarnv1.AnnotationNode: on, tarnv1.AnnotationPlace: "disk"}
		v.Spec.Local = &corev1.LocalVolumeSource{Path: root + "/" + name}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{on + "-host"}}}}}}}
	})
}

func TestTheFolderOfAVolumeThatWasRemovedByForceIsNotGivenUpUnsaid(t *testing.T) {
	lost := func(changes ...func(*world)) *world {
		return byFolder(append([]func(*world){func(w *world) {
			w.claim.Status.Phase, w.claim.Spec.VolumeName = corev1.ClaimLost, "pvc-claim-uid"
		}}, changes...)...)
	}
	beside := func(volumes ...corev1.PersistentVolume) func(*world) {
		return func(w *world) { w.claimView.Candidates = volumes }
	}
	const removed, again = "claim shop/data is Lost: its volume pvc-claim-uid was deleted while the claim was bound to it", "when a PersistentVolume of that name exists again"
	const gives, writes, described = "kubectl -n shop delete pvc data", "kubectl create -f - <<'EOF'\n", "claimRef of namespace shop, name data and uid claim-uid"
	for _, c := range []struct {
		answer
		told string
	}{
		{answer{"nothing tells where", lost(), removed, again, gives}, "its data may still be in ROOT/pvc-claim-uid on the node of tarn controller"},
		{answer{"how it comes back", lost(), removed, again, gives}, described},
		{answer{"what the deletion leaves", lost(), removed, again, gives}, "an existing directory stays, but no claim or volume records it"},
		{answer{"a Deployment tells below which root", lost(deployed(1), func(w *world) {
			w.view.Deployment.Spec.Template.Spec.Containers = []corev1.Container{{Args: []string{"--host-path-root=/srv/other", "--host-path-root=/srv/tarn"}}}
		}), removed, again, gives}, "its data may still be in /srv/tarn/pvc-claim-uid on the node"},
		{answer{"a volume beside it tells", lost(beside(freeVolume("a", "1Gi"), folder("pvc-a", "/srv/tarn", "n1"))), removed, again, writes},
			"as directory /srv/tarn/pvc-claim-uid on node n1 if it is beside its other volumes; its data may still be there; if it is not, create it again from a backup, or delete the claim: " + gives},
		{answer{"a pod names the claim", with(lost(beside(folder("pvc-a", "/srv/tarn", "n1"))), func(w *world) { usedBy(w, somePod("shop", "web")) }), removed, again, writes}, "create it again from a backup; the command"},
		{answer{"volumes below several roots", lost(beside(folder("pvc-a", "/srv/tarn", "n1"), folder("pvc-b", "/srv/other", "n1"))), removed, again, gives}, described},
		{answer{"volumes of several nodes", lost(beside(folder("pvc-a", "/srv/tarn", "n1"), folder("pvc-b", "/srv/tarn", "n2"))), removed, again, gives}, described},
		{answer{"volumes of several disks", lost(beside(folder("pvc-a", "/srv/tarn", "n1"), folder("pvc-b", "/srv/tarn", "n1")), func(w *world) {
			w.claimView.Candidates[1].Annotations[tarnv1.AnnotationPlace] = "another"
		}), removed, again, gives}, described},
		{answer{"volumes of another node than the scheduler chose", lost(beside(folder("pvc-a", "/srv/tarn", "n1")), func(w *world) { w.claim.Annotations[volume.AnnSelectedNode] = "n2" }), removed, again, gives}, described},
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

func TestTheVolumeOfAFolderIsWrittenAnewAsItWas(t *testing.T) {
	for _, class := range []bool{true, false} {
		w := byFolder(func(w *world) {
			w.claim.Status.Phase, w.claim.Spec.VolumeName = corev1.ClaimLost, "pvc-claim-uid"
			w.claimView.Candidates = []corev1.PersistentVolume{folder("pvc-a", "/srv/tarn", "n1")}
			w.class.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimDelete)
			if !class { // what kept the data, or not, is gone
				w.claimView.Class = nil
			}
		})
		command := strings.Join(chain(w.view).commands(), "\n")
		manifest := strings.TrimSuffix(strings.TrimPrefix(command, "kubectl create -f - <<'EOF'\n"), "EOF")
		vol := &corev1.PersistentVolume{}
		if err := yaml.UnmarshalStrict([]byte(manifest), vol); err != nil {
			t.Fatalf("%v in\n%s", err, manifest)
		}
		if m := volume.Reserved(vol, w.claim); m != volume.Fits || !volume.HeldBy(vol, w.claim) || volume.ClassOfVolume(vol) != "gold" {
			t.Errorf("the claim cannot have it (%s):\n%s", m, manifest)
		}
		if vol.Name != "pvc-claim-uid" || vol.Spec.Local.Path != "/srv/tarn/pvc-claim-uid" || vol.Annotations[tarnv1.AnnotationNode] != "n1" || vol.Annotations[tarnv1.AnnotationPlace] != "disk" || vol.Annotations[volume.AnnProvisionedBy] != hostPath ||
			vol.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != "n1-host" {
			t.Errorf("it is not the folder's:\n%s", manifest)
		}
		if vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain { // it may have been any
			t.Errorf("want policy Retain:\n%s", manifest)
		}
	}
}
