package pool

import (
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// Reasons of condition Ready of a PersistentVolumeSet, and of its Events.
const (
	// reasonFilled: the pool has all its spare volumes.
	reasonFilled = "Filled"
	// reasonFilling: spare volumes are being created.
	reasonFilling = "Filling"
	// reasonFailing: creating spare volumes fails. Correct the cause in the message.
	reasonFailing = "Failing"
	// reasonNoNode: no node can take another spare volume. Add nodes or storage, or change the
	// template.
	reasonNoNode = "NoNode"
	// reasonAtMaximum: the pool has its maximum of volumes. Raise maximumReplicas, or remove
	// released and failed volumes.
	reasonAtMaximum = "AtMaximum"
	// reasonRefused: the API server rejects the claim or pod that creates a spare volume. Correct
	// what the message names.
	reasonRefused = "FillerRefused"
	// reasonDeleting: the set is being deleted. Volumes that are bound, made by hand or protected
	// stay.
	reasonDeleting = "Deleting"
	// reasonLabels: the labels of the template are invalid. Correct the field that the message
	// names.
	reasonLabels = "InvalidLabels"
	// reasonNoClass: the StorageClass does not exist or is being deleted. Create it, or correct
	// the template.
	reasonNoClass = "ClassMissing"
	// reasonNotDynamic: the StorageClass has no provisioner. Create volumes by hand and set
	// minimumReplicas to 0, or use another class.
	reasonNotDynamic = "ClassNotDynamic"
	// reasonTopology: the template selects nodes, but the class binds immediately. Use
	// volumeBindingMode WaitForFirstConsumer.
	reasonTopology = "ClassBindsImmediately"
	// reasonClassTaken: a StorageClass has the name that the set needs for itself. Delete it, or
	// give the set another name.
	reasonClassTaken = "FillerClassTaken"
	// reasonProvisioner: the PavProvisioner of the class cannot create volumes. Correct it as the
	// message says.
	reasonProvisioner = "ProvisionerNotReady"

	// eventGivenUp: the pool deletes a spare volume that it does not need any more, or whose node was
	// deleted.
	eventGivenUp = "SpareGivenUp"
	// eventKept: volumes or their storage stay behind. The message names them and the cause;
	// remove them by hand if you do not need them.
	eventKept = "VolumeKept"
)

// noProvisioner is the provisioner of classes whose volumes are made by hand.
const noProvisioner = "kubernetes.io/no-provisioner"

// counts are the volumes of a pool, each counted once. A lost one counts in the total alone. Outdated is part of the spares, and
// replaceable is the part of Outdated that may be given up. Coming are being made for other
// sets.
type counts struct {
	total, coming, used, spares, creating, recycling, released, failed, leaving, outdated, replaceable int32
}

func count(v *View) counts {
	n := counts{coming: v.Neighbours.Coming, leaving: v.Neighbours.Going, total: v.Neighbours.Coming + v.Neighbours.Going}
	seen := map[string]bool{}
	for i := range v.Volumes {
		vol := &v.Volumes[i]
		seen[vol.Name] = true
		switch v.stateOf(vol) {
		case spare:
			n.spares++
			if outdated(v.Set, vol) {
				n.outdated++
				if mayGiveUp(v, vol) {
					n.replaceable++
				}
			}
		case joining:
			n.creating++
		case used:
			n.used++
		case recycling:
			n.recycling++
		case released:
			n.released++
		case failed:
			n.failed++
		case leaving:
			n.leaving++
		}
		n.total++
	}
	for i := range v.Claims {
		claim := &v.Claims[i]
		switch {
		case seen[claim.Spec.VolumeName]:
			continue
		case claim.DeletionTimestamp == nil:
			n.creating++
		default: // the order was taken back
			n.leaving++
		}
		n.total++
	}
	return n
}

// trouble is why no volume can be created.
type trouble struct{ reason, message string }

func troubleOf(v *View) *trouble {
	t := v.Set.Spec.Template
	waitsForNode := v.Class != nil && waits(v.Class)
	switch {
	case v.Class == nil:
		return &trouble{reasonNoClass, fmt.Sprintf("there is no StorageClass %q; create it, or correct spec.template.spec.storageClassName", t.Spec.StorageClassName)}
	case v.Class.DeletionTimestamp != nil:
		return &trouble{reasonNoClass, fmt.Sprintf("StorageClass %q is being deleted", v.Class.Name)}
	case v.Class.Provisioner == noProvisioner:
		return &trouble{reasonNotDynamic, fmt.Sprintf("StorageClass %q has no provisioner that could create volumes; create them by hand with the labels of spec.selector, and set minimumReplicas to 0", v.Class.Name)}
	case (t.TopologyKey != "" || t.Spec.NodeAffinity != nil) && !waitsForNode:
		return &trouble{reasonTopology, fmt.Sprintf("spec.template has a topologyKey or spec.nodeAffinity, but StorageClass %q binds immediately, so no node is chosen; give it volumeBindingMode WaitForFirstConsumer, or remove them", v.Class.Name)}
	case v.Filler != nil && !madeFor(v.Set, v.Filler):
		return &trouble{reasonClassTaken, fmt.Sprintf("StorageClass %q exists and does not belong to this set; delete it, or give the set another name", v.Filler.Name)}
	case v.Filler != nil && v.Filler.DeletionTimestamp != nil:
		return &trouble{reasonClassTaken, fmt.Sprintf("StorageClass %q is being deleted", v.Filler.Name)}
	}
	path := field.NewPath("spec", "template", "metadata")
	if wrong := metavalidation.ValidateLabels(t.Metadata.Labels, path.Child("labels")); len(wrong) > 0 {
		return &trouble{reasonLabels, wrong.ToAggregate().Error()}
	}
	if p := v.Provisioner; p != nil {
		return provisionerTrouble(p)
	}
	return nil
}

func provisionerTrouble(p *pavv1.PavProvisioner) *trouble {
	accepted := meta.FindStatusCondition(p.Status.Conditions, pavv1.ConditionAccepted)
	switch {
	case p.DeletionTimestamp != nil:
		return &trouble{reasonProvisioner, fmt.Sprintf("PavProvisioner %q is being deleted and creates no new volumes", p.Name)}
	case !slices.Contains(p.Spec.ProvisioningModes, pavv1.ModeDynamic):
		return &trouble{reasonProvisioner, fmt.Sprintf("PavProvisioner %q does not have Dynamic in spec.provisioningModes", p.Name)}
	case accepted == nil:
		return &trouble{reasonProvisioner, fmt.Sprintf("PavProvisioner %q has not been checked yet", p.Name)}
	case accepted.Status != metav1.ConditionTrue:
		return &trouble{reasonProvisioner, fmt.Sprintf("PavProvisioner %q is not accepted: %s", p.Name, accepted.Message)}
	}
	return nil
}

// statusOf computes the set's status from the view.
func statusOf(v *View, now time.Time) tarnv1.PersistentVolumeSetStatus {
	n := count(v)
	status := *v.Set.Status.DeepCopy()
	status.Replicas, status.BoundReplicas, status.UnboundReplicas = n.total, n.used, n.spares
	status.CreatingReplicas, status.RecyclingReplicas, status.ReleasedReplicas = n.creating+n.coming, n.recycling, n.released
	status.FailedReplicas, status.OutdatedReplicas = n.failed, n.outdated
	status.Selector = labels.SelectorFromSet(v.Set.Spec.Selector).String()
	status.ObservedGeneration = v.Set.Generation
	ready := readyOf(v, n, now)
	ready.Type, ready.ObservedGeneration, ready.LastTransitionTime = tarnv1.ConditionReady, v.Set.Generation, metav1.NewTime(now)
	ready.Message = kube.Message(ready.Message)
	meta.SetStatusCondition(&status.Conditions, ready)
	return status
}

func readyOf(v *View, n counts, now time.Time) metav1.Condition {
	spec := v.Set.Spec
	not := func(reason, message string) metav1.Condition {
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: message}
	}
	have := fmt.Sprintf("%d of %d volumes are Available", n.spares, spec.MinimumReplicas) + scalerText(v) + nodesText(v)
	switch trouble := troubleOf(v); {
	case v.Set.DeletionTimestamp != nil:
		return not(reasonDeleting, "the set is being deleted; volumes that are bound, created by hand or protected are kept")
	case trouble != nil && spec.MinimumReplicas > 0:
		return not(trouble.reason, trouble.message)
	case n.spares >= spec.MinimumReplicas:
		return metav1.Condition{Status: metav1.ConditionTrue, Reason: reasonFilled, Message: have + replacing(v, n)}
	case v.Refused != "":
		return not(reasonRefused, have+"; the API server rejects the creation of another: "+v.Refused)
	case n.creating+n.coming == 0 && n.total < spec.MaximumReplicas && room(v, n) <= 0:
		return not(reasonAtMaximum, have+limitedText(v))
	case n.creating+n.coming == 0 && n.total >= spec.MaximumReplicas:
		return not(reasonAtMaximum, fmt.Sprintf("%s, but there are %d volumes and maximumReplicas is %d; raise it, or delete released (%d) and failed (%d) volumes; %d are being recycled",
			have, n.total, spec.MaximumReplicas, n.released, n.failed, n.recycling)+leavingText(v)+protectedText(v, n))
	}
	have += fmt.Sprintf(", %d are being created", n.creating+n.coming)
	for i := range v.Claims {
		if failure := v.Failures[v.Claims[i].Name]; failure != "" {
			return not(reasonFailing, have+"; the last failure: "+failure)
		}
	}
	for i := range v.Pods {
		if why := unschedulable(&v.Pods[i]); why != "" {
			return not(reasonNoNode, have+"; no node is found for another: "+why)
		}
	}
	if !burstEnds(v, n, now).IsZero() {
		have += "; more are created once the current burst of claims is served"
	}
	return not(reasonFilling, have)
}

