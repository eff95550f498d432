//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// byHand makes a handwritten volume of a directory, of 2Mi and without class.
func (s *scenario) byHand(suffix string, edits ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	s.t.Helper()
	vol := &corev1.PersistentVolume{ObjectMeta: named(s.name + "-" + suffix), Spec: corev1.PersistentVolumeSpec{
		Capacity: size("2Mi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, StorageClassName: s.name + "-by-hand",
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}},
	}}
	for _, edit := range edits {
		edit(vol)
	}
	s.create(vol)
	s.t.Cleanup(func() { s.deleteIfThere(vol) })
	return vol
}

// naming makes a claim that names its volume.
func (s *scenario) naming(name, volume string) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	return s.claimWith(name, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.StorageClassName, claim.Spec.VolumeName = ptr.To(s.name+"-by-hand"), volume
	})
}

// hold keeps an object in deletion until unhold.
func (s *scenario) hold(o client.Object) {
	s.t.Helper()
	if err := suite.live.Patch(s.ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.org/audit"]}}`))); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.unhold(o) })
}

// unhold removes every finalizer of an object, as an administrator does to delete it by force.
func (s *scenario) unhold(o client.Object) {
	s.t.Helper()
	if err := client.IgnoreNotFound(suite.live.Patch(s.ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))); err != nil {
		s.t.Fatal(err)
	}
}

func TestExplainSaysHowAClaimStandsToTheVolumeItNames(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-naming")
	t.Run("one that is not there", func(t *testing.T) {
		sub := s.part(t)
		sub.naming("missing", s.name+"-nothing")
		sub.explainsClaim("missing", "it names volume "+s.name+"-nothing, which does not exist")
	})
	t.Run("one that is too small", func(t *testing.T) {
		sub := s.part(t)
		small := sub.byHand("small", func(vol *corev1.PersistentVolume) { vol.Spec.Capacity = size("1Mi") })
		sub.naming("large", small.Name)
		sub.explainsClaim("large", "it names a volume that does not fit: ", "has 1Mi, the claim asks for 2Mi")
	})
	t.Run("one that is another's, and is free when that is gone", func(t *testing.T) {
		sub := s.part(t)
		vol := sub.byHand("taken")
		owner := sub.naming("owner", vol.Name)
		sub.bound(owner)
		waiting := sub.naming("waiting", vol.Name)
		if e := sub.explainsClaim("waiting", "it names volume "+vol.Name+", which belongs to another claim"); e.command() != "" {
			t.Errorf("the command is %q, which would take the volume from who has it", e.command())
		}
		sub.remove(owner)
		sub.explains("volume", vol.Name, "is Released: claim "+s.name+"/owner is gone, and policy Retain keeps the volume")
		sub.does(sub.explainsClaim("waiting", "which belongs to another claim").command())
		sub.bound(waiting)
		sub.remove(waiting)
	})
	t.Run("one that is kept by policy, and the command hands it over", func(t *testing.T) {
		sub := s.part(t)
		kept := func(vol *corev1.PersistentVolume) { vol.Spec.StorageClassName = s.name + "-kept" }
		vol := sub.byHand("kept", kept)
		sub.classWith("-kept", "kubernetes.io/no-provisioner")
		first := sub.claimWith("before", ofClass(s.name+"-kept"))
		sub.bound(first)
		sub.remove(first)
		sub.explains("volume", vol.Name, "is Released: claim "+s.name+"/before is gone, and policy Retain keeps the volume")
		next := sub.claimWith("after", ofClass(s.name+"-kept"))
		e := sub.explainsClaim("after", "its class "+s.name+"-kept makes no volumes, and no free one fits")
		if last := e.Links[len(e.Links)-1]; last.Object.Name != vol.Name || !strings.Contains(last.Message, "it was of claim "+s.name+"/before and is kept with its data") {
			t.Errorf("the nearest volume is %+v", last)
		}
		sub.does(e.command())
		sub.bound(next)
		sub.remove(next)
	})
}

