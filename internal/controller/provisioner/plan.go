package provisioner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// Reasons of conditions Accepted and Ready of a PavProvisioner, and of its Events.
const (
	// ReasonAccepted: every section and the syntax of every template is valid.
	ReasonAccepted = "Accepted"
	// ReasonTemplateInvalid: a template has a syntax error. Correct it; tarn pav lint finds it
	// without a cluster.
	ReasonTemplateInvalid = "TemplateInvalid"
	// ReasonSpecInvalid: a section is invalid. Correct the field that the message names.
	ReasonSpecInvalid     = "SpecInvalid"
	ReasonDriverNameTaken = pavv1.ReasonDriverNameTaken
	// ReasonDeleting: the PavProvisioner is being deleted. It creates no volumes, and stays until
	// its volumes are gone.
	ReasonDeleting = "Deleting"
	// ReasonRegistered: at least one node serves the driver.
	ReasonRegistered = "Registered"
	// ReasonCapacityInvalid: spec.nodeCapacity cannot be evaluated for a StorageClass. Correct the
	// template, or the parameters of the class. Until then no node is avoided for that class.
	ReasonCapacityInvalid = "CapacityInvalid"
	// ReasonNoNode: no node serves the driver. See whether the node agents run.
	ReasonNoNode = "NoNode"
)

const (
	// eventAction is the action that Events name.
	eventAction = "Accept"
	// maxMessage is the greatest length of a condition's message, in bytes. metav1.Condition
	// allows as many characters.
	maxMessage = 32768
	// maxNamed is how many of the objects that keep a provisioner a message names.
	maxNamed = 5
)

// Plan is what to do, in this order.
type Plan struct {
	Actions []action.Action
}

func plan(v View, now time.Time) Plan {
	switch {
	case v.Provisioner == nil:
		return Plan{}
	case mayGo(v):
		// An object missing from the cache may exist, so the finalizer is removed only on a
		// live view.
		if !v.Live {
			return Plan{}
		}
		var actions []action.Action
		if v.Driver != nil && driverIsOurs(v.Provisioner, v.Driver) {
			actions = append(actions, action.Delete{Object: v.Driver})
		}
		return Plan{Actions: append(actions, action.RemoveFinalizer{Object: v.Provisioner, Name: tarnv1.FinalizerProvisioner})}
	case v.Provisioner.DeletionTimestamp != nil:
		return Plan{Actions: append(planSurplus(v), report(v, deleting(v), now)...)}
	}
	var actions []action.Action
	if !holding(v.Provisioner) {
		actions = append(actions, action.AddFinalizer{Object: v.Provisioner, Name: tarnv1.FinalizerProvisioner})
	}
	// A driver that says storageCapacity needs an object for each node and class.
	actions = slices.Concat(actions, planRooms(v), planDriver(v), planSurplus(v))
	return Plan{Actions: append(actions, report(v, accepted(v), now)...)}
}

// mayGo reports whether nothing in the view keeps a provisioner that is being deleted.
func mayGo(v View) bool {
	return v.Provisioner.DeletionTimestamp != nil && holding(v.Provisioner) && len(holders(v)) == 0
}

func holding(p *pavv1.PavProvisioner) bool {
	return slices.Contains(p.Finalizers, tarnv1.FinalizerProvisioner)
}

// accepted is the condition Accepted of a provisioner that is not being deleted.
func accepted(v View) metav1.Condition {
	c := metav1.Condition{Type: pavv1.ConditionAccepted, Status: metav1.ConditionFalse}
	switch {
	case nameTaken(v):
		c.Reason = ReasonDriverNameTaken
		c.Message = fmt.Sprintf("CSIDriver %q belongs to something else; remove that driver, or give this PavProvisioner another name", v.Driver.Name)
		if len(v.Problems) > 0 { // report them now: not only once the name is free
			c.Message += "; " + problemMessage(v.Problems)
		}
	case len(v.Problems) > 0:
		c.Reason, c.Message = problemReason(v.Problems), problemMessage(v.Problems)
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonAccepted, "every section and the syntax of every template are valid"
	}
	return c
}

// problemReason is the reason for the first problem. The message begins with the same problem.
func problemReason(problems []steppod.Problem) string {
	if problems[0].Line > 0 {
		return ReasonTemplateInvalid
	}
	return ReasonSpecInvalid
}

func problemMessage(problems []steppod.Problem) string {
	parts := make([]string, len(problems))
	for i, p := range problems {
		parts[i] = p.String()
	}
	return strings.Join(parts, "; ")
}

// deleting is the condition Accepted of a provisioner that is being deleted.
func deleting(v View) metav1.Condition {
	c := metav1.Condition{Type: pavv1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: ReasonDeleting}
	held := holders(v)
	if len(held) == 0 {
		c.Message = "deletion was requested; nothing of Tarn's blocks it"
		return c
	}
	named := held[:min(len(held), maxNamed)]
	c.Message = "deletion was requested; no new volumes are created or staged; waiting for the deletion of " + strings.Join(named, ", ")
	if more := len(held) - len(named); more > 0 {
		c.Message += fmt.Sprintf(" and %d more", more)
	}
	return c
}