// nodesText describes the spares that cannot be used or replaced where they are.
func nodesText(v *View) (text string) {
	if len(v.Closed) > 0 {
		there := v.names(func(vol *corev1.PersistentVolume, state state) bool {
			return state == spare && slices.Contains(v.Closed, vol.Annotations[tarnv1.AnnotationPoolTopology])
		})
		text = fmt.Sprintf("; no node of %s %s accepts volumes now, so none is created there, and %d of them wait for it",
			v.Set.Spec.Template.TopologyKey, strings.Join(v.Closed, ", "), len(there))
	}
	if names := v.names(func(_ *corev1.PersistentVolume, state state) bool { return state == lost }); len(names) > 0 {
		text += fmt.Sprintf("; %d do not count, because no node matches their node affinity any more: %s", len(names), strings.Join(names, ", "))
	}
	return text
}

// replacing describes what is unusual in a full pool.
func replacing(v *View, n counts) string {
	spec := v.Set.Spec
	text := protectedText(v, n)
	switch {
	case n.replaceable == 0:
		if n.total > spec.MaximumReplicas {
			text = leavingText(v) + text
		}
		return text
	case n.spares == spec.MinimumReplicas && n.total < spec.MaximumReplicas && room(v, n) <= 0 && n.creating == 0:
		return fmt.Sprintf("; %d of an older template cannot be replaced", n.replaceable) + limitedText(v) + text
	case n.spares == spec.MinimumReplicas && n.total >= spec.MaximumReplicas && n.creating == 0:
		return fmt.Sprintf("; %d of an older template cannot be replaced while there are maximumReplicas volumes; raise maximumReplicas", n.replaceable) + leavingText(v) + text
	}
	return fmt.Sprintf("; %d of an older template are being replaced", n.replaceable) + text
}