func TestExplainSaysHowClaimsThatWereLostComeBack(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-losses")
	t.Run("a volume that nobody knows any more, and the command gives the claim up", func(t *testing.T) {
		sub := s.part(t)
		vol := sub.byHand("forced")
		claim := sub.naming("forced", vol.Name)
		sub.bound(claim)
		sub.delete(vol)
		sub.unhold(vol)
		sub.does(sub.explainsClaim("forced", "is Lost: its volume "+vol.Name+" was deleted while the claim was bound to it").command())
		sub.gone(claim)
	})
	t.Run("a volume that names another claim, and the command gives it back", func(t *testing.T) {
		sub := s.part(t)
		vol := sub.byHand("robbed")
		claim := sub.naming("robbed", vol.Name)
		sub.bound(claim)
		if err := suite.live.Patch(s.ctx, vol, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"claimRef":{"uid":"no-such-claim"}}}`))); err != nil {
			t.Fatal(err)
		}
		sub.does(sub.explainsClaim("robbed", "is Lost: its volume "+vol.Name+" names another claim, "+s.name+`/robbed, uid "no-such-claim"`).command())
		sub.explainsClaim("robbed", "is Bound: volume "+vol.Name+", 2Mi")
		sub.remove(claim)
	})
	t.Run("a volume that is not given back", s.notGivenBack)
	t.Run("a volume that another claim has, until that is gone", func(t *testing.T) {
		sub := s.part(t)
		vol := sub.byHand("given")
		claim := sub.bound(sub.naming("given", vol.Name))
		other := sub.naming("other", vol.Name)
		toOther := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"claimRef":{"name":%q,"uid":%q}}}`, other.Name, other.UID))
		if err := suite.live.Patch(s.ctx, vol, toOther); err != nil {
			t.Fatal(err)
		}
		sub.bound(other)
		lost := fmt.Sprintf("is Lost: its volume %s names another claim, %s/other, uid %q", vol.Name, s.name, other.UID)
		e := sub.explainsClaim("given", lost)
		if last := e.Links[len(e.Links)-1]; len(e.commands()) > 0 || last.Next != "when the volume names this claim again, by its UID" {
			t.Errorf("the commands are %q, which would take the volume from who has it; the chain ends with %+v", e.commands(), last)
		}
		sub.remove(other)
		sub.does(sub.explainsClaim("given", lost).command())
		sub.explainsClaim("given", "is Bound: volume "+vol.Name+", 2Mi")
		sub.remove(claim)
	})
	t.Run("no volume at all", func(t *testing.T) {
		sub := s.part(t)
		claim := sub.claimWith("bare", func(claim *corev1.PersistentVolumeClaim) {
			claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		})
		sub.does(sub.explainsClaim("bare", "is Lost: it was bound once and no longer names a volume").command())
		sub.gone(claim)
	})
}

func TestExplainSaysWhyAVolumeIsStillThere(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-volumes")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	ended := func(t *testing.T, name string, edit func(*corev1.PersistentVolume)) (*scenario, *corev1.PersistentVolume) {
		sub := s.part(t)
		vol := sub.byHand(name, edit)
		claim := sub.naming(name, vol.Name)
		sub.bound(claim)
		sub.remove(claim)
		return sub, vol
	}
	t.Run("it is reserved", func(t *testing.T) {
		sub := s.part(t)
		vol := sub.byHand("reserved", func(vol *corev1.PersistentVolume) {
			vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: s.name, Name: "to-come"}
		})
		sub.explains("volume", vol.Name, "is Available: reserved for claim "+s.name+"/to-come, ")
	})
	t.Run("its claim has it, and goes by the command", func(t *testing.T) {
		sub := s.part(t)
		vol := sub.byHand("used")
		claim := sub.naming("used", vol.Name)
		sub.bound(claim)
		sub.delete(vol)
		e := sub.explains("volume", vol.Name, "is Terminating: claim "+s.name+"/used has it")
		used := sub.explainsClaim("used", "is Bound: its volume "+vol.Name+" is being deleted, and still exists only because claim "+s.name+"/used has it")
		last := used.Links[len(used.Links)-1]
		if used.Links[1].State != "Terminating" || used.Healthy || !strings.Contains(last.Message, "when it is deleted, its storage stays, by policy Retain") || used.command() != "" {
			t.Errorf("of the claim's volume it says %+v", used)
		}
		sub.since(used, "PersistentVolume", vol.Name, *read(sub, vol).DeletionTimestamp)
		sub.does(e.command())
		sub.gone(claim)
		sub.gone(vol)
	})
	t.Run("it was given to claims that cannot have it", s.unfit)
	t.Run("somebody's finalizer alone keeps what its claim has", s.lentOut)
	t.Run("somebody's finalizer keeps it, and the command takes that off", func(t *testing.T) {
		sub := s.part(t)
		vol := sub.byHand("held", func(vol *corev1.PersistentVolume) { vol.Finalizers = []string{"example.org/backup"} })
		t.Cleanup(func() { sub.unhold(vol) })
		sub.delete(vol)
		sub.does(sub.explains("volume", vol.Name, "is Terminating: finalizer example.org/backup keeps it; it belongs to the owner of the name example.org").command())
		sub.gone(vol)
	})
	t.Run("another driver has to destroy it", func(t *testing.T) {
		sub, vol := ended(t, "theirs", func(vol *corev1.PersistentVolume) {
			vol.Annotations, vol.Finalizers = map[string]string{"pv.kubernetes.io/provisioned-by": "other.example.com"}, []string{"external-provisioner.volume.kubernetes.io/finalizer"}
			vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
			vol.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "other.example.com", VolumeHandle: vol.Name}}
		})
		sub.explains("volume", vol.Name, "is Released: claim "+s.name+"/theirs is gone, and other.example.com has not destroyed the storage yet")
		now := metav1.NewTime(time.Now())
		told := &corev1.Event{ // as its provisioner would write it
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: vol.Name}, Type: corev1.EventTypeWarning, Reason: "VolumeFailedDelete", Message: "still busy",
			InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolume", Namespace: metav1.NamespaceDefault, Name: vol.Name, UID: vol.UID}, FirstTimestamp: now, LastTimestamp: now,
		}
		sub.create(told)
		t.Cleanup(func() { sub.deleteIfThere(told) })
		sub.explains("volume", vol.Name, "is Released: its storage could not be destroyed: still busy")
		t.Cleanup(func() { sub.unhold(vol) })
		sub.delete(vol)
		sub.explains("volume", vol.Name, "is Terminating: its storage could not be destroyed: still busy")
	})
	t.Run("nobody can destroy it", func(t *testing.T) {
		sub, vol := ended(t, "orphan", func(vol *corev1.PersistentVolume) {
			vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
			vol.Spec.HostPath.Path = "/e2e-no-such-folder"
		})
		sub.explains("volume", vol.Name, "is Failed: ", "delete")
	})
	t.Run("nobody has made its storage", s.unmade)
}

