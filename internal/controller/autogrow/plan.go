package autogrow

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// Events of claims that grow by themselves, on the PersistentVolumeClaim.
const (
	// eventGrown: the file system is as full as annotation `tarn.dev/auto-grow` says, so the claim
	// requests more.
	eventGrown = "AutoGrown"
	// eventInvalid: the annotation is not valid, so the claim does not grow by itself. Correct it as
	// the message says.
	eventInvalid = "AutoGrowInvalid"
	// eventUnknown: it is not known how full the volume is. The message says why, and what to do.
	eventUnknown = "AutoGrowUnknown"
	// eventRejected: the claim is full but may not or cannot grow. Correct what the message names.
	eventRejected = "AutoGrowRejected"
	// eventMax: the claim is full and has reached max. Raise max, or remove data.
	eventMax = "AutoGrowMaxReached"
	// eventRecovered: the last complaint about the claim is settled.
	eventRecovered = "AutoGrowRecovered"
)

// The outcomes of a step, as the metric counts them.
const (
	// grown: the claim requests more.
	grown = "grown"
	// rejected: the API server rejects the request, for example because of a quota.
	rejected = "rejected"
	// limited: the claim has reached max. It is counted once, until the claim has room again.
	limited = "max"
)

const (
	// quiet is how long a kubelet may say nothing about a claim. It measures the volumes of new pods
	// within two minutes.
	quiet = 5 * time.Minute
	// firstPause and longestPause limit the pause after a rejected step.
	firstPause, longestPause = time.Minute, time.Hour
	// ours is how many times larger than its volume a file system may be. A larger one is shared
	// with others, and growing the claim would not give it room.
	ours = 2
)

// Memory is what is remembered of a claim from one plan to the next, while pods of the node use it.
type Memory struct {
	// Known says that a plan has been made.
	Known bool
	// Settled is since when the claim has what it requests, zero while it is being resized. Capacity
	// is what it had then: a resize may be over before this node's plan sees it.
	Settled  time.Time
	Capacity int64
	// Silent is since when the kubelet says nothing about the claim, zero if it does.
	Silent time.Time
	// Told is the last complaint, which is not repeated.
	Told string
	// Rejections is the number of rejected steps in a row, and Retry when the next one is due.
	Rejections int32
	Retry      time.Time
}

// Plan is what to do about one claim.
type Plan struct {
	Actions []action.Action
	// Memory is for the next plan.
	Memory Memory
	// Outcome is what the metric counts, empty for nothing.
	Outcome string
}

// plan decides about the claim of the View, which has a setting. It distinguishes claims that cannot
// grow, claims whose usage is unknown, and claims with a reading.
func plan(v *View, now time.Time) Plan {
	p := Plan{Memory: v.Memory}
	claim := v.Claim
	if claim.DeletionTimestamp != nil || claim.Status.Phase != corev1.ClaimBound {
		return p
	}
	p.Memory.Known = true
	if volume.Bytes(volume.Request(claim)) > capacityOf(claim) {
		return p.resizing(v)
	}
	p.settle(v, now)
	grow, err := volume.AutoGrowOf(claim, v.Class)
	switch {
	case err != nil:
		p.complain(v, eventInvalid, err.Error(), err.Error())
	case isBlock(claim):
		p.complain(v, eventUnknown, "block", "nobody can say how full a block volume is, so it does not grow by itself; remove annotation "+tarnv1.AnnotationAutoGrow)
	case v.Class == nil || !ptr.Deref(v.Class.AllowVolumeExpansion, false):
		p.complain(v, eventRejected, "class", fmt.Sprintf("StorageClass %q does not exist or does not allow volumes to grow; set its field allowVolumeExpansion to true, or remove annotation %s",
			volume.ClassOf(claim), tarnv1.AnnotationAutoGrow))
	case v.Unanswered != "":
		p.complain(v, eventUnknown, "node", "it is not known how full the volume is: "+v.Unanswered)
	case v.Usage == nil || v.Usage.Time.IsZero():
		return p.silent(v, now)
	default:
		p.Memory.Silent = time.Time{}
		p.measured(v, grow, now)
	}
	return p
}

// resizing waits for the end of a resize. If the driver or a node fails, the claim is told once.
func (p Plan) resizing(v *View) Plan {
	p.Memory.Settled = time.Time{}
	for _, c := range v.Claim.Status.Conditions {
		failed := c.Type == corev1.PersistentVolumeClaimControllerResizeError || c.Type == corev1.PersistentVolumeClaimNodeResizeError
		if failed && c.Status == corev1.ConditionTrue {
			p.complain(v, eventRejected, "driver", "the volume cannot be resized, and the claim does not grow further until it is: "+c.Message)
			return p
		}
	}
	return p
}

// settle notes the moment from which readings count for a claim that has what it requests.
func (p *Plan) settle(v *View, now time.Time) {
	has := capacityOf(v.Claim)
	if !p.Memory.Settled.IsZero() && p.Memory.Capacity == has {
		return
	}
	p.Memory.Settled, p.Memory.Capacity = now, has
	if !v.Memory.Known && lastReading(v.Claim).IsZero() { // it has never grown by itself
		p.Memory.Settled = v.Claim.CreationTimestamp.Time
	}
}

