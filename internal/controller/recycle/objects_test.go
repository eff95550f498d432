package recycle

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

func TestScrubPodsGoToNoNodeThatIsNotWellUnlessTheDataIsThere(t *testing.T) {
	node := func(name string, keys ...string) *corev1.Node {
		return testkit.Node(name, func(n *corev1.Node) {
			for _, key := range keys {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
			}
		})
	}
	c := testkit.Store(
		node("gpu", "example.com/gpu"), node("db", "example.com/db", "example.com/gpu"),
		node("cordoned", corev1.TaintNodeUnschedulable), node("dead", corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable),
		node("young", "node.cloudprovider.kubernetes.io/uninitialized"),
	).Build()
	anywhere := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	well := []corev1.Toleration{{Key: "example.com/db", Operator: corev1.TolerationOpExists}, {Key: "example.com/gpu", Operator: corev1.TolerationOpExists}}
	by := func(key string) []corev1.NodeSelectorTerm {
		return []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{"x"}}}}}
	}
	for name, row := range map[string]struct {
		terms []corev1.NodeSelectorTerm
		want  []corev1.Toleration
	}{
		"a volume that any node reaches":    {nil, well},
		"one that the nodes of a zone do":   {by(corev1.LabelTopologyZone), well},
		"one that is on a node":             {by(corev1.LabelHostname), anywhere},
		"one that is on a node by its name": {[]corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name"}}}}, anywhere},
	} {
		v := view(pointing, claim("scrub-uid"))
		if row.terms != nil {
			v.Volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: row.terms}}
		}
		if err := (&reconciler{client: c}).gatherTaints(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		if got := scrubPod(v, tarnv1.RecycleFiles).Spec.Tolerations; !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// A node has Tarn's image because it pulled it with these Secrets. A kubelet may demand them of
// every pod.
func TestScrubPodsNameTheSecretsOfTheirImage(t *testing.T) {
	v := view(pointing, claim("scrub-uid"))
	v.PullSecrets = []string{"mine", "yours"}
	want := []corev1.LocalObjectReference{{Name: "mine"}, {Name: "yours"}}
	for what, pod := range map[string]*corev1.Pod{
		"scrub": scrubPod(v, tarnv1.RecycleFiles), "check": checkPod(v, tarnv1.RecycleCertificate{Method: tarnv1.RecycleFiles}),
	} {
		if got := pod.Spec.ImagePullSecrets; !slices.Equal(got, want) {
			t.Errorf("the %s pod is pulled with %v, want %v", what, got, want)
		}
	}
}

// docs/operations/security.md says what these pods may do; change it with this test.
func TestScrubPodsMayDoNoMoreThanIsSaid(t *testing.T) {
	usual := []corev1.Capability{"DAC_OVERRIDE", "FOWNER", "LINUX_IMMUTABLE"}
	for _, c := range []struct {
		name     string
		method   tarnv1.RecycleMethod
		device   bool
		want     []corev1.Capability
		escalate *bool
	}{
		{"files", tarnv1.RecycleFiles, false, usual, ptr.To(false)},
		{"zeros in a file system", tarnv1.RecycleZero, false, usual, ptr.To(false)},
		{"zeros on a device", tarnv1.RecycleZero, true, usual, ptr.To(false)},
		{"discarding in a file system", tarnv1.RecycleDiscard, false, append(usual[:3:3], "SYS_ADMIN"), nil},
		{"discarding on a device", tarnv1.RecycleDiscard, true, usual, ptr.To(false)},
	} {
		changes := []viewWith{claim("scrub-uid")}
		if c.device {
			changes = append(changes, block)
		}
		pod := scrubPod(view(changes...), c.method)
		want := &corev1.SecurityContext{
			RunAsUser: ptr.To[int64](0), AllowPrivilegeEscalation: c.escalate, ReadOnlyRootFilesystem: ptr.To(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: c.want},
		}
		if diff := cmp.Diff(want, pod.Spec.Containers[0].SecurityContext); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		wantPod := &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
		if diff := cmp.Diff(wantPod, pod.Spec.SecurityContext); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if s := pod.Spec; len(s.Containers) != 1 || len(s.InitContainers) > 0 || s.HostNetwork || s.HostPID || s.HostIPC || ptr.Deref(s.AutomountServiceAccountToken, true) || len(s.Volumes) != 1 || s.Volumes[0].PersistentVolumeClaim == nil {
			t.Errorf("%s: the pod has more than its volume: %+v", c.name, s)
		}
	}
}

func TestAPodThatChecksCanChangeNothing(t *testing.T) {
	for _, change := range []viewWith{func(*View) {}, block} {
		pod := checkPod(view(claim("scrub-uid"), change), tarnv1.RecycleCertificate{Method: tarnv1.RecycleDiscard})
		c := pod.Spec.Containers[0]
		if !slices.Contains(c.Args, "--check") || len(c.VolumeMounts) == 1 && !c.VolumeMounts[0].ReadOnly || pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly {
			t.Errorf("it runs %q with %+v", c.Args, c.VolumeMounts)
		}
		if caps := c.SecurityContext.Capabilities; !slices.Equal(caps.Add, []corev1.Capability{"DAC_READ_SEARCH"}) || *c.SecurityContext.AllowPrivilegeEscalation {
			t.Errorf("it may do %v", caps.Add)
		}
	}
}

func TestDeadlinesFollowTheSizeOfAVolume(t *testing.T) {
	nfs := func(v *View) {
		v.Volume.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}
	}
	for _, c := range []struct {
		name, size string
		source     viewWith
		method     tarnv1.RecycleMethod
		want       int64
	}{
		{"case 139: NFS", "5Gi", nfs, tarnv1.RecycleFiles, 300},
		{"case 139: large NFS", "20Gi", nfs, tarnv1.RecycleFiles, 600},
		{"case 139: hostPath", "1Gi", hostPath, tarnv1.RecycleFiles, 60},
		{"case 139: large hostPath", "10Gi", hostPath, tarnv1.RecycleFiles, 300},
		{"zeros", "10Gi", func(*View) {}, tarnv1.RecycleZero, 3000},
		{"few zeros", "1Mi", func(*View) {}, tarnv1.RecycleZero, 600},
	} {
		v := view(c.source)
		v.Volume.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse(c.size)
		if got := deadline(v.Volume, c.method); got != c.want {
			t.Errorf("%s of %s: %d s, want %d", c.name, c.size, got, c.want)
		}
	}
}