// holders names what keeps a provisioner that is being deleted: stages, and volumes that may
// still need one of its pods.
func holders(v View) []string {
	var held []string
	for i := range v.Records {
		record := &v.Records[i]
		if why := holds(record, v.Volumes[record.Name]); why != "" {
			held = append(held, fmt.Sprintf("PavVolume %s (%s)", record.Name, why))
		}
	}
	for i := range v.Stages {
		stage := &v.Stages[i]
		held = append(held, fmt.Sprintf("PavStage %s (volume %s on node %s)", stage.Name, stage.Spec.VolumeName, stage.Spec.NodeName))
	}
	return held
}

// holds says why a record keeps its provisioner; empty if it does not.
//
//   - A Pending record keeps it until the record is dropped, shortly after the deletion of the
//     provisioner begins. Without that, the provisioner could be gone while an attempt begins.
//   - A volume released with policy Retain does not keep it, because no pod will run for its
//     data. It does if the policy is temporary: in the trash, or on the way into a pool.
//   - A Created record without PersistentVolume keeps it. Either the volume is being handed
//     over, or its PersistentVolume was removed by force. In both cases this provisioner may
//     still have to delete the storage.
func holds(record *tarnv1.PavVolume, vol *corev1.PersistentVolume) string {
	switch record.Status.Phase {
	case "", tarnv1.VolumePending:
		return "about to be deleted"
	case tarnv1.VolumeDisputed:
		return "" // no pod runs for it any more
	case tarnv1.VolumeCreated:
	default:
		return string(record.Status.Phase)
	}
	switch {
	case vol == nil:
		return "without a PersistentVolume"
	case vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		return "reclaim policy Delete"
	case joining(vol):
		return "being added to a pool"
	case vol.Status.Phase != corev1.VolumeReleased && vol.Status.Phase != corev1.VolumeFailed &&
		(vol.Status.Phase != corev1.VolumeAvailable || vol.Spec.ClaimRef != nil):
		return "in use by its claim"
	case volume.OwnPolicy(vol) == corev1.PersistentVolumeReclaimDelete:
		return "in the trash; tarn trash purge " + vol.Name + " deletes it"
	}
	return ""
}

// joining reports whether a volume has policy Retain only until it is in its pool.
func joining(vol *corev1.PersistentVolume) bool {
	return vol.Annotations[tarnv1.AnnotationPoolFilling] != ""
}

// planDriver creates or corrects the CSIDriver. It leaves a foreign CSIDriver alone, and
// creates none for a provisioner that was never valid.
func planDriver(v View) []action.Action {
	want := wantDriver(v.Provisioner)
	if v.Driver != nil && len(v.Problems) > 0 {
		want.Spec.StorageCapacity = v.Driver.Spec.StorageCapacity
	}
	switch {
	case v.Driver == nil && len(v.Problems) > 0:
		return nil
	case v.Driver == nil:
		return []action.Action{action.Create{Object: want}}
	case !driverIsOurs(v.Provisioner, v.Driver), v.Driver.DeletionTimestamp != nil:
		return nil
	case !equality.Semantic.DeepEqual(v.Driver.Spec.AttachRequired, want.Spec.AttachRequired),
		!slices.Equal(v.Driver.Spec.VolumeLifecycleModes, want.Spec.VolumeLifecycleModes):
		// These two fields are immutable.
		return []action.Action{action.Delete{Object: v.Driver}, action.Create{Object: want}}
	}
	if mended := mendDriver(v.Driver, want); mended != nil {
		return []action.Action{action.Update{To: mended}}
	}
	return nil
}

func wantDriver(p *pavv1.PavProvisioner) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{
			Name:            p.Name,
			Labels:          map[string]string{tarnv1.LabelProvisioner: p.Name},
			OwnerReferences: []metav1.OwnerReference{ownerOf(p)},
		},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired:       ptr.To(false),
			PodInfoOnMount:       ptr.To(true),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
			FSGroupPolicy:        ptr.To(storagev1.FileFSGroupPolicy),
			RequiresRepublish:    ptr.To(false),
			StorageCapacity:      ptr.To(p.Spec.NodeCapacity != nil),
		},
	}
}

// driverIsOurs goes by the owner. It goes by the label if the owner reference was lost or names
// an earlier provisioner of that name.
func driverIsOurs(p *pavv1.PavProvisioner, d *storagev1.CSIDriver) bool {
	return ownedBy(d, p) || d.Labels[tarnv1.LabelProvisioner] == p.Name
}

// nameTaken reports whether the provisioner's name belongs to a foreign CSIDriver.
func nameTaken(v View) bool { return v.Driver != nil && !driverIsOurs(v.Provisioner, v.Driver) }

