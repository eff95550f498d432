package steppod

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
	"tarn.dev/tarn/jinja"
)

// evaluationTime limits the evaluation of one section, live reads included.
const evaluationTime = 10 * time.Second

// Steps evaluates sections and makes their pods.
type Steps struct {
	// Client creates and deletes pods.
	Client client.Client
	// Reader reads live, for get_pvc and get_pv.
	Reader client.Reader
	// StateDir is the node agent's directory on every node.
	StateDir string
	// Namespaces are the allowed namespaces of the pods; nil means DefaultNamespaces.
	Namespaces Namespaces
	// EventsOf gives the Events about a pod or a claim, from which Unmounted and Unbound read what
	// keeps a pod from starting. It may be nil. See LiveEvents.
	EventsOf func(ctx context.Context, about client.Object) ([]corev1.Event, error)
	// Limits apply to each evaluation; zero fields mean the engine's defaults.
	Limits jinja.Limits
}

// Prepared is an evaluated section.
type Prepared struct {
	// Pod is the pod to start; nil if the section has no podTemplate.
	Pod *corev1.Pod
	// Inputs are a creation's handle and capacity, if its fields set them.
	Inputs tarnv1.PodInputs
	// Recovery is that of volumeStaging, by default Rebind.
	Recovery tarnv1.StageRecovery
	// Warning is for the users of the volume, about its staging; empty for none.
	Warning string
}

// PrepareValidation evaluates volumeValidation and checks the claim against it. A
// claim that does not fit gives a StepError with ReasonRefused.
func (s *Steps) PrepareValidation(ctx context.Context, p *pavv1.PavProvisioner, record *tarnv1.PavVolume, claim *corev1.PersistentVolumeClaim, attempt int32) (*Prepared, error) {
	section, err := s.evaluateRecord(ctx, tarnv1.StepValidation, p, record, claim)
	if err != nil {
		return nil, err
	}
	if err := checkClaim(p.Name, record, section); err != nil {
		return nil, err
	}
	return s.prepare(recordOrder(tarnv1.StepValidation, p, record, attempt), section)
}

// PrepareCreation evaluates volumeCreation.
func (s *Steps) PrepareCreation(ctx context.Context, p *pavv1.PavProvisioner, record *tarnv1.PavVolume, claim *corev1.PersistentVolumeClaim, attempt int32) (*Prepared, error) {
	section, err := s.evaluateRecord(ctx, tarnv1.StepCreation, p, record, claim)
	if err != nil {
		return nil, err
	}
	o := recordOrder(tarnv1.StepCreation, p, record, attempt)
	bytes, err := section.Capacity.parse("spec.volumeCreation.capacity", volume.RoundUp)
	if err != nil {
		return nil, failed(tarnv1.StepCreation, ReasonInvalid, "%v", err)
	}
	o.inputs.Capacity = ptr.Deref(bytes, 0)
	if section.Handle != nil {
		handle := strings.TrimSpace(*section.Handle) // as /pav/handle: YAML's "|" ends it with a newline
		if err := checkHandle(handle); err != nil {
			return nil, failed(tarnv1.StepCreation, ReasonInvalid, "spec.volumeCreation.handle: %v", err)
		}
		o.inputs.Handle = handle
	}
	return s.prepare(o, section)
}

// MarkFirst marks a creation pod, which must not be nil, as the first of its attempt.
func (p *Prepared) MarkFirst() error {
	p.Inputs.First = true
	return annotate(p.Pod, p.Inputs)
}

// PrepareDeletion evaluates volumeDeletion.
func (s *Steps) PrepareDeletion(ctx context.Context, p *pavv1.PavProvisioner, record *tarnv1.PavVolume, attempt int32) (*Prepared, error) {
	vars, err := DeletionVars(record)
	if err != nil {
		return nil, err
	}
	section, err := s.evaluate(ctx, tarnv1.StepDeletion, p, record.Spec.Claim.Namespace, record.Name, vars)
	if err != nil {
		return nil, err
	}
	return s.prepare(recordOrder(tarnv1.StepDeletion, p, record, attempt), section)
}

