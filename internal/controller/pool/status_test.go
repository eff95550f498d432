package pool

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

func TestAReleasedVolumeIsCountedByWhatBecomesOfIt(t *testing.T) {
	s := set(0, 9)
	asks := func(vol *corev1.PersistentVolume) {
		metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationRecycle, string(tarnv1.RecycleZero))
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	held := func(vol *corev1.PersistentVolume) { volume.Hold(vol, "1h") }
	policy := func(p corev1.PersistentVolumeReclaimPolicy) func(*corev1.PersistentVolume) {
		return func(vol *corev1.PersistentVolume) { vol.Spec.PersistentVolumeReclaimPolicy = p }
	}
	scrubbed := func(vol *corev1.PersistentVolume) {
		vol.UID = "uid"
		vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: testNamespace, Name: tarnv1.ScrubPrefix + "uid", UID: "scrub"}
	}
	gone := in(corev1.VolumeReleased)
	for _, c := range []struct {
		name   string
		vol    *corev1.PersistentVolume
		change func(*View)
		want   counts
	}{
		{"kept by its policy", volumeOf(s, "a", boundTo("x"), gone, policy(corev1.PersistentVolumeReclaimRetain)), nil, counts{total: 1, released: 1}},
		{"to be deleted", volumeOf(s, "a", boundTo("x"), gone, asks, policy(corev1.PersistentVolumeReclaimDelete)), nil, counts{total: 1, released: 1}},
		{"of policy Recycle", volumeOf(s, "a", boundTo("x"), gone, policy(corev1.PersistentVolumeReclaimRecycle)), nil, counts{total: 1, recycling: 1}},
		{"to be recycled by its own word", volumeOf(s, "a", boundTo("x"), gone, asks), nil, counts{total: 1, recycling: 1}},
		{"to be recycled by the word of its class", volumeOf(s, "a", boundTo("x"), gone, policy(corev1.PersistentVolumeReclaimRetain)), func(v *View) {
			metav1.SetMetaDataAnnotation(&v.Class.ObjectMeta, tarnv1.AnnotationRecycle, string(tarnv1.RecycleFiles))
		}, counts{total: 1, recycling: 1}},
		{"in the trash before it is recycled", volumeOf(s, "a", boundTo("x"), gone, asks, held), nil, counts{total: 1, released: 1}},
		{"bound to its scrub claim", volumeOf(s, "a", scrubbed, in(corev1.VolumeBound), asks), nil, counts{total: 1, recycling: 1}},
		{"of its scrub claim that has gone", volumeOf(s, "a", scrubbed, gone, asks), nil, counts{total: 1, recycling: 1}},
		{"that could not be recycled", volumeOf(s, "a", boundTo("x"), in(corev1.VolumeFailed), asks), nil, counts{total: 1, failed: 1}},
		{"bound to a claim of that name elsewhere", volumeOf(s, "a", scrubbed, func(vol *corev1.PersistentVolume) { vol.Spec.ClaimRef.Namespace = "shop" }, in(corev1.VolumeBound)), nil, counts{total: 1, used: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := view(s, c.vol)
			if c.change != nil {
				c.change(v)
			}
			if got := count(v); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestReadySaysWhyNot(t *testing.T) {
	s := set(2, 4)
	for _, c := range []struct {
		name, wantReason, wantPart string
		view                       *View
	}{
		{"full", reasonFilled, "2 of 2", view(s, volumeOf(s, "a"), volumeOf(s, "b"))},
		{"full where a zone is away", reasonFilled, "2 of 2 volumes are Available; no node of zone y accepts volumes now, so none is created there, and 1 of them wait for it", with(
			view(s, volumeOf(s, "a", annotated(tarnv1.AnnotationPoolTopology, "x")), volumeOf(s, "b", annotated(tarnv1.AnnotationPoolTopology, "y"))), func(v *View) {
				v.Set = set(2, 4, func(s *tarnv1.PersistentVolumeSet) { s.Spec.Template.TopologyKey = "zone" })
				v.Open, v.Closed = []string{"x"}, []string{"y"}
				waitsForConsumer(v)
			})},
		{"filling as a node is gone", reasonFilling, "1 of 2 volumes are Available; 1 do not count, because no node matches their node affinity any more: b", withLost(view(s, volumeOf(s, "a"), volumeOf(s, "b")), "b")},
		{"filling", reasonFilling, "1 of 2 volumes are Available, 1 are being created", withClaims(view(s, volumeOf(s, "a")), filler(s, 0, ""))},
		{"a creation fails", reasonFailing, "disk full", with(withClaims(view(s), filler(s, 0, "")), func(v *View) { v.Failures["pool-set-uid-0"] = "disk full" })},
		{"no node", reasonNoNode, "0/1 nodes", with(withClaims(view(s), filler(s, 0, "")), func(v *View) {
			v.Pods = []corev1.Pod{{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available"}}}}}
		})},
		{"the API server refuses", reasonRefused, "quota", with(view(s), func(v *View) { v.Refused = "exceeded quota" })},
		{"at the maximum", reasonAtMaximum, "maximumReplicas is 1", view(set(1, 1), volumeOf(s, "a", boundTo("x")))},
		{"at the maximum because of one that is being deleted", reasonAtMaximum, "1 are being deleted: volume a since 2026-11-20T11:00:00Z", view(set(1, 1), volumeOf(s, "a", leavingLong))},
		{"above the maximum for those that are protected", reasonFilled, "1 should be deleted but are kept, because their label tarn.dev/deletion-protection protects them from deletion: a", view(set(0, 0), volumeOf(s, "a", protected))},
		{"above the maximum for one that is being deleted", reasonFilled, "1 are being deleted: volume a since 2026-11-20T11:00:00Z", view(set(1, 1), volumeOf(s, "a", leavingLong), volumeOf(s, "b"))},
		{"an old template that is protected", reasonFilled, "1 should be deleted but are kept", view(set(2, 2), volumeOf(s, "a"), volumeOf(s, "b", ofOldTemplate, protected))},
		{"no class", reasonNoClass, `StorageClass "fast"`, with(view(s), func(v *View) { v.Class = nil })},
		{"a class without provisioner", reasonNotDynamic, "by hand", with(view(s), func(v *View) { v.Class.Provisioner = noProvisioner })},
		{"nodes asked for of a class that chooses none", reasonTopology, "WaitForFirstConsumer", view(set(1, 1, func(s *tarnv1.PersistentVolumeSet) { s.Spec.Template.TopologyKey = "zone" }))},
		{"a filler class of somebody else", reasonClassTaken, "tarn-pool-gold", with(view(s), func(v *View) { v.Filler.Labels = nil })},
		{"labels that are none", reasonLabels, "labels", with(view(set(1, 1)), func(v *View) { v.Set.Spec.Template.Metadata.Labels["a b"] = "" })},
		{"going", reasonDeleting, "volumes that are bound, created by hand or protected are kept", view(set(1, 1, func(s *tarnv1.PersistentVolumeSet) { s.DeletionTimestamp = &anHourAgo }))},
	} {
		t.Run(c.name, func(t *testing.T) {
			ready := meta.FindStatusCondition(statusOf(c.view, testTime).Conditions, tarnv1.ConditionReady)
			if ready.Reason != c.wantReason || !strings.Contains(ready.Message, c.wantPart) || (ready.Status == metav1.ConditionTrue) != (c.wantReason == reasonFilled) {
				t.Errorf("got %s, %s: %s; want %s with %q", ready.Status, ready.Reason, ready.Message, c.wantReason, c.wantPart)
			}
		})
	}
}

func TestReadySaysWhichSetLeavesNoRoom(t *testing.T) {
	s := set(2, 4)
	v := view(s, volumeOf(s, "a"))
	v.Neighbours = Neighbours{Any: true, Limits: []Limit{{"wide", 9, 3}, {"silver", 1, 1}}}
	ready := readyOf(v, count(v), testTime)
	if ready.Status != metav1.ConditionFalse || ready.Reason != reasonAtMaximum || !strings.Contains(ready.Message, "1 of 2 volumes are Available; PersistentVolumeSet silver") || strings.Contains(ready.Message, "wide") {
		t.Errorf("got %s: %s", ready.Reason, ready.Message)
	}
	v.Neighbours.Limits, v.Neighbours.Coming = nil, 1
	if status := statusOf(v, testTime); status.CreatingReplicas != 1 || status.Replicas != 2 {
		t.Errorf("what another set has being made is not counted: %+v", status)
	}
}