func ownerOf(p *pavv1.PavProvisioner) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: pavv1.GroupVersion.String(), Kind: "PavProvisioner", Name: p.Name, UID: p.UID, Controller: ptr.To(true)}
}

func ownedBy(o metav1.Object, p *pavv1.PavProvisioner) bool {
	return slices.ContainsFunc(o.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == p.UID })
}

// mendDriver returns the corrected driver, nil if it is correct. A field that the API server
// defaults is no difference.
func mendDriver(d, want *storagev1.CSIDriver) *storagev1.CSIDriver {
	mended := d.DeepCopy()
	if mended.Labels == nil {
		mended.Labels = map[string]string{}
	}
	for key, value := range want.Labels {
		mended.Labels[key] = value
	}
	if !slices.ContainsFunc(d.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == want.OwnerReferences[0].UID }) {
		mended.OwnerReferences = want.OwnerReferences
	}
	s := &mended.Spec
	s.PodInfoOnMount, s.FSGroupPolicy, s.RequiresRepublish = want.Spec.PodInfoOnMount, want.Spec.FSGroupPolicy, want.Spec.RequiresRepublish
	if len(s.TokenRequests) > 0 {
		s.TokenRequests = nil
	}
	if ptr.Deref(s.SELinuxMount, false) {
		s.SELinuxMount = ptr.To(false)
	}
	if wanted := ptr.Deref(want.Spec.StorageCapacity, false); ptr.Deref(s.StorageCapacity, false) != wanted {
		s.StorageCapacity = ptr.To(wanted)
	}
	if equality.Semantic.DeepEqual(d, mended) {
		return nil
	}
	return mended
}

// report writes the status if it has changed. It emits a Warning if Accepted has become False,
// or is False for a new reason.
func report(v View, c metav1.Condition, now time.Time) []action.Action {
	p := v.Provisioner
	status := *p.Status.DeepCopy()
	status.ObservedGeneration, status.Nodes, status.Volumes = p.Generation, serving(v), made(v.Records)
	c.Message = kube.Cut(c.Message, maxMessage)
	before := meta.FindStatusCondition(p.Status.Conditions, c.Type)
	for _, condition := range []metav1.Condition{c, ready(v)} {
		condition.ObservedGeneration, condition.LastTransitionTime = p.Generation, metav1.NewTime(now)
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if equality.Semantic.DeepEqual(p.Status, status) {
		return nil
	}
	reported := p.DeepCopy()
	reported.Status = status
	actions := []action.Action{action.PatchStatus{From: p, To: reported}}
	if worthAWarning(before, c) {
		actions = append(actions, action.Emit{About: p, Type: corev1.EventTypeWarning, Reason: c.Reason, Doing: eventAction, Note: c.Message})
	}
	return actions
}

// worthAWarning leaves out the progress of a deletion, whose message changes with each volume
// that is removed.
func worthAWarning(before *metav1.Condition, c metav1.Condition) bool {
	switch {
	case c.Status == metav1.ConditionTrue:
		return false
	case before == nil, before.Status == metav1.ConditionTrue, before.Reason != c.Reason:
		return true
	}
	return c.Reason != ReasonDeleting && before.Message != c.Message
}

// serving is how many nodes serve the driver. A CSINode knows drivers by name alone, so the
// count is 0 if the name belongs to a foreign driver.
func serving(v View) int32 {
	if nameTaken(v) {
		return 0
	}
	return v.Nodes
}

// ready is the condition Ready. It reports a taken name during deletion too, because the node
// agents rely on it.
func ready(v View) metav1.Condition {
	c := metav1.Condition{Type: pavv1.ConditionReady, Status: metav1.ConditionTrue, Reason: ReasonRegistered}
	switch nodes := serving(v); {
	case nameTaken(v):
		c.Status, c.Reason = metav1.ConditionFalse, ReasonDriverNameTaken
		c.Message = fmt.Sprintf("CSIDriver %q belongs to something else; what kubelets have registered under that name is not counted", v.Driver.Name)
	case nodes == 0:
		c.Status, c.Reason = metav1.ConditionFalse, ReasonNoNode
		c.Message = "no kubelet has registered the driver; is Tarn's node agent running?"
	case nodes == 1:
		c.Message = "1 node serves the driver"
	default:
		c.Message = fmt.Sprintf("%d nodes serve the driver", nodes)
	}
	return c
}

// made counts the volumes that were created and still exist. A handle is set once a volume was
// created, and stays while its creation is undone.
func made(records []tarnv1.PavVolume) int32 {
	var n int32
	for i := range records {
		switch s := &records[i].Status; s.Phase {
		case tarnv1.VolumeCreated, tarnv1.VolumeDeleting:
			n++
		case tarnv1.VolumeUndoing:
			if s.Handle != "" {
				n++
			}
		}
	}
	return n
}