// PrepareStage evaluates volumeStaging or volumeUnstaging, as step says. vol must
// have a CSI source.
func (s *Steps) PrepareStage(ctx context.Context, step tarnv1.Step, p *pavv1.PavProvisioner, stage *tarnv1.PavStage, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, node *corev1.Node, attempt int32) (*Prepared, error) {
	vars, err := StageVars(stage, vol, claim, node)
	if err != nil {
		return nil, err
	}
	section, err := s.evaluate(ctx, step, p, claim.Namespace, vol.Name, vars)
	if err != nil {
		return nil, err
	}
	if step == tarnv1.StepStaging && section.PodTemplate == nil {
		return nil, failed(step, ReasonInvalid, "spec.volumeStaging.podTemplate is missing: %s", missingPod[step])
	}
	var warning string
	if step == tarnv1.StepStaging {
		if warning, err = unreadOptions(p, vol); err != nil {
			return nil, err
		}
		// A stage in use must not stay lost because of a Secret that nothing has read so far.
		if err := checkSecrets(p, vol); err != nil && !stage.Status.Pod.Staged {
			return nil, err
		}
		if err := checkOwnSecret(vol, claim); err != nil {
			return nil, err
		}
	}
	if section.Recovery == "" {
		section.Recovery = recoveries[0]
	}
	if !slices.Contains(recoveries, section.Recovery) {
		return nil, failed(step, ReasonInvalid, "spec.volumeStaging.recovery: %q is not one of %s", section.Recovery, join(recoveries))
	}
	o := s.stageOrder(step, p, stage, attempt)
	o.inputs.DeadlineSeconds = int64(section.DeadlineSeconds)
	prepared, err := s.prepare(o, section)
	if err == nil {
		prepared.Warning = warning
	}
	return prepared, err
}

