package reclaim

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// await waits for the deletion pod. It reports what the pod waits for if that is unusual, and the
// end of that wait.
func await(v *View) Plan {
	o, p := v.Observed, Plan{Act: ActNone}
	switch {
	case o.Message != "":
		if p = say(v, reasonPodWaits, o.Message); p.Status != nil && o.State == steppod.PodGoing {
			p.Warning = o.Message
		}
		if p.Status != nil {
			p.WaitAction, p.WaitNote = o.WaitEvent(v.Pod)
		}
	case waitedFor(v) != "" && o.State == steppod.PodRunning:
		status := v.Record.Status.DeepCopy()
		underWay(status, v.Record, status.DeletionAttempts)
		p = Plan{Act: ActStatus, Status: status}
	}
	p.Next = o.CheckAt
	return p
}

// waitedFor is what the deletion pod was last seen to wait for, empty if that was nothing unusual.
func waitedFor(v *View) string {
	c := meta.FindStatusCondition(v.Record.Status.Conditions, tarnv1.ConditionDeletable)
	if c == nil || c.Reason != reasonPodWaits {
		return ""
	}
	return c.Message
}

// stop removes pods that must end before the next step. It warns of a pod that stays long, as that
// blocks the volume until a user checks the pod's node.
func stop(v *View, pods []corev1.Pod, now time.Time) Plan {
	var next time.Time
	overdue := ""
	for i := range pods {
		o := steppod.Observe(&pods[i], v.Record.UID, now)
		if o.State != steppod.PodGoing {
			continue // its end, or the begin of its deletion, is an event
		}
		next, overdue = kube.Sooner(next, o.CheckAt), cmp.Or(overdue, o.Message)
	}
	p := say(v, reasonCreating, cmp.Or(overdue, fmt.Sprintf("pod %s/%s has not ended yet", pods[0].Namespace, pods[0].Name)))
	p.Act, p.Stop, p.Next = ActStop, pods, next
	if p.Status != nil {
		p.Warning = overdue
	}
	return p
}

// withoutNode decides about a volume whose node is gone. Leftovers of a creation there hold no user
// data, and their claim gets a volume elsewhere. A volume that was used waits for its node, or
// until a user deletes the record to confirm that the storage is gone.
func withoutNode(v *View, now time.Time) Plan {
	node := v.Record.Status.NodeName
	switch {
	case v.Record.Status.Phase == tarnv1.VolumeUndoing:
		p := done(v, now)
		p.Warning, p.WarningReason = fmt.Sprintf("node %q is gone, so what was created there for the volume is not deleted", node), eventUndoSkipped
		return p
	case v.Record.DeletionTimestamp != nil:
		p := done(v, now)
		p.Warning = fmt.Sprintf("node %q is gone and PavVolume %s was deleted: its storage, with handle %q, is assumed to be gone with the node", node, v.Record.Name, v.Record.Status.Handle)
		return p
	}
	message := fmt.Sprintf("node %q, which has the volume's storage, is gone; the storage is deleted when the node is back; if the node will not come back: kubectl delete pavvolume %s", node, v.Record.Name)
	p := say(v, steppod.ReasonNodeGone, message)
	if p.Status != nil {
		p.Warning = message
	}
	return p
}