func TestExplainSaysWhyAVolumeThatWasMadeIsStillThere(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-made")
	sections := fields{"volumeCreation": asRequested, "volumeDeletion": script{text: "true"}.section(nil), "volumeStaging": greeting}
	s.create(s.provisioner(sections))
	class := s.class(corev1.PersistentVolumeReclaimDelete)
	t.Run("how it was made is forgotten", func(t *testing.T) {
		sub := s.part(t)
		claim := sub.bound(sub.claim("forgotten"))
		record := &tarn.PavVolume{ObjectMeta: named(claim.Spec.VolumeName)}
		sub.delete(record)
		sub.unhold(record)
		sub.gone(record)
		sub.remove(claim)
		vol := &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
		sub.does(sub.explains("volume", vol.Name, "its PavVolume is gone, which says how its storage was made, so no provisioner destroys it").command())
		sub.gone(vol)
	})
	t.Run("who made it is gone, and the command ends it", func(t *testing.T) {
		sub := s.part(t)
		class := sub.another("-gone", sections)
		claim := sub.bound(sub.claimWith("left", ofClass(class)))
		p := &pav.PavProvisioner{ObjectMeta: named(class)}
		sub.delete(p)
		sub.unhold(p)
		sub.gone(p)
		sub.remove(claim)
		sub.does(sub.explains("volume", claim.Spec.VolumeName, "PavProvisioner "+class+", which made it, is gone, and only it could remove the storage").command())
		sub.gone(&tarn.PavVolume{ObjectMeta: named(claim.Spec.VolumeName)})
		sub.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
	})
	t.Run("another volume has its handle, and the command keeps it", func(t *testing.T) {
		sub := s.part(t)
		claim := sub.bound(sub.claim("twin"))
		vol := sub.volumeOf(claim)
		sub.byHand("twin", func(other *corev1.PersistentVolume) {
			other.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: s.name, VolumeHandle: vol.Spec.CSI.VolumeHandle}}
		})
		sub.remove(claim)
		sub.does(sub.explains("volume", vol.Name, s.name+"-twin", vol.Spec.CSI.VolumeHandle).command())
		sub.explains("volume", vol.Name, "policy Retain keeps the volume and its data until an administrator decides")
		sub.remove(vol)
	})
	t.Run("it is in the trash, and the command brings its claim back", func(t *testing.T) {
		sub := s.part(t)
		kept := sub.classWith("-trash", class.Provisioner, func(class *storagev1.StorageClass) {
			class.Annotations = map[string]string{tarn.AnnotationRetention: "1h"}
		})
		claim := sub.bound(sub.claimWith("thrown", ofClass(kept)))
		sub.remove(claim)
		sub.explains("volume", claim.Spec.VolumeName, "is Released: claim "+s.name+"/thrown is gone, and its data is kept in the trash until ")
		noEnd := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+tarn.AnnotationTrashedUntil+`":"tomorrow"}}}`))
		if err := suite.live.Patch(s.ctx, &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}, noEnd); err != nil {
			t.Fatal(err)
		}
		sub.does(sub.explains("volume", claim.Spec.VolumeName, "is kept without an end: annotation tarn.dev/trashed-until is \"tomorrow\"").command())
		again := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "thrown"}}
		sub.bound(again)
		sub.remove(again)
		sub.explains("volume", claim.Spec.VolumeName, "kept in the trash until ")
		mustTool(t, 0, "", "trash", "purge", claim.Spec.VolumeName, "--yes")
		sub.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
	})
}

