//go:build e2e

package e2e

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// restored makes a claim say that it was bound to a volume, like a claim from a backup.
func restored(vol string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		claim.Spec.VolumeName = vol
	}
}

func TestExplainSaysWhatTheRecordOfAVolumeTellsAlone(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-record")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	vol := s.volumeOf(claim)
	s.delete(vol)
	s.unhold(vol)
	s.gone(vol)
	s.explains("volume", vol.Name, "is missing: it was removed by force, and its storage still exists")
	s.remove(claim)
	again := s.claimWith("restored", restored(vol.Name))
	lost := "is Lost: its volume " + vol.Name + " was deleted while the claim was bound to it"
	for told, by := range map[string]reader{
		"create it again from a backup; PavVolume " + vol.Name + " describes its storage":     {s, os.Getenv("KUBECONFIG")},
		"create it again from a backup; explain cannot tell whether its storage still exists": s.asReader("no-records", "pavvolumes"),
	} {
		e := by.explains("claim", s.name+"/restored", lost)
		if last := e.last(); last.Object.Name != vol.Name || last.Message != told || len(e.commands()) > 0 {
			t.Errorf("want %q told of volume %s, and no command; got %+v", told, vol.Name, e)
		}
	}
	const kept = "is missing: it was removed by force, and its storage still exists"
	whoHas := func(told string) {
		t.Helper()
		if e := s.explains("volume", vol.Name, kept+told); len(e.commands()) > 0 {
			t.Errorf("while somebody has it or may have it, the commands are %q", e.commands())
		}
	}
	whoHas(", which claim " + s.name + "/restored names")
	s.remove(again) // the storage that a claim names is not deleted
	other := s.byHand("other", driven, func(other *corev1.PersistentVolume) {
		other.Spec.CSI.Driver, other.Spec.CSI.VolumeHandle = s.name, vol.Spec.CSI.VolumeHandle
	})
	whoHas(", which volume " + other.Name + " names")
	s.remove(other)
	stage := s.stageKept(vol)
	whoHas(", which a node still uses")
	s.unhold(stage)
	s.asReader("no-nodes", "pavstages").explains("volume", vol.Name, kept+", and explain cannot tell whether a node still uses it")
	s.asReader("no-pods", "pods").explains("volume", vol.Name, kept+", and explain cannot tell whether a pod still uses it")
	user := s.stuckOn("user", claim.Name)
	whoHas(", which pod " + s.name + "/user may still use")
	s.remove(user)
	e := s.explains("volume", vol.Name, kept)
	if want := "kubectl delete pavvolume " + vol.Name; e.command() != want || !strings.HasSuffix(e.last().Message, "the command destroys the storage") {
		t.Errorf("want the command %q, and what it does; got %+v", want, e)
	}
	s.does(e.command())
	s.gone(&tarn.PavVolume{ObjectMeta: named(vol.Name)})
}

// statusIs writes a status, given as JSON.
func (s *scenario) statusIs(o client.Object, status string) {
	s.t.Helper()
	if err := suite.live.Status().Patch(s.ctx, o, client.RawPatch("application/merge-patch+json", []byte(`{"status":`+status+`}`))); err != nil {
		s.t.Fatal(err)
	}
}

func TestExplainSaysHowAVolumeOfOthersStands(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-others")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	bound, made := s.byHand("written", driven), s.byHand("made", driven, func(vol *corev1.PersistentVolume) {
		vol.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "other.example.org"}
	})
	failed := s.byHand("failed", s.formerly("failed"))
	unknown := s.byHand("unknown", s.formerly("unknown"), driven, func(vol *corev1.PersistentVolume) {
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	})
	s.bound(s.naming("written", bound.Name))
	s.bound(s.naming("made", made.Name))
	class := "class " + s.name + "-by-hand, "
	for claim, want := range map[string]string{"written": "2Mi, " + class + "written by hand, CSI driver csi.example.org", "made": "2Mi, " + class + "made by other.example.org"} {
		e := s.explainsClaim(claim, "is Bound: volume "+s.name+"-"+claim+", "+want)
		if !e.Healthy || len(e.commands()) > 0 {
			t.Errorf("claim %s is healthy, but it says %+v", claim, e)
		}
	}
	s.explains("volume", made.Name, "is Bound: claim "+s.name+"/made has it, "+class+"made by other.example.org")
	e := s.asReader("no-volumes", "persistentvolumes").explains("claim", s.name+"/made", "is Bound: volume "+made.Name)
	if !strings.HasSuffix(e.Verdict, made.Name) || len(e.commands()) > 0 {
		t.Errorf("without a look at the volume it says %+v", e)
	}
	s.phased(failed, corev1.VolumeReleased)
	s.statusIs(failed, `{"phase":"Failed","message":null,"reason":null}`)
	s.explains("volume", failed.Name, "is Failed: the action after the release of its claim failed")
	e = s.explains("volume", unknown.Name, "is Released: claim "+s.name+"/unknown is gone, and nothing says which provisioner made its storage and has to destroy it")
	if last := e.last(); last.Next != "when its provisioner or an administrator destroys the storage" || len(e.commands()) > 0 {
		t.Errorf("the chain ends with %+v", last)
	}
	s.keptByAStage()
}

// keptByAStage is a volume whose storage is kept while a stage exists. The caller may lack the
// right to read the stage.
func (s *scenario) keptByAStage() {
	s.t.Helper()
	claim := s.bound(s.claim("staged"))
	vol := s.volumeOf(claim)
	stage := s.stageKept(vol)
	s.remove(claim)
	const where = "the volume is still staged on node "
	s.asReader("no-stages", "pavstages").explains("volume", vol.Name, "is Released: its storage cannot be destroyed yet: "+where+stage.Spec.NodeName)
	s.explains("volume", vol.Name, "is Released: volume "+vol.Name+" is being unstaged on node "+stage.Spec.NodeName)
	s.unhold(stage)
	s.gone(vol)
}

func TestExplainSaysThatAPodHasEnded(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-ended")
	done, evicted := s.consumer("done", "none", "true", nowhere), s.consumer("evicted", "none", "true", nowhere)
	s.statusIs(done, `{"phase":"Succeeded"}`)
	mute := s.consumer("mute", "none", "true", nowhere)
	s.statusIs(mute, `{"phase":"Failed"}`)
	s.statusIs(evicted, `{"phase":"Failed","reason":"Evicted","message":"the node was low on memory"}`)
	if e := s.explains("pod", s.name+"/done", "is Succeeded: it has ended; it waits for nothing"); !e.Healthy {
		t.Errorf("a pod that has ended is not healthy: %+v", e)
	}
	if e := s.explains("pod", s.name+"/mute", "is Failed: it has failed, and no object that explain can read says why"); e.Healthy || !strings.HasPrefix(e.last().Next, "never: ") {
		t.Errorf("of a pod that has failed without a word it says %+v", e)
	}
	if e := s.explains("pod", s.name+"/evicted", "is Failed: Evicted: the node was low on memory"); e.Healthy || !strings.HasPrefix(e.last().Next, "never: ") {
		t.Errorf("of a pod that has failed it says %+v", e)
	}
}