// silent complains about a claim of which the kubelet says nothing for too long.
func (p Plan) silent(v *View, now time.Time) Plan {
	if p.Memory.Silent.IsZero() {
		p.Memory.Silent = now
	}
	if now.Sub(p.Memory.Silent) >= quiet {
		p.complain(v, eventUnknown, "silent", "the kubelet does not report how full the volume is; its driver must implement NodeGetVolumeStats")
	}
	return p
}

// measured decides by a reading.
func (p *Plan) measured(v *View, grow *volume.AutoGrow, now time.Time) {
	has := capacityOf(v.Claim)
	if v.Usage.Size/ours > has {
		p.complain(v, eventUnknown, "shared", fmt.Sprintf("the volume shares a file system of %s with others, so growing the claim would give it no room; remove annotation %s",
			volume.Size(v.Usage.Size), tarnv1.AnnotationAutoGrow))
		return
	}
	if limit, limited := v.Claim.Spec.Resources.Limits[corev1.ResourceStorage]; limited {
		grow.Max = min(grow.Max, volume.Bytes(limit))
	}
	full, percent := grow.Full(v.Usage.Used, v.Usage.Available)
	next := grow.Next(has)
	switch read := v.Usage.Time; {
	case !read.Add(-v.Usage.Ahead).After(p.Memory.Settled) || !read.After(lastReading(v.Claim)):
		return // from before the end of the last step
	case !full:
		if p.Memory.Told != "" {
			p.Actions = append(p.Actions, action.Emit{About: v.Claim, Type: corev1.EventTypeNormal, Reason: eventRecovered, Doing: "AutoGrow",
				Note: fmt.Sprintf("%d%% of the volume is used, and the claim grows at %d%%", percent, grow.At)})
		}
		p.Memory.Told, p.Memory.Rejections, p.Memory.Retry = "", 0, time.Time{}
	case next <= has:
		note := fmt.Sprintf("at least %d%% of the volume is used, and it does not grow beyond max=%s; raise max in annotation %s, or remove data", grow.At, volume.Size(grow.Max), tarnv1.AnnotationAutoGrow)
		if p.complain(v, eventMax, note, note) {
			p.Outcome = limited
		}
	case now.Before(p.Memory.Retry):
		return
	default:
		p.step(v, grow, percent, next, now)
	}
}

// step makes the claim request more. The patch names the version that was read.
func (p *Plan) step(v *View, grow *volume.AutoGrow, percent, next int64, now time.Time) {
	from, to := volume.Size(capacityOf(v.Claim)), volume.Size(next)
	claim := v.Claim.DeepCopy()
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(next, resource.BinarySI)
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, tarnv1.AnnotationAutoGrown, fmt.Sprintf("%s from=%s to=%s %s%s",
		now.UTC().Format(time.RFC3339), from, to, readingKey, v.Usage.Time.UTC().Format(time.RFC3339)))
	p.Actions = append(p.Actions, action.Patch{From: v.Claim, To: claim}, action.Emit{
		About: v.Claim, Type: corev1.EventTypeNormal, Reason: eventGrown, Doing: "AutoGrow",
		Note: fmt.Sprintf("the claim grows from %s to %s: %d%% of its file system is used, and it grows at %d%%", from, to, percent, grow.At),
	})
	p.Memory.Settled, p.Memory.Told, p.Memory.Rejections, p.Memory.Retry = time.Time{}, "", 0, time.Time{}
	p.Outcome = grown
}

// planRejected is the plan after the API server rejected the step of a plan.
func planRejected(v *View, err error, now time.Time) Plan {
	p := Plan{Memory: v.Memory, Outcome: rejected}
	p.Memory.Known = true
	p.settle(v, now)
	p.Memory.Rejections++
	p.Memory.Retry = now.Add(kube.Backoff(p.Memory.Rejections, firstPause, longestPause, string(v.Claim.UID)))
	p.complain(v, eventRejected, "request", fmt.Sprintf("the claim is full, but the API server rejects that it grows: %v; it is retried at least once an hour", err))
	return p
}

// complain emits a warning on the claim, unless it was the last one. The key tells complaints
// apart, because a note may have numbers that change.
func (p *Plan) complain(v *View, reason, key, note string) (said bool) {
	if key = reason + " " + key; p.Memory.Told == key {
		return false
	}
	p.Memory.Told = key
	p.Actions = append(p.Actions, action.Emit{About: v.Claim, Type: corev1.EventTypeWarning, Reason: reason, Doing: "AutoGrow", Note: note})
	return true
}

// readingKey precedes the time of a reading in annotation tarn.dev/auto-grown.
const readingKey = "reading="

// lastReading is the time of the reading that the last step of a claim used, zero for none.
func lastReading(claim *corev1.PersistentVolumeClaim) time.Time {
	for _, word := range strings.Fields(claim.Annotations[tarnv1.AnnotationAutoGrown]) {
		if text, is := strings.CutPrefix(word, readingKey); is {
			at, err := time.Parse(time.RFC3339, text)
			if err == nil {
				return at
			}
		}
	}
	return time.Time{}
}

func capacityOf(claim *corev1.PersistentVolumeClaim) int64 {
	return volume.Bytes(claim.Status.Capacity[corev1.ResourceStorage])
}