func TestExplainSaysThatALabelKeepsTheDataOfAVolume(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-label")
	s.needsThisMachine()
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeDeletion": script{text: "true"}.section(nil), "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+tarn.LabelDeletionProtection+`":"true"}}}`))
	protect := func(s *scenario, vol *corev1.PersistentVolume) {
		if err := suite.live.Patch(s.ctx, vol, label); err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { // a failing case would leave it for ever
			lift := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+tarn.LabelDeletionProtection+`":null}}}`))
			if err := client.IgnoreNotFound(suite.live.Patch(s.ctx, vol, lift)); err != nil {
				s.t.Error(err)
			}
		})
	}
	t.Run("that is to be destroyed, and the command lifts that", func(t *testing.T) {
		sub := s.part(t)
		claim := sub.bound(sub.claim("guarded"))
		vol := sub.volumeOf(claim)
		protect(sub, vol)
		sub.remove(claim)
		sub.does(sub.explains("volume", vol.Name, "is Released: claim "+s.name+"/guarded is gone, and its storage is not destroyed, as the volume's label "+tarn.LabelDeletionProtection+" protects it").command())
		sub.gone(vol)
	})
	t.Run("that is to be recycled, and the command lifts that", func(t *testing.T) {
		sub := s.part(t)
		vol := sub.recycled(t.TempDir(), tarn.RecycleFiles, corev1.PersistentVolumeFilesystem)
		claim := sub.bound(sub.claimWith("scrubbed", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = vol.Name }))
		protect(sub, vol)
		sub.remove(claim)
		sub.does(sub.explains("volume", vol.Name, "is Released: claim "+s.name+"/scrubbed is gone, and the volume is not recycled, as its label "+tarn.LabelDeletionProtection+" protects it").command())
		sub.phased(vol, corev1.VolumeAvailable)
	})
}

// lentOut is a volume that its claim has and that only a foreign finalizer keeps.
func (s *scenario) lentOut(t *testing.T) {
	sub := s.part(t)
	vol := sub.byHand("lent", func(vol *corev1.PersistentVolume) { vol.Finalizers = []string{"example.org/backup"} })
	t.Cleanup(func() { sub.unhold(vol) })
	claim := sub.naming("lent", vol.Name)
	sub.bound(claim)
	sub.delete(vol)
	alone := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.org/backup"]}}`)) // as an administrator does to remove protection by force
	if err := suite.live.Patch(s.ctx, vol, alone); err != nil {
		t.Fatal(err)
	}
	e := sub.explainsClaim("lent", "is Bound: its volume "+vol.Name+" is being deleted, and still exists only because finalizer example.org/backup keeps it")
	if e.command() != "" {
		t.Errorf("who has the volume is told to have it removed: %q", e.command())
	}
	const held = "is Terminating: finalizer example.org/backup keeps it; it belongs to the owner of the name example.org"
	e = sub.explains("volume", vol.Name, held, ", while claim "+s.name+"/lent has it")
	if want := []string{"kubectl -n " + s.name + " delete pvc lent"}; !slices.Equal(e.commands(), want) {
		t.Errorf("while a claim has the volume, the commands are %q, want %q", e.commands(), want)
	}
	sub.does(e.command())
	sub.gone(claim)
	sub.does(sub.explains("volume", vol.Name, held).command())
	sub.gone(vol)
}
