package steppod

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

const (
	// exchangeVolume is the name of the volume in every step pod, and exchangePath is its path in
	// each container.
	exchangeVolume = "pav"
	exchangePath   = "/pav"

	// defaultDeadlineSeconds limits a pod that must run to its end and whose author set no
	// activeDeadlineSeconds.
	defaultDeadlineSeconds = 600
	// maxDeadlineSeconds is the longest deadline of a staging pod, a year.
	maxDeadlineSeconds = 365 * 24 * 60 * 60

	// maxAnnotations is half of the bytes that the API server allows for annotations of an object.
	maxAnnotations = 128 * 1024
)

// PodName is the name of the pod of one attempt at one step. uid is that of the claim, or for
// staging and unstaging that of the stage. Each attempt has its own name, so that a failed pod can
// be kept for reading while the next one runs.
func PodName(step tarnv1.Step, uid types.UID, attempt int32) string {
	return fmt.Sprintf("pav-%s-%s-%d", step, uid, attempt)
}

// StageFolder is the directory of a stage on its node, below the node agent's state directory. Its
// subdirectory pav is the /pav of the staging and unstaging pods.
func StageFolder(stateDir string, stage types.UID) string {
	return filepath.Join(stateDir, "stages", string(stage))
}

// order describes the pod of a step.
type order struct {
	step        tarnv1.Step
	name        string
	provisioner string
	volume      string // name of the PersistentVolume
	owner       metav1.OwnerReference
	uidLabel    string // LabelRecord or LabelStage
	inputs      tarnv1.PodInputs
	nodes       []corev1.NodeSelectorTerm // where it may run; empty for anywhere
	nodeName    string
	namespaces  Namespaces // in which it may run
	folder      string     // of the stage; empty for pods that run to their end
}

// build makes the pod of an order from its evaluated template.
func build(o order, t *podTemplate) (*corev1.Pod, error) {
	meta, err := metadataOf(o, t)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{ObjectMeta: meta, Spec: *t.Spec.DeepCopy()}
	pod.Name = o.name
	labels := pod.Labels
	labels[tarnv1.LabelProvisioner] = o.provisioner
	labels[tarnv1.LabelStep] = string(o.step)
	labels[tarnv1.LabelVolume] = tarnv1.VolumeLabel(o.volume)
	labels[o.uidLabel] = string(o.owner.UID)
	pod.OwnerReferences = []metav1.OwnerReference{o.owner}
	if err := annotate(pod, o.inputs); err != nil {
		return nil, err
	}
	requireNodes(pod, o.nodes)
	if o.nodeName != "" {
		pinToNode(pod, o.nodeName)
	}
	if isCritical(o.step) {
		setPriority(pod)
	}
	if o.step != tarnv1.StepStaging {
		if err := limitRun(o.step, pod); err != nil {
			return nil, err
		}
	}
	mountExchange(pod, exchangeSource(o.folder), o.folder != "")
	keepTerminationMessages(pod)
	return pod, nil
}

// keepTerminationMessages makes the kubelet keep the last lines that a container has printed, if it
// fails without a termination message. A policy set by the author stays. The lines explain a
// failure without text in /pav/error after the pod is deleted.
func keepTerminationMessages(pod *corev1.Pod) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if containers[i].TerminationMessagePolicy == "" {
				containers[i].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
			}
		}
	}
}

