//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// part is the case within one of its subtests.
func (s *scenario) part(t *testing.T) *scenario {
	return &scenario{t: t, ctx: s.ctx, name: s.name, step: s.step}
}

// another makes a second provisioner of the case and a class for it. It gives the name of both.
func (s *scenario) another(suffix string, sections fields, edits ...func(spec fields)) string {
	s.t.Helper()
	p := s.provisioner(sections)
	p.SetName(s.name + suffix)
	for _, edit := range edits {
		edit(p.Object["spec"].(fields))
	}
	s.create(p)
	// It disappears with its last volume, and the cleanup of the case waits for that.
	s.t.Cleanup(func() { s.deleteIfThere(&pav.PavProvisioner{ObjectMeta: named(s.name + suffix)}) })
	return s.classWith(suffix, s.name+suffix)
}

func TestExplainSaysWhyAProvisionerMakesNoVolume(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-refusing")
	s.moody()
	plain := fields{"volumeCreation": asRequested, "volumeStaging": greeting}
	for _, c := range []struct {
		name, want string
		edit       func(*corev1.PersistentVolumeClaim)
	}{
		{"copy", "makes no volumes from a data source", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
		}},
		{"selecting", "makes no volumes from a selector", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}},
		{"attributed", "makes no volumes from a VolumeAttributesClass", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.VolumeAttributesClassName = ptr.To("fast")
		}},
	} {
		t.Run(c.want+", and the command creates the claim again without it", func(t *testing.T) {
			sub := s.part(t)
			claim := sub.claimWith(c.name, c.edit)
			sub.does(sub.explainsClaim(c.name, "is Pending: PavProvisioner "+s.name+" "+c.want).command())
			claim.UID = ""
			sub.bound(claim)
		})
	}
	t.Run("it is not Dynamic", func(t *testing.T) {
		sub := s.part(t)
		class := sub.another("-static", fields{"volumeStaging": greeting}, func(spec fields) { spec["provisioningModes"] = []any{"Static"} })
		claim := sub.claimWith("undynamic", ofClass(class))
		e := sub.explainsClaim("undynamic", "PavProvisioner "+class+" makes no volumes: spec.provisioningModes does not contain Dynamic")
		if want := "kubectl edit pavprovisioner " + class; e.command() != want {
			t.Errorf("the command is %q, want %q", e.command(), want)
		}
		sub.remove(claim)
	})
	t.Run("it is being deleted", func(t *testing.T) {
		sub := s.part(t)
		class := sub.another("-going", plain)
		first := sub.claimWith("first", ofClass(class))
		sub.bound(first)
		sub.delete(&pav.PavProvisioner{ObjectMeta: named(class)})
		late := sub.claimWith("late", ofClass(class))
		sub.explainsClaim("late", "PavProvisioner "+class+" is being deleted and makes no new volumes")
		sub.remove(late)
		sub.remove(first)
	})
	t.Run("the handle it gives is another volume's", func(t *testing.T) {
		sub := s.part(t)
		class := sub.another("-shared", fields{"volumeCreation": script{text: "echo shared > /pav/handle"}.section(asRequested), "volumeStaging": greeting})
		first := sub.claimWith("owner", ofClass(class))
		volume := sub.bound(first).Spec.VolumeName
		second := sub.claimWith("second", ofClass(class))
		e := sub.explainsClaim("second", `volumeHandle "shared"`, `PersistentVolume "`+volume+`"`)
		if want := "kubectl delete pavvolume pvc-" + string(second.UID); e.command() != want {
			t.Errorf("the command is %q, want %q", e.command(), want)
		}
		sub.remove(second)
		sub.remove(first)
	})
	t.Run("a stranger's pod has the name of its pod, until somebody removes that", func(t *testing.T) {
		sub := s.part(t)
		class := sub.another("-broken", fields{"volumeCreation": fields{"capacity": "{{ oops | }}"}, "volumeStaging": greeting})
		claim := sub.claimWith("crowded", ofClass(class))
		sub.explainsClaim("crowded", "PavProvisioner "+class+" is not accepted: spec.volumeCreation.capacity: line 1")
		// An attempt fails at once, and the next one has another name. The text on an attempt lasts
		// for the pause after it, which grows. Four names are taken, so that a slow machine sees
		// one of these attempts.
		var strangers []*corev1.Pod
		for attempt := range 4 {
			stranger := &corev1.Pod{ObjectMeta: named(fmt.Sprintf("pav-creation-%s-%d", claim.UID, attempt+1))}
			stranger.Namespace = tarn.StepNamespace
			stranger.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "busybox:1.36"}}, NodeSelector: map[string]string{"no-node": s.name}}
			sub.create(stranger)
			t.Cleanup(func() { sub.deleteIfThere(stranger) })
			strangers = append(strangers, stranger)
		}
		mended := sub.provisioner(nil)
		mended.SetName(class)
		mended.Object["spec"] = fields{"volumeCreation": script{text: "true"}.section(asRequested)}
		sub.edit(mended)
		if e := sub.explainsClaim("crowded", "a pod that is not Tarn's has the name of the creation pod"); e.command() != "" {
			t.Errorf("somebody's pod is to be ended by %q", e.command())
		}
		for _, stranger := range strangers {
			sub.delete(stranger)
		}
		sub.bound(claim)
		sub.remove(claim)
	})
}

