//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestExplainSaysWhatElseAPodWaitsFor(t *testing.T) {
	t.Parallel()
	s := beginServed(t, "explain-else")
	s.bound(s.claim("fine"))
	for _, c := range []struct {
		name, claim, script string
		want                []string
		edit                func(*corev1.Pod)
	}{
		{"lost-in-name", "fien", stays, []string{"is not scheduled: claim " + s.name + "/fien: it does not exist"}, func(*corev1.Pod) {}},
		{"imageless", "fine", stays, []string{"its volumes are mounted, but cannot pull its image: "}, func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "no.example/such:image" }},
		{"crashing", "fine", "exit 7", []string{"its volumes are mounted, but keeps crashing: "}, func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways }},
		{"unready", "fine", stays, []string{"is running: its volumes are mounted and its containers run, but are not ready"}, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"false"}}}}
		}},
		{"unset", "fine", stays, []string{"its volumes are mounted, but container main waits (CreateContainerConfigError): secret \"none\" not found"}, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}}}}
		}},
		{"hooked", "fine", stays, []string{"is starting: its containers have not started on node ", "; the kubelet's last message: Container started"}, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sleep", "20"}}}}
		}},
		{"unwanted", "fine", stays, []string{"is Failed: NodeAffinity: "}, func(pod *corev1.Pod) { // the kubelet rejects it before it has its volumes
			pod.Spec.NodeName, pod.Spec.NodeSelector = s.aNode().Name, map[string]string{"example.org/none": "none"}
		}},
		{"ignored", "fine", stays, []string{"the scheduler has not placed it yet"}, func(pod *corev1.Pod) { pod.Spec.SchedulerName = "nobody" }},
		{"ended", "", "true", []string{"is Succeeded: on node ", "; it uses no claims"}, func(pod *corev1.Pod) {
			pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sub := s.part(t)
			pod := sub.consumer(c.name, c.claim, c.script, c.edit)
			sub.explains("pod", s.name+"/"+c.name, c.want...)
			sub.remove(pod)
		})
	}
	t.Run("its own end", func(t *testing.T) {
		sub := s.part(t)
		long := int64(600)
		pod := sub.consumer("stubborn", "fine", "trap '' TERM; echo deaf; until [ -e /data/go ]; do sleep 0.1; done", func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = &long })
		sub.ready(pod)
		sub.prints(pod, "deaf")
		sub.delete(pod)
		e := sub.explains("pod", s.name+"/stubborn", "is Terminating: its containers have not ended")
		now := read(sub, pod) // it should have ended after its grace period
		sub.since(e, "Pod", pod.Name, metav1.NewTime(now.DeletionTimestamp.Add(-time.Duration(*now.DeletionGracePeriodSeconds)*time.Second)))
		sub.succeeded(sub.consumer("lets-go", "fine", "touch /data/go"))
		sub.gone(pod)
	})
	t.Run("somebody's finalizer, and the command takes that off", func(t *testing.T) {
		sub := s.part(t)
		for name, edit := range map[string]func(*corev1.Pod){"held": func(*corev1.Pod) {}, "held-unplaced": nowhere} {
			pod := sub.consumer(name, "fine", stays, edit, func(pod *corev1.Pod) { pod.Finalizers = []string{"example.org/audit"} })
			t.Cleanup(func() { sub.unhold(pod) })
			if pod.Spec.NodeSelector == nil {
				sub.ready(pod)
			}
			sub.delete(pod)
			sub.does(sub.explains("pod", s.name+"/"+name, "is Terminating: finalizer example.org/audit keeps it; it belongs to the owner of the name example.org").command())
			sub.gone(pod)
		}
	})
	t.Run("another driver that its node does not have", func(t *testing.T) {
		sub := s.part(t)
		vol := sub.byHand("foreign", func(vol *corev1.PersistentVolume) {
			vol.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.org", VolumeHandle: "by-hand"}}
		})
		claim := sub.bound(sub.naming("foreign", vol.Name))
		pod := sub.consumer("foreign", "foreign", stays)
		sub.explains("pod", s.name+"/foreign", "driver csi.example.org is not registered on node ")
		sub.remove(pod)
		sub.remove(claim)
	})
}