// metadataOf takes from a template's metadata what its author may set: namespace, labels and
// annotations, except Tarn's own.
func metadataOf(o order, t *podTemplate) (metav1.ObjectMeta, error) {
	invalid := func(field, format string, args ...any) error {
		return failed(o.step, ReasonInvalid, "%s.podTemplate.metadata.%s: %s", SectionField(o.step), field, fmt.Sprintf(format, args...))
	}
	meta := metav1.ObjectMeta{Namespace: cmp.Or(t.Metadata.Namespace, o.namespaces.orDefault()[0]), Labels: map[string]string{}, Annotations: map[string]string{}}
	if wrong := validation.IsDNS1123Label(meta.Namespace); len(wrong) > 0 {
		return meta, invalid("namespace", "%q is not a valid namespace name: %s", meta.Namespace, wrong[0])
	}
	if why := o.namespaces.refuse(meta.Namespace); why != "" {
		return meta, invalid("namespace", "%s", why)
	}
	size := 0
	for key, value := range t.Metadata.Annotations {
		if !isOurs(key) {
			meta.Annotations[key] = value
			size += len(key) + len(value)
		}
	}
	if size > maxAnnotations {
		return meta, invalid("annotations", "have %d bytes; the limit is %d, which leaves room for the pod's results", size, maxAnnotations)
	}
	for key, value := range t.Metadata.Labels {
		if !isOurs(key) {
			meta.Labels[key] = value
		}
	}
	return meta, nil
}

// isOurs says whether only Tarn may set a label or annotation.
func isOurs(key string) bool { return strings.HasPrefix(key, tarnv1.Group+"/") }

func annotate(pod *corev1.Pod, inputs tarnv1.PodInputs) error {
	data, err := json.Marshal(inputs)
	if err != nil {
		return fmt.Errorf("writing annotation %s: %w", tarnv1.AnnotationInputs, err)
	}
	pod.Annotations[tarnv1.AnnotationInputs] = string(data)
	return nil
}

// pinToNode puts a pod on the node whose kubelet asks for the volume. It bypasses the scheduler, as
// the original does, because there is no other choice of node. The pod tolerates taints that would
// evict it: its consumers are on that node already.
func pinToNode(pod *corev1.Pod, node string) {
	pod.Spec.NodeName = node
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
		Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
	})
}

// criticalClass is the priority class of staging pods. In a node shutdown the kubelet ends them
// after the pods that use their volumes. The kubelet never evicts them for pressure, and the kernel
// kills them last when memory runs out.
const criticalClass = "system-node-critical"

// isCritical says whether the pods of a step have priority class criticalClass. Unstaging pods have
// it because a node under pressure rejects all others. An evicted consumer would otherwise keep its
// volume, and the space it takes, until the pressure ends.
func isCritical(step tarnv1.Step) bool {
	return step == tarnv1.StepStaging || step == tarnv1.StepUnstaging
}

// setPriority keeps a staging pod from being ended before its consumers, and lets its volume be
// unstaged after them. A priority set by the author stays.
func setPriority(pod *corev1.Pod) {
	if pod.Spec.PriorityClassName == "" && pod.Spec.Priority == nil {
		pod.Spec.PriorityClassName = criticalClass
	}
}

// withoutPriority gives the pod without its priority class, for a namespace without the quota that
// some clusters require for critical pods. It is nil if the pod has no such priority.
func withoutPriority(pod *corev1.Pod) *corev1.Pod {
	if !isCritical(tarnv1.Step(pod.Labels[tarnv1.LabelStep])) || pod.Spec.PriorityClassName != criticalClass {
		return nil
	}
	plain := pod.DeepCopy()
	plain.Spec.PriorityClassName = ""
	return plain
}

// limitRun makes sure that a pod whose end is awaited can end.
func limitRun(step tarnv1.Step, pod *corev1.Pod) error {
	switch pod.Spec.RestartPolicy {
	case "":
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	case corev1.RestartPolicyAlways:
		return failed(step, ReasonInvalid, "%s.%s.spec.restartPolicy: a %s pod must run to its end, so set Never or OnFailure, not Always", SectionField(step), PodField(step), step)
	}
	if pod.Spec.ActiveDeadlineSeconds == nil {
		pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](defaultDeadlineSeconds)
	}
	return nil
}

// exchangeSource is the volume behind /pav. A pod that runs to its end gets an inline volume of
// Tarn's own CSI driver: its unpublishing waits until the results are stored. A staging pod gets a
// directory of the node agent. Mounts made in it must reach the host, and must not lie where the
// kubelet cleans up.
func exchangeSource(folder string) corev1.VolumeSource {
	if folder == "" {
		return corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: tarnv1.ResultsDriver}}
	}
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
		Path: filepath.Join(folder, "pav"), Type: ptr.To(corev1.HostPathDirectory),
	}}
}

