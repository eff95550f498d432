//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// stuckTemplate makes pods that have a node and never start there, like those of stuckOn.
func (s *scenario) stuckTemplate(app, claim string) corev1.PodTemplateSpec {
	s.t.Helper()
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelHostname: s.aNode().Labels[corev1.LabelHostname]}, TerminationGracePeriodSeconds: ptr.To[int64](0),
		Volumes: []corev1.Volume{{Name: "lacks", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}}}}},
		Containers: []corev1.Container{{Name: "main", Image: "busybox:1.36", VolumeMounts: []corev1.VolumeMount{
			{Name: "data", MountPath: "/data"}, {Name: "lacks", MountPath: "/lacks"}, // the kubelet does not wait for a volume that no container mounts
		}}},
	}}
	if claim != "" {
		template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	}
	return template
}

// podsNaming waits until a number of pods use a claim and have a node.
func (s *scenario) podsNaming(claim string, wanted int) {
	s.t.Helper()
	s.await("the pods that name claim "+claim, func() (bool, string) {
		var pods corev1.PodList
		if err := suite.cached.List(s.ctx, &pods, client.InNamespace(s.name)); err != nil {
			return false, err.Error()
		}
		found := slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
			return pod.Spec.NodeName == "" || !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
				return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
			})
		})
		return len(found) >= wanted, "they are " + strings.Join(names(found), ", ")
	})
}

// The commands first stop the controller that would replace the pods of a claim, in a way that can
// be reversed. The commands work.
func TestExplainSaysHowToEndWhateverUsesAClaim(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-ways")
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: s.name, Name: name} }
	selector := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	shared := s.bound(s.naming("shared", s.byHand("shared").Name))
	s.create(&appsv1.ReplicaSet{ObjectMeta: meta("bare"), Spec: appsv1.ReplicaSetSpec{Selector: selector("bare"), Template: s.stuckTemplate("bare", "shared")}})
	s.create(&corev1.ReplicationController{ObjectMeta: meta("old"), Spec: corev1.ReplicationControllerSpec{
		Replicas: ptr.To[int32](1), Selector: map[string]string{"app": "old"}, Template: ptr.To(s.stuckTemplate("old", "shared")),
	}})
	s.create(&appsv1.DaemonSet{ObjectMeta: meta("each"), Spec: appsv1.DaemonSetSpec{Selector: selector("each"), Template: s.stuckTemplate("each", "shared")}})
	sets := appsv1.StatefulSetSpec{ServiceName: "none", Selector: selector("ordered"), Template: s.stuckTemplate("ordered", "shared")}
	s.create(&appsv1.StatefulSet{ObjectMeta: meta("ordered"), Spec: sets})
	sets.Selector, sets.Template = selector("own"), s.stuckTemplate("own", "")
	sets.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: *shared.Spec.DeepCopy()}}
	sets.VolumeClaimTemplates[0].Spec.VolumeName = s.byHand("own").Name
	s.create(&appsv1.StatefulSet{ObjectMeta: meta("own"), Spec: sets})
	operator := &corev1.ConfigMap{ObjectMeta: meta("operator")}
	s.create(operator)
	s.stuckOn("theirs", "shared", func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: operator.Name, UID: operator.UID, Controller: ptr.To(true)}}
	})

	s.podsNaming("data-own-0", 1)
	own := read(s, &corev1.PersistentVolumeClaim{ObjectMeta: meta("data-own-0")})
	s.delete(own)
	kubectl := "kubectl -n " + s.name + " "
	s.does(s.endsBy("data-own-0", map[string]string{"own-0": kubectl + "delete pod own-0"}, "StatefulSet own would create it again").command())
	s.gone(own)
	s.podsNaming("shared", 5)
	s.delete(shared)
	e := s.endsBy("shared", map[string]string{
		"bare-": kubectl + "scale replicaset bare --replicas=0", "old-": kubectl + "scale replicationcontroller old --replicas=0",
		"ordered-0": kubectl + "scale statefulset ordered --replicas=0", "each-": kubectl + "delete pod each-", "theirs": kubectl + "delete pod theirs",
	}, "ReplicaSet bare would create it again", "ReplicationController old would create it again", "StatefulSet ordered would create it again",
		"DaemonSet each would create it again", "ConfigMap operator would create it again")
	for _, command := range e.commands() {
		s.does(command)
	}
	s.gone(shared)
}

// endsBy wants the answer for a claim in deletion to contain the command that ends each of its
// pods, by prefix of their names, and the other texts.
func (s *scenario) endsBy(claim string, ways map[string]string, told ...string) explanation {
	s.t.Helper()
	e := s.explainsClaim(claim, "is Terminating: it is used by ")
	for pod, way := range ways {
		at := slices.IndexFunc(e.Links, func(l link) bool { return l.Object.Kind == "Pod" && strings.HasPrefix(l.Object.Name, pod) })
		if at < 0 || !strings.HasPrefix(e.Links[at].Command, way) {
			s.t.Errorf("pod %s is not to be ended by %q: %+v", pod, way, e.Links)
		}
	}
	for _, text := range told {
		if !slices.ContainsFunc(e.Links, func(l link) bool { return strings.HasSuffix(l.Message, text) }) {
			s.t.Errorf("it is not told that %s: %+v", text, e.Links)
		}
	}
	return e
}

func TestExplainSaysThatAClaimWouldGoFromUnderItsPod(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-unprotected")
	claim := s.claimWith("bare")
	s.hold(claim)
	pod := s.stuckOn("user", "bare")
	s.delete(claim)
	alone := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.org/audit"]}}`)) // as an administrator does to remove protection by force
	if err := suite.live.Patch(s.ctx, claim, alone); err != nil {
		t.Fatal(err)
	}
	e := s.explainsClaim("bare", "is Terminating: it is used by pod "+s.name+"/user")
	at := slices.IndexFunc(e.Links, func(l link) bool { return l.Object.Kind == "Pod" })
	if want := "kubectl -n " + s.name + " delete pod user"; at < 0 || e.Links[at].Message != "it uses the claim; only the remaining finalizers keep the claim" || e.Links[at].Command != want {
		t.Errorf("of the pod it says %+v, want the command %q", e.Links, want)
	}
	s.remove(pod)
	s.does(s.explainsClaim("bare", "is Terminating: finalizer example.org/audit keeps it; it belongs to the owner of the name example.org").command())
	s.gone(claim)
}