func TestExplainSaysWhatTheKubeletCannotMount(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-mounts")
	staging := script{text: "mkdir /pav/volume {{ 1 // 0 if pvc.metadata.name == 'divides' else '' }}"}.section(nil)
	staging["podTemplate"].(fields)["spec"].(fields)["containers"].([]any)[0].(fields)["image"] = "{{ 'no.example/such:image' if pvc.metadata.name == 'unstaged' else 'busybox:1.36' }}"
	s.create(s.provisioner(fields{
		"volumeCreation": asRequested, "volumeDeletion": script{text: "true"}.section(nil), "volumeStaging": staging,
		"volumeUnstaging": moods("clings|grips) echo target is busy; exit 1;;", "true", nil),
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	for name, want := range map[string][]string{
		"divides":  {"spec.volumeStaging", "zero"},
		"unstaged": {"is not staged on node ", "the staging pod tarn-volumes/pav-staging-", "cannot pull its image: "},
	} {
		t.Run(name, func(t *testing.T) {
			sub := s.part(t)
			claim := sub.bound(sub.claim(name))
			pod := sub.consumer(name, name, stays)
			sub.explains("pod", s.name+"/"+name, want...)
			if name == "unstaged" { // both the claim and the volume have the same text for a stage
				sub.explains("claim", s.name+"/"+name, want...)
				sub.explains("volume", claim.Spec.VolumeName, want...)
			}
			sub.remove(pod)
		})
	}
	t.Run("a folder that is not there", func(t *testing.T) {
		sub := s.part(t)
		must := corev1.HostPathDirectory
		vol := sub.byHand("folder", func(vol *corev1.PersistentVolume) {
			vol.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/e2e-no-such-folder", Type: &must}
		})
		sub.bound(sub.naming("folder", vol.Name))
		pod := sub.consumer("folder", "folder", stays)
		sub.explains("pod", s.name+"/folder", "cannot mount its volumes: ", "/e2e-no-such-folder is not a directory")
		sub.remove(pod)
	})
	t.Run("a volume by hand of a provisioner that is not Static, and the command makes it so", func(t *testing.T) {
		sub := s.part(t)
		driver := sub.another("-dynamic", fields{"volumeCreation": asRequested, "volumeStaging": greeting}, func(spec fields) { spec["provisioningModes"] = []any{"Dynamic"} })
		vol := sub.byHand("static", func(vol *corev1.PersistentVolume) {
			vol.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "by-hand"}}
		})
		claim := sub.naming("static", vol.Name)
		sub.bound(claim)
		pod := sub.consumer("static", "static", stays)
		sub.does(sub.explains("pod", s.name+"/static", "PavProvisioner "+driver+" stages no volumes written by hand: spec.provisioningModes does not contain Static").command())
		sub.explains("pod", s.name+"/static", "is running: on node ", "written by hand, staged by PavProvisioner "+driver)
		sub.remove(pod)
		sub.remove(claim)
	})
	t.Run("a volume that the pod before has left half unstaged", func(t *testing.T) {
		sub := s.part(t)
		mend := func() {
			mended := sub.provisioner(nil)
			mended.Object["spec"] = fields{"volumeUnstaging": script{text: "true"}.section(nil)}
			sub.edit(mended)
		}
		t.Cleanup(mend) // a failing case would not end otherwise
		gripped := sub.grips()
		claim := sub.bound(sub.claim("clings"))
		first := sub.consumer("first", "clings", stays)
		sub.ready(first)
		sub.delete(first)
		want := []string{"volume " + claim.Spec.VolumeName + " cannot be unstaged on node ", "container main exited with 1"}
		sub.explainsWith("target is busy", "pod", s.name+"/first", append(want, "is Terminating: ")...)
		if err := suite.live.Delete(s.ctx, first, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		next := sub.consumer("next", "clings", stays)
		sub.explains("pod", s.name+"/next", want...)
		sub.remove(next)
		sub.remove(claim)
		sub.explains("volume", claim.Spec.VolumeName, append(want, "is Released: ")...)
		mend()
		sub.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
		sub.gone(gripped)
	})
}

// grips deletes a claim and the pod that uses it, whose node cannot unstage the volume. The answer
// for the claim equals the one for the pod, and does not advise to delete the pod again.
func (s *scenario) grips() *corev1.PersistentVolumeClaim {
	s.t.Helper()
	claim := s.bound(s.claim("grips"))
	pod := s.consumer("gripped", claim.Name, stays)
	s.ready(pod)
	s.delete(claim)
	s.delete(pod)
	e := s.explainsWith("target is busy", "claim", s.name+"/grips", "is Terminating: it is used by pod "+s.name+"/gripped, which is being deleted: ",
		"volume "+claim.Spec.VolumeName+" cannot be unstaged on node ", "container main exited with 1")
	if command := e.command(); strings.Contains(command, "delete pod") {
		s.t.Errorf("the command is %q, and the pod is being deleted already", command)
	}
	return claim
}