// mountExchange puts /pav first in every container.
func mountExchange(pod *corev1.Pod, source corev1.VolumeSource, staging bool) {
	pod.Spec.Volumes = append([]corev1.Volume{{Name: exchangeVolume, VolumeSource: source}}, pod.Spec.Volumes...)
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			mount := corev1.VolumeMount{Name: exchangeVolume, MountPath: exchangePath}
			if staging && c.SecurityContext != nil && ptr.Deref(c.SecurityContext.Privileged, false) {
				mount.MountPropagation = ptr.To(corev1.MountPropagationBidirectional)
			}
			c.VolumeMounts = append([]corev1.VolumeMount{mount}, c.VolumeMounts...)
		}
	}
}

// nodesOf says where the pods of a record may run: on the node that has the volume, or else on the
// nodes the class allows, or else anywhere. With topology Claims only the creation is bound to a
// node; later the claims that a pod mounts say where it runs.
func nodesOf(step tarnv1.Step, p *pavv1.PavProvisioner, record *tarnv1.PavVolume) []corev1.NodeSelectorTerm {
	if p.Spec.Topology == pavv1.TopologyClaims && step != tarnv1.StepValidation && step != tarnv1.StepCreation {
		return nil
	}
	// The record decides, even if the provisioner's topology has changed: the storage is on that
	// node.
	if name := record.Status.NodeName; name != "" {
		return onNode(name)
	}
	if p.Spec.Topology != pavv1.TopologyNode && p.Spec.Topology != pavv1.TopologyClaims {
		return nil
	}
	class := &storagev1.StorageClass{}
	if err := json.Unmarshal(record.Spec.ClassSnapshot.Raw, class); err != nil {
		return nil // RecordVars has reported it
	}
	var terms []corev1.NodeSelectorTerm
	for _, allowed := range class.AllowedTopologies {
		var term corev1.NodeSelectorTerm
		for _, e := range allowed.MatchLabelExpressions {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: e.Key, Operator: corev1.NodeSelectorOpIn, Values: e.Values,
			})
		}
		terms = append(terms, term)
	}
	return terms
}

// onNode matches only that node.
func onNode(name string) []corev1.NodeSelectorTerm {
	return []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
		Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name},
	}}}}
}

// requireNodes restricts a pod to nodes that match one of the terms. The requirements of its
// template remain: each of them is combined with each term.
func requireNodes(pod *corev1.Pod, terms []corev1.NodeSelectorTerm) {
	if len(terms) == 0 {
		return
	}
	affinity := &corev1.Affinity{}
	if pod.Spec.Affinity != nil {
		affinity = pod.Spec.Affinity
	}
	if affinity.NodeAffinity == nil {
		affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	own := []corev1.NodeSelectorTerm{{}}
	if required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		own = required.NodeSelectorTerms
	}
	var both []corev1.NodeSelectorTerm
	for _, a := range own {
		for _, b := range terms {
			both = append(both, corev1.NodeSelectorTerm{
				MatchExpressions: slices.Concat(a.MatchExpressions, b.MatchExpressions),
				MatchFields:      slices.Concat(a.MatchFields, b.MatchFields),
			})
		}
	}
	affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: both}
	pod.Spec.Affinity = affinity
	if isOneNode(terms) {
		tolerateNode(pod)
	}
}

// isOneNode says whether the terms match a single node by its name.
func isOneNode(terms []corev1.NodeSelectorTerm) bool {
	return len(terms) == 1 && len(terms[0].MatchFields) > 0
}

// tolerateNode lets a pod run on the one node that has its storage, whatever its taints. No other
// node can do the work, and the consumer tolerates the taints. Under a taint that evicts, the pod
// stays as long as Kubernetes lets every pod stay on a dead node. The author's tolerations come
// first, because Kubernetes applies the first that matches a taint.
func tolerateNode(pod *corev1.Pod) {
	pod.Spec.Tolerations = append(slices.Clip(pod.Spec.Tolerations),
		corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)},
	)
}