// Start creates a prepared pod. A pod of that name that exists counts as started: Observe says
// whether it is ours. A pod whose content the API server rejects gives a StepError.
func (s *Steps) Start(ctx context.Context, pod *corev1.Pod) error {
	step := tarnv1.Step(pod.Labels[tarnv1.LabelStep])
	err := s.Client.Create(ctx, pod)
	if plain := withoutPriority(pod); apierrors.IsForbidden(err) && plain != nil {
		err = s.Client.Create(ctx, plain)
	}
	switch {
	case err == nil:
		return nil
	case apierrors.IsAlreadyExists(err):
		return s.adopt(ctx, pod)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return failed(step, ReasonNamespaceGone, "namespace %q, in which the %s pod should run, is being deleted; create it again once it is gone", pod.Namespace, step)
	case apierrors.IsNotFound(err):
		return failed(step, ReasonNamespaceGone, "there is no namespace %q, in which the %s pod should run; create it, or correct %s.%s.metadata.namespace",
			pod.Namespace, step, SectionField(step), PodField(step))
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return failed(step, ReasonPodRefused, "the API server rejected the %s pod in namespace %q: %v", step, pod.Namespace, err)
	default:
		return fmt.Errorf("creating pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
}

// adopt checks that the pod of that name is the one to be started.
func (s *Steps) adopt(ctx context.Context, pod *corev1.Pod) error {
	live := &corev1.Pod{}
	err := s.Reader.Get(ctx, client.ObjectKeyFromObject(pod), live)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("pod %s/%s was deleted while it was being started", pod.Namespace, pod.Name)
	}
	if err != nil {
		return fmt.Errorf("reading pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if OwnedBy(live, pod.OwnerReferences[0].UID) {
		return nil
	}
	return failed(tarnv1.Step(pod.Labels[tarnv1.LabelStep]), ReasonPodForeign, "%s", foreign(pod))
}

// Discard deletes a pod that is ours, and no other of that name. A pod that no longer exists is no
// error.
func (s *Steps) Discard(ctx context.Context, pod *corev1.Pod) error {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	err := s.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
	if err = client.IgnoreNotFound(err); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

func (s *Steps) evaluateRecord(ctx context.Context, step tarnv1.Step, p *pavv1.PavProvisioner, record *tarnv1.PavVolume, claim *corev1.PersistentVolumeClaim) (*evaluatedSection, error) {
	varsOf := RecordVars
	if step == tarnv1.StepValidation {
		varsOf = ValidationVars
	}
	vars, err := varsOf(record, claim)
	if err != nil {
		return nil, err
	}
	return s.evaluate(ctx, step, p, record.Spec.Claim.Namespace, record.Name, vars)
}

// evaluate renders a section and decodes it. own is the namespace of the claim, and volumeName names
// the volume.
func (s *Steps) evaluate(ctx context.Context, step tarnv1.Step, p *pavv1.PavProvisioner, own, volumeName string, vars map[string]any) (*evaluatedSection, error) {
	object, err := objectOf(p, step)
	if err != nil {
		return nil, failed(step, ReasonInvalid, "%s: %v", SectionField(step), err)
	}
	live := &lookups{reader: s.Reader, provisioner: p, own: own}
	live.addTo(vars)
	addClaims(vars, step, p, volumeName)
	ctx, cancel := context.WithTimeout(ctx, evaluationTime)
	defer cancel()
	value, err := evaluateLiterally(ctx, object, vars, s.Limits)
	if err != nil {
		if live.transient != nil {
			return nil, fmt.Errorf("evaluating %s: %w", SectionField(step), live.transient)
		}
		return nil, failed(step, ReasonTemplate, "%s", templateMessage(SectionField(step), err))
	}
	section, err := decodeSection(step, value)
	if err != nil {
		return nil, failed(step, ReasonInvalid, "%v", err)
	}
	return section, nil
}

func recordOrder(step tarnv1.Step, p *pavv1.PavProvisioner, record *tarnv1.PavVolume, attempt int32) order {
	return order{
		step: step, name: PodName(step, record.Spec.Claim.UID, attempt), provisioner: p.Name, volume: record.Name,
		owner: ownerReference("PavVolume", record), uidLabel: tarnv1.LabelRecord,
		nodes: nodesOf(step, p, record),
	}
}

func (s *Steps) stageOrder(step tarnv1.Step, p *pavv1.PavProvisioner, stage *tarnv1.PavStage, attempt int32) order {
	return order{
		step: step, name: PodName(step, stage.UID, attempt), provisioner: p.Name, volume: stage.Spec.VolumeName,
		owner: ownerReference("PavStage", stage), uidLabel: tarnv1.LabelStage,
		nodeName: stage.Spec.NodeName, folder: StageFolder(s.StateDir, stage.UID),
	}
}

func ownerReference(kind string, owner client.Object) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: tarnv1.GroupVersion.String(), Kind: kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: ptr.To(true),
	}
}

func (s *Steps) prepare(o order, section *evaluatedSection) (*Prepared, error) {
	o.namespaces = s.Namespaces
	prepared := &Prepared{Inputs: o.inputs, Recovery: section.Recovery}
	if section.PodTemplate == nil {
		return prepared, nil
	}
	pod, err := build(o, section.PodTemplate)
	if err != nil {
		return nil, err
	}
	prepared.Pod = pod
	return prepared, nil
}

// checkClaim checks a claim against an evaluated volumeValidation, in the original's order: volume
// mode, access modes, then sizes.
func checkClaim(provisioner string, record *tarnv1.PavVolume, section *evaluatedSection) error {
	fail := func(format string, args ...any) error {
		return failed(tarnv1.StepValidation, ReasonRefused, format, args...)
	}
	least, most, err := limitsOf(section)
	if err != nil {
		return err
	}
	modes := modesIn(section)
	want := record.Spec
	if !slices.Contains(modes, want.VolumeMode) {
		return fail("PavProvisioner %q can only provision volumes with volume mode %s, the claim asks for %s", provisioner, join(modes), want.VolumeMode)
	}
	for _, mode := range want.AccessModes {
		if section.AccessModes != nil && !slices.Contains(section.AccessModes, mode) {
			return fail("PavProvisioner %q can only provision volumes supporting access mode %s, the claim asks for %s", provisioner, join(section.AccessModes), mode)
		}
	}
	if most != nil && want.RequestedMinCapacity > *most {
		return fail("PavProvisioner %q cannot provision volumes with capacity greater than %s, the claim requests %s", provisioner, volume.Size(*most), volume.Size(want.RequestedMinCapacity))
	}
	if least != nil && want.RequestedMaxCapacity != nil && *want.RequestedMaxCapacity < *least {
		return fail("PavProvisioner %q cannot provision volumes with capacity less than %s, the claim's limit is %s", provisioner, volume.Size(*least), volume.Size(*want.RequestedMaxCapacity))
	}
	return nil
}

// limitsOf gives the sizes in bytes that an evaluated volumeValidation allows; nil means no limit.
func limitsOf(section *evaluatedSection) (least, most *int64, err error) {
	if least, err = section.MinCapacity.parse("spec.volumeValidation.minCapacity", volume.RoundDown); err == nil {
		most, err = section.MaxCapacity.parse("spec.volumeValidation.maxCapacity", volume.RoundUp)
	}
	if err != nil {
		return nil, nil, failed(tarnv1.StepValidation, ReasonInvalid, "%v", err)
	}
	if least != nil && most != nil && *least > *most {
		return nil, nil, failed(tarnv1.StepValidation, ReasonInvalid, "spec.volumeValidation: minCapacity (%d) must not be greater than maxCapacity (%d)", *least, *most)
	}
	return least, most, nil
}

// modesIn gives the volume modes that an evaluated volumeValidation allows.
func modesIn(section *evaluatedSection) []corev1.PersistentVolumeMode {
	if section.VolumeModes == nil {
		return []corev1.PersistentVolumeMode{corev1.PersistentVolumeFilesystem}
	}
	return section.VolumeModes
}

func join[T ~string](list []T) string {
	parts := make([]string, len(list))
	for i, item := range list {
		parts[i] = string(item)
	}
	return strings.Join(parts, ", ")
}

// StaticVars is the context of volumeValidation for a volume that was written by hand. The
// requested capacity is that of the volume, and there is no class.
func StaticVars(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) (map[string]any, error) {
	vars, err := volumeVars(vol, claim)
	if err != nil {
		return nil, err
	}
	bytes := volume.Bytes(vol.Spec.Capacity[corev1.ResourceStorage])
	vars["requestedVolumeMode"] = string(modeOf(vol))
	vars["requestedAccessModes"] = texts(claim.Spec.AccessModes)
	vars["requestedMinCapacity"], vars["requestedMaxCapacity"] = bytes, bytes
	return vars, nil
}

// PrepareStatic evaluates volumeValidation for a volume that was written by hand, and checks the
// volume against it. A volume that does not fit gives a StepError with ReasonVolumeRefused. A
// provisioner without volumeValidation accepts every volume.
func (s *Steps) PrepareStatic(ctx context.Context, p *pavv1.PavProvisioner, stage *tarnv1.PavStage, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) (*Prepared, error) {
	if p.Spec.VolumeValidation == nil {
		return &Prepared{}, nil
	}
	vars, err := StaticVars(vol, claim)
	if err != nil {
		return nil, err
	}
	section, err := s.evaluate(ctx, tarnv1.StepValidation, p, claim.Namespace, vol.Name, vars)
	if err != nil {
		return nil, err
	}
	if err := checkVolume(p.Name, vol, claim, section); err != nil {
		return nil, err
	}
	o := s.stageOrder(tarnv1.StepValidation, p, stage, 1)
	o.nodeName, o.folder = "", "" // it runs where its template says, with results
	if p.Spec.Topology == pavv1.TopologyNode {
		o.nodes = onNode(stage.Spec.NodeName)
	}
	return s.prepare(o, section)
}

// checkVolume checks a volume that was written by hand against an evaluated volumeValidation, in
// the order of checkClaim. It checks the access modes of the claim, not all those of the volume.
func checkVolume(provisioner string, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, section *evaluatedSection) error {
	refuse := func(format string, args ...any) error {
		return failed(tarnv1.StepValidation, ReasonVolumeRefused, "PersistentVolume %q: %s", vol.Name, fmt.Sprintf(format, args...))
	}
	least, most, err := limitsOf(section)
	if err != nil {
		return err
	}
	if modes := modesIn(section); !slices.Contains(modes, modeOf(vol)) {
		return refuse("spec.volumeMode is %s, PavProvisioner %q has %s in spec.volumeValidation.volumeModes; correct one of them", modeOf(vol), provisioner, join(modes))
	}
	for _, mode := range claim.Spec.AccessModes {
		if section.AccessModes != nil && !slices.Contains(section.AccessModes, mode) {
			return refuse("claim %s/%s has %s in spec.accessModes, PavProvisioner %q has %s in spec.volumeValidation.accessModes; correct one of them",
				claim.Namespace, claim.Name, mode, provisioner, join(section.AccessModes))
		}
	}
	bytes := volume.Bytes(vol.Spec.Capacity[corev1.ResourceStorage])
	if most != nil && bytes > *most {
		return refuse("spec.capacity.storage is %s, PavProvisioner %q has %s in spec.volumeValidation.maxCapacity; correct one of them", volume.Size(bytes), provisioner, volume.Size(*most))
	}
	if least != nil && bytes < *least {
		return refuse("spec.capacity.storage is %s, PavProvisioner %q has %s in spec.volumeValidation.minCapacity; correct one of them", volume.Size(bytes), provisioner, volume.Size(*least))
	}
	return nil
}