func TestExplainFindsTheProvisionerThatAnAppAndAPoolWaitFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, wantCommand string
		sections          fields
		want              []string
	}{
		{"unaccepted", "kubectl edit pavprovisioner ", fields{"volumeCreation": fields{"capacity": "{{ oops | }}"}, "volumeStaging": greeting}, []string{" is not accepted: spec.volumeCreation.capacity: line 1"}},
		{"refusing", "kubectl delete pavvolume pvc-", fields{"volumeValidation": fails(nil), "volumeCreation": asRequested, "volumeStaging": greeting}, []string{" rejects it, attempt ", complaint}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, "explain-behind-"+c.name)
			s.create(s.provisioner(c.sections))
			s.class(corev1.PersistentVolumeReclaimDelete)
			s.endsApps()
			set := s.pool(1, 1)
			s.deploys("web", s.name, stays, "--wait=false")
			want := append([]string{"PavProvisioner " + s.name}, c.want...)
			for _, e := range []explanation{
				s.explainsApp("web", append(want, "is not Ready: claim "+s.name+"/paas-app-web-data: ")...),
				s.explains("pvset", set.Name, want...),
			} {
				if !strings.Contains(e.command(), c.wantCommand) {
					t.Errorf("%s\nthe command is %q, want %q", e.Verdict, e.command(), c.wantCommand)
				}
			}
		})
	}
}

func TestExplainSaysWhatAnExternalDriverHasSaid(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-external")
	s.needsThisMachine()
	t.Run("a plugin that Kubernetes no longer has", func(t *testing.T) {
		sub := s.part(t)
		sub.claimWith("old", ofClass(sub.classWith("-old", "kubernetes.io/rbd")))
		sub.explainsClaim("old", "its provisioner kubernetes.io/rbd is no longer served")
	})
	t.Run("one that was called, and then fails", func(t *testing.T) {
		sub := s.part(t)
		driver := &storagev1.CSIDriver{ObjectMeta: named(s.name + ".example.org")}
		sub.create(driver)
		t.Cleanup(func() { sub.deleteIfThere(driver) })
		claim := sub.claimWith("called", ofClass(sub.classWith("-csi", driver.Name)))
		sub.explainsClaim("called", "provisioner "+driver.Name+" was called and has not made the volume yet")
		now := metav1.NewTime(time.Now())
		sub.create(&corev1.Event{ // as its provisioner would write it
			ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "told"}, Type: corev1.EventTypeWarning, Reason: "ProvisioningFailed", Message: "quota used up",
			InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: s.name, Name: claim.Name, UID: claim.UID}, FirstTimestamp: now, LastTimestamp: now,
		})
		sub.explainsClaim("called", "provisioner "+driver.Name+" cannot make its volume: quota used up")
	})
	t.Run("nobody, as the claim asks for a volume without class", func(t *testing.T) {
		sub := s.part(t)
		sub.claimWith("huge", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.StorageClassName, claim.Spec.Resources.Requests = new(string), size("900Ti")
		})
		sub.explainsClaim("huge", "is Pending: it requests a volume without a class, and no free one fits")
	})
}

func TestExplainSaysWhichPodAClaimWaitsFor(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-late")
	s.moody()
	class := s.classWith("-late", s.name, late)
	for name, c := range map[string]struct {
		edit func(*corev1.Pod)
		want string
	}{
		"gated": {func(pod *corev1.Pod) {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.org/wait"}}
		}, "which uses it, is held back by scheduling gates"},
		"placed": {func(pod *corev1.Pod) { pod.Spec.NodeName = s.aNode().Name }, "sets spec.nodeName, so no scheduler selects a node for the claim"},
		"nobody": {func(pod *corev1.Pod) { pod.Spec.SchedulerName = "nobody" }, "which uses it, is not scheduled yet"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := s.part(t)
			sub.claimWith(name, ofClass(class))
			pod := sub.consumer(name, name, stays, c.edit)
			e := sub.explainsClaim(name, "pod "+s.name+"/"+name, c.want)
			if command := e.command(); name == "placed" && !strings.HasPrefix(command, "kubectl -n "+s.name+" delete pod "+name) {
				t.Errorf("the command is %q", command)
			}
			sub.remove(pod)
		})
	}
	s.claimWith("several", ofClass(class))
	s.consumer("a-placed", "several", stays, func(pod *corev1.Pod) { pod.Spec.NodeName = s.aNode().Name })
	s.consumer("b-waits", "several", stays, func(pod *corev1.Pod) { pod.Spec.SchedulerName = "nobody" })
	s.explainsClaim("several", "pod "+s.name+"/b-waits, which uses it, is not scheduled yet")
}
