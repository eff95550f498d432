package recycle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

const (
	// annClaim is the annotation of a scrub pod with the UID of its scrub claim.
	annClaim = "tarn.dev/scrub-claim"
	// annWord is an annotation of a scrub pod that only verifies the provisioner's pods. It has
	// the certificate that their results amount to, as JSON.
	annWord = "tarn.dev/scrub-word"
	// annNudged is set on a scrub claim to make Kubernetes' binder process it.
	annNudged = "tarn.dev/scrub-given"
	// annWaits is the annotation of a scrub claim with what its pod was last seen waiting for.
	annWaits = "tarn.dev/scrub-waits"
	// mountPath and devicePath are where a scrub pod has the volume.
	mountPath, devicePath = "/volume", "/dev/volume"
	// reportPath is where a container leaves its termination message.
	reportPath = "/dev/termination-log"
	// container is the name of a scrub pod's only container.
	container = "scrub"
	gibibyte  = 1 << 30
)

// metaOf is the metadata of the scrub claim and the scrub pod of a volume.
func metaOf(v *View) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: v.Namespace, Name: volume.ScrubClaim(v.Volume),
		Labels: map[string]string{tarnv1.LabelScrub: string(v.Volume.UID), tarnv1.LabelVolume: tarnv1.VolumeLabel(v.Volume.Name)},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "PersistentVolume", Name: v.Volume.Name, UID: v.Volume.UID, Controller: ptr.To(true),
		}},
	}
}

// scrubClaim requests exactly this volume, with its full capacity.
func scrubClaim(v *View) *corev1.PersistentVolumeClaim {
	spec := v.Volume.Spec
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metaOf(v),
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: v.Volume.Name, StorageClassName: ptr.To(volume.ClassOfVolume(v.Volume)),
			AccessModes: spec.AccessModes, VolumeMode: spec.VolumeMode, VolumeAttributesClassName: spec.VolumeAttributesClassName,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: spec.Capacity[corev1.ResourceStorage]},
			},
		},
	}
	return claim
}

// scrubPod runs Tarn's own image on the scrub claim. It runs as root with as few rights as
// possible, because it must remove files of other users and their flags.
func scrubPod(v *View, method tarnv1.RecycleMethod) *corev1.Pod {
	m := metaOf(v)
	m.Labels[tarnv1.LabelStep] = string(tarnv1.StepScrubbing)
	m.Annotations = map[string]string{annClaim: string(v.Claim.UID)}
	c := corev1.Container{
		Name: container, Image: v.Image, ImagePullPolicy: corev1.PullIfNotPresent,
		Args:                     []string{"scrub", "--method", string(method), "--report", reportPath},
		TerminationMessagePath:   reportPath,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: ptr.To[int64](0), AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"DAC_OVERRIDE", "FOWNER", "LINUX_IMMUTABLE"}},
		},
	}
	if volume.ModeOfVolume(v.Volume) == corev1.PersistentVolumeBlock {
		c.VolumeDevices = []corev1.VolumeDevice{{Name: "volume", DevicePath: devicePath}}
		c.Args = append(c.Args, "--device", devicePath)
	} else {
		c.VolumeMounts = []corev1.VolumeMount{{Name: "volume", MountPath: mountPath}}
		c.Args = append(c.Args, "--path", mountPath)
		if method == tarnv1.RecycleDiscard { // the kernel requires this capability for discarding free space
			c.SecurityContext.Capabilities.Add = append(c.SecurityContext.Capabilities.Add, "SYS_ADMIN")
			c.SecurityContext.AllowPrivilegeEscalation = nil // Kubernetes rejects false beside SYS_ADMIN
		}
	}
	var secrets []corev1.LocalObjectReference
	for _, name := range v.PullSecrets {
		secrets = append(secrets, corev1.LocalObjectReference{Name: name})
	}
	return &corev1.Pod{
		ObjectMeta: m,
		Spec: corev1.PodSpec{
			ImagePullSecrets: secrets,
			RestartPolicy:    corev1.RestartPolicyNever, ActiveDeadlineSeconds: ptr.To(deadline(v.Volume, method)),
			AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Tolerations:     tolerations(v),
			Containers:      []corev1.Container{c},
			Volumes: []corev1.Volume{{Name: "volume", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: m.Name},
			}}},
		},
	}
}

// tolerations let a scrub pod run where the data is, if that is a single node. Otherwise it may
// run on any node, including reserved ones, but not on one that Kubernetes itself taints. Such
// a node is unhealthy or being drained.
func tolerations(v *View) []corev1.Toleration {
	if onOneNode(v.Volume) {
		return []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	var found []corev1.Toleration
	for _, key := range v.Taints {
		if !strings.HasPrefix(key, "node.kubernetes.io/") && !strings.HasPrefix(key, "node.cloudprovider.kubernetes.io/") {
			found = append(found, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
		}
	}
	return found
}

// onOneNode reports whether only one node, given by its name, can reach a volume.
func onOneNode(vol *corev1.PersistentVolume) bool {
	if vol.Spec.NodeAffinity == nil || vol.Spec.NodeAffinity.Required == nil {
		return false
	}
	return slices.ContainsFunc(vol.Spec.NodeAffinity.Required.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchFields) > 0 || slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool { return e.Key == corev1.LabelHostname })
	})
}