// leavingText describes the departures, and names the oldest.
func leavingText(v *View) string {
	all := departures(v)
	if len(all) == 0 {
		return ""
	}
	longest := all[0]
	for _, d := range all[1:] {
		if !d.since.IsZero() && (longest.since.IsZero() || d.since.Before(longest.since)) {
			longest = d
		}
	}
	text := fmt.Sprintf("; %d are being deleted: %s", len(all), longest.name)
	if !longest.since.IsZero() {
		text += " since " + longest.since.UTC().Format(time.RFC3339)
	}
	return text
}

// protectedText describes the volumes that would be given up if they were not protected.
func protectedText(v *View, n counts) string {
	over := n.total-n.leaving > v.Set.Spec.MaximumReplicas
	names := v.names(func(vol *corev1.PersistentVolume, state state) bool {
		return volume.DeletionProtected(vol) && (state == leaving && staysGivenUp(vol) || state == spare && (over || outdated(v.Set, vol)))
	})
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("; %d should be deleted but are kept, because their label %s protects them from deletion: %s",
		len(names), tarnv1.LabelDeletionProtection, strings.Join(names, ", "))
}

func unschedulable(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return c.Message
		}
	}
	return ""
}

// report writes the status if it has changed, and emits an Event about a set that can no longer
// be filled.
func report(v *View, now time.Time) []action.Action {
	status := statusOf(v, now)
	told := reportScalers(v, status, now)
	if equality.Semantic.DeepEqual(status, v.Set.Status) {
		return told
	}
	to := v.Set.DeepCopy()
	to.Status = status
	actions := action.Together{action.PatchStatus{From: v.Set, To: to}}
	was, is := meta.FindStatusCondition(v.Set.Status.Conditions, tarnv1.ConditionReady), meta.FindStatusCondition(status.Conditions, tarnv1.ConditionReady)
	quiet := is.Status == metav1.ConditionTrue || is.Reason == reasonFilling || is.Reason == reasonDeleting
	if !quiet && (was == nil || was.Reason != is.Reason) {
		actions = append(actions, v.event(corev1.EventTypeWarning, is.Reason, is.Message))
	}
	return append(told, actions)
}

// eventAction is the action that Events name.
const eventAction = "Pool"

// event is an Event about the set.
func (v *View) event(kind, reason, note string) action.Emit {
	return action.Emit{About: v.Set, Type: kind, Reason: reason, Doing: eventAction, Note: note}
}

// kept is an Event about what stays behind. Each has an action of its own, because Kubernetes
// merges Events that differ only in their note.
func (v *View) kept(format string, args ...any) action.Emit {
	e := v.event(corev1.EventTypeWarning, eventKept, fmt.Sprintf(format, args...))
	e.Doing = fmt.Sprintf("%s%08x", eventAction, crc32.ChecksumIEEE([]byte(e.Note)))
	return e
}

// names are the names of the volumes that are chosen by themselves and their state.
func (v *View) names(chosen func(*corev1.PersistentVolume, state) bool) []string {
	var names []string
	for i := range v.Volumes {
		if vol := &v.Volumes[i]; chosen(vol, v.stateOf(vol)) {
			names = append(names, vol.Name)
		}
	}
	return names
}
