//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// grows makes a claim that has 2Mi of a handwritten volume and asks for 8Mi. Its status is that of
// the controller that grows volumes.
func (s *scenario) grows(name, class, driver, status string) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	vol := s.byHand(name, func(vol *corev1.PersistentVolume) {
		vol.Spec.StorageClassName = class
		vol.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: vol.Name}}
	})
	claim := s.bound(s.claimWith(name, ofClass(class), func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = vol.Name }))
	s.ask(claim, "8Mi")
	if status != "" {
		s.statusIs(claim, fmt.Sprintf(`{"allocatedResources":{"storage":"8Mi"},"allocatedResourceStatuses":{"storage":%q}}`, status))
	}
	return claim
}

func TestExplainSaysWhoRefusesToGrowAVolumeByHand(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-by-hand")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	const other = "csi.example.org"
	class := s.classWith("-grows", other, func(class *storagev1.StorageClass) { class.AllowVolumeExpansion = new(true) })
	s.grows("refused", class, other, "ControllerResizeInfeasible")
	s.grows("refused-by-node", class, other, "NodeResizeInfeasible")
	s.grows("ours", class, s.name, "ControllerResizeInfeasible")
	s.grows("follows", class, other, "NodeResizePending")
	s.grows("used", class, other, "NodeResizePending")
	s.stuckOn("user", "used")
	told := s.grows("told", class, other, "")
	s.told(told, "ExternalExpanding")
	const grows = "is Bound: it is to be expanded from 2Mi to 8Mi"
	for _, c := range []struct{ claim, want, state, next string }{
		{"refused", grows, "ControllerResizeInfeasible", "when you remove what rejects it, or request another size above 2Mi in the claim"},
		{"refused-by-node", grows, "NodeResizeInfeasible", "when you remove what rejects it, or request another size above 2Mi in the claim"},
		{"ours", grows, "ControllerResizeInfeasible", "never by itself: Tarn did not make it; expand the storage by hand, then set its size in the volume"},
		{"follows", "is Bound: its volume has been expanded; its file system is expanded with the next pod that uses it", "NodeResizePending", "when a pod that uses the claim is started"},
		{"used", grows, "NodeResizePending", "when the kubelet of a node that uses the volume next syncs the pod, within about a minute"},
		{"told", grows, "resize not started", "when its driver's resizer begins"},
	} {
		e := s.explainsClaim(c.claim, c.want)
		if last := e.last(); last.State != c.state || last.Next != c.next || len(e.commands()) > 0 {
			t.Errorf("claim %s: want it %s, next %q, and no command; got %+v", c.claim, c.state, c.next, e)
		}
		if last := e.last(); c.claim == "told" && (last.Reason != "ExternalExpanding" || !strings.HasSuffix(last.Message, "; waiting for an external controller to expand this PVC")) {
			t.Errorf("that its resizer is waited for is not in %+v", last)
		}
	}
}

func TestExplainSaysWhoseAnAppsClaimIs(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-whose")
	s.endsApps()
	for id, labels := range map[string]map[string]string{"theirs": {tarn.LabelApp: "other", tarn.LabelAppVolume: "data"}, "used": nil} {
		s.claimWith(s.claimed(id).Name, func(claim *corev1.PersistentVolumeClaim) { claim.Labels = labels })
		s.create(&tarn.App{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: id}, Spec: tarn.AppSpec{
			Image: "busybox:1.36", Volumes: []tarn.AppVolume{{Name: "data", MountPath: "/data", SizeGi: 1}},
		}})
	}
	s.stuckOn("guest", s.claimed("used").Name)
	for id, told := range map[string]string{"theirs": "; it belongs to app other", "used": "; pod guest uses it"} {
		e := s.explainsApp(id, "is refused: its spec is rejected: ", s.claimed(id).Name)
		if last := e.last(); last.State != "not owned" || !strings.HasSuffix(last.Message, told) || len(e.commands()) > 0 {
			t.Errorf("app %s: want %q told, and no command; got %+v", id, told, e)
		}
	}
}

func TestExplainSaysWhatAnEndOfAnAppOrAPoolIsAt(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-at-end")
	s.endsApps()
	s.classWith("", "csi.example.org")
	s.deploys("stops", s.name, stays, "--wait=false")
	set := s.pool(1, 1)
	t.Run("its pods", func(t *testing.T) {
		sub := s.part(t)
		app := &tarn.App{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "stops"}}
		sub.await("the pod of the app", func() (bool, string) {
			var pods corev1.PodList
			err := suite.cached.List(s.ctx, &pods, client.InNamespace(s.name), client.MatchingLabels{tarn.LabelApp: app.Name})
			return len(pods.Items) > 0, fmt.Sprintf("there is none (%v)", err)
		})
		workload := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "paas-app-stops"}}
		hold := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.org/audit"]}}`))
		if err := suite.live.Patch(s.ctx, workload, hold); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sub.unhold(workload) })
		sub.delete(app)
		e := sub.explainsApp("stops", "is Terminating: its pods are being stopped; ")
		if e.Links[0].Reason != tarn.ReasonDeleting || !strings.HasPrefix(e.Links[0].Message, "its pods are being stopped; ") {
			t.Errorf("the chain begins with %+v", e.Links[0])
		}
		sub.unhold(workload)
		sub.gone(app)
	})
	t.Run("its volumes", func(t *testing.T) {
		sub := s.part(t)
		sub.await("a filler claim", func() (bool, string) { return len(sub.fillers()) > 0, "there is none" })
		for _, filler := range sub.fillers() {
			sub.hold(&filler)
		}
		sub.delete(set)
		sub.explains("pvset", set.Name, "is Terminating: the set is being deleted; volumes that are bound, created by hand or protected are kept")
		for _, filler := range sub.fillers() {
			sub.unhold(&filler)
		}
		sub.gone(set)
	})
}