// checkPod is a scrub pod that changes nothing. It verifies what the provisioner's own pods
// claim to have done.
func checkPod(v *View, word tarnv1.RecycleCertificate) *corev1.Pod {
	pod := scrubPod(v, word.Method)
	pod.Annotations[annWord] = encode(word)
	pod.Spec.ActiveDeadlineSeconds = ptr.To(deadline(v.Volume, tarnv1.RecycleFiles))
	c := &pod.Spec.Containers[0]
	c.Args = append(c.Args, "--check")
	for i := range c.VolumeMounts {
		c.VolumeMounts[i].ReadOnly = true
	}
	c.SecurityContext.AllowPrivilegeEscalation = ptr.To(false)
	c.SecurityContext.Capabilities.Add = []corev1.Capability{"DAC_READ_SEARCH"}
	return pod
}

// deadline is how long a scrub pod may run, in seconds. For Files it is the deadline of
// Kubernetes' own recycler. For Zero it allows a slow disk to be written more than once.
func deadline(vol *corev1.PersistentVolume, method tarnv1.RecycleMethod) int64 {
	const mostGibibytes = math.MaxInt32 / 300 // keeps the deadline within an int32, the most that a pod allows
	gibibytes := min(volume.Bytes(vol.Spec.Capacity[corev1.ResourceStorage])/gibibyte, mostGibibytes)
	switch {
	case method == tarnv1.RecycleZero:
		return max(600, 300*gibibytes)
	case vol.Spec.HostPath != nil:
		return max(60, 30*gibibytes)
	}
	return max(300, 30*gibibytes)
}

// readCertificate reads the result of a scrub pod that succeeded.
func readCertificate(pod *corev1.Pod) (tarnv1.RecycleCertificate, error) {
	var cert tarnv1.RecycleCertificate
	ended := terminated(pod)
	if ended == nil {
		return cert, fmt.Errorf("scrub pod %s succeeded, but the status of its container is missing", pod.Name)
	}
	err := json.Unmarshal([]byte(ended.Message), &cert)
	cert.Claim, cert.Image, cert.Time = pod.Annotations[annClaim], pod.Spec.Containers[0].Image, ptr.To(ended.FinishedAt)
	if word := wordOf(pod); word != nil {
		cert = confirmed(*word, cert)
	}
	if err != nil || cert.Method == "" || cert.SampleSHA256 == "" {
		return cert, fmt.Errorf("scrub pod %s succeeded, but left no certificate: is %s the image of tarn?", pod.Name, pod.Spec.Containers[0].Image)
	}
	return cert, nil
}

// wordOf is what the provisioner's pods claim to have done; nil for a pod that scrubs.
func wordOf(pod *corev1.Pod) *tarnv1.RecycleCertificate {
	text, checks := pod.Annotations[annWord]
	if !checks {
		return nil
	}
	word := &tarnv1.RecycleCertificate{}
	if json.Unmarshal([]byte(text), word) != nil {
		return &tarnv1.RecycleCertificate{} // an empty certificate certifies nothing
	}
	return word
}

// confirmed combines the provisioner's result with what a scrub pod has verified.
func confirmed(word, read tarnv1.RecycleCertificate) tarnv1.RecycleCertificate {
	word.Claim, word.Time, word.Verifier = read.Claim, read.Time, read.Image
	word.SampleSHA256, word.Found, word.Seconds = read.SampleSHA256, read.Found, word.Seconds+read.Seconds
	if read.Bytes > 0 { // known for a device; a file system's size cannot be told from inside
		word.Bytes = read.Bytes
	}
	return word
}

// failureOfPod says why a scrub pod failed.
func failureOfPod(pod *corev1.Pod) string {
	if pod.Status.Message != "" {
		return pod.Status.Message
	}
	ended := terminated(pod)
	if ended == nil {
		return "the scrub pod failed: " + cmp.Or(pod.Status.Reason, steppod.Disruption(pod), "no reason is given")
	}
	if message := strings.TrimPrefix(strings.TrimSpace(ended.Message), "tarn: "); message != "" {
		if word := wordOf(pod); word != nil {
			return fmt.Sprintf("PavProvisioner %q reports that it did %s, but Tarn's check of the volume failed: %s", word.Provisioner, word.Method, message)
		}
		return message
	}
	return fmt.Sprintf("the scrub pod ended with exit code %d: %s", ended.ExitCode, ended.Reason)
}

func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == container {
			return pod.Status.ContainerStatuses[i].State.Terminated
		}
	}
	return nil
}
