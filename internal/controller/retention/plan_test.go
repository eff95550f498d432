package retention

import (
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

var (
	now     = time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
	gone    = metav1.NewTime(now.Add(-time.Hour))
	remains = `{"labels":{"app":"shop"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}},"storageClassName":"fast"}}`
)

type change = func(*View)

// viewOf is a volume bound to its claim, in a class with a retention of three days.
func viewOf(changes ...change) *View {
	claim := testkit.Claim("shop", "data", "u", "fast", func(c *corev1.PersistentVolumeClaim) {
		c.Labels, c.Spec.VolumeName = map[string]string{"app": "shop"}, "pvc-u"
	})
	v := &View{
		Namespace: "tarn-system", Claim: claim,
		Class: testkit.Class("fast", func(c *storagev1.StorageClass) {
			c.Annotations = map[string]string{tarnv1.AnnotationRetention: "72h"}
		}),
		Volume: testkit.Volume(testkit.Record(claim, "fast", tarnv1.VolumeCreated), func(vol *corev1.PersistentVolume) {
			vol.Spec.StorageClassName = "fast"
			vol.Status.LastPhaseTransitionTime = &gone
		}),
	}
	for _, c := range changes {
		c(v)
	}
	return v
}

func classSays(text string) change {
	return func(v *View) { v.Class.Annotations[tarnv1.AnnotationRetention] = text }
}

func volumeSays(text string) change { return annotated(tarnv1.AnnotationRetention, text) }

func setSays(texts ...string) change {
	return func(v *View) {
		for _, text := range texts {
			v.Sets = append(v.Sets, tarnv1.PersistentVolumeSet{ObjectMeta: metav1.ObjectMeta{Name: "s", Annotations: map[string]string{tarnv1.AnnotationRetention: text}}})
		}
	}
}

func annotated(name, value string) change {
	return func(v *View) { metav1.SetMetaDataAnnotation(&v.Volume.ObjectMeta, name, value) }
}

func policy(p corev1.PersistentVolumeReclaimPolicy) change {
	return func(v *View) { v.Volume.Spec.PersistentVolumeReclaimPolicy = p }
}

// held makes the volume a held one, with this policy to restore.
func held(own corev1.PersistentVolumeReclaimPolicy) change {
	return func(v *View) {
		policy(own)(v)
		volume.Hold(v.Volume, "72h")
		annotated(tarnv1.AnnotationClaim, remains)(v)
	}
}

func orphaned(v *View) { v.Claim, v.Volume.Status.Phase = nil, corev1.VolumeReleased }

func trashedUntil(at time.Time) change {
	return func(v *View) { orphaned(v); volume.Trash(v.Volume, at) }
}

const (
	deletes  = corev1.PersistentVolumeReclaimDelete
	recycles = corev1.PersistentVolumeReclaimRecycle
	retains  = corev1.PersistentVolumeReclaimRetain
)

// marks gives the trash's annotations and the policy of a volume.
func marks(vol *corev1.PersistentVolume) map[string]string {
	found := map[string]string{"policy": string(vol.Spec.PersistentVolumeReclaimPolicy)}
	for _, name := range []string{tarnv1.AnnotationReclaimPolicy, tarnv1.AnnotationHeldFor, tarnv1.AnnotationTrashedUntil, tarnv1.AnnotationClaim} {
		if value, ok := vol.Annotations[name]; ok {
			found[strings.TrimPrefix(name, "tarn.dev/")] = value
		}
	}
	if shown, ok := vol.Labels[tarnv1.LabelTrashedUntil]; ok {
		found["shown"] = shown
	}
	return found
}

func TestPlan(t *testing.T) {
	bound := func(own, heldFor string) map[string]string {
		return map[string]string{"policy": "Retain", "reclaim-policy": own, "held-for": heldFor, "claim": remains}
	}
	kept := func(own, heldFor, until, shown string) map[string]string {
		m := bound(own, heldFor)
		m["trashed-until"], m["shown"] = until, shown
		return m
	}
	later, earlier := now.Add(time.Hour), now.Add(-time.Minute)
	for _, c := range []struct {
		name string
		view *View
		// want are the marks written; nil means no write.
		want      map[string]string
		wantGrave bool
		wantEvent string
		wantNext  time.Time
	}{
		{"a volume with a claim is held, and the claim remembered", viewOf(), bound("Delete", "72h"), false, "", time.Time{}},
		{"what is held is not written again", viewOf(held(deletes)), nil, false, "", time.Time{}},
		{"one to be recycled is held", viewOf(policy(recycles)), bound("Recycle", "72h"), false, "", time.Time{}},
		{"one that is retained anyway is remembered too", viewOf(policy(retains)), bound("Retain", "72h"), false, "", time.Time{}},
		{"a policy set while it is held is the one it is to have", viewOf(held(retains), policy(deletes)), bound("Delete", "72h"), false, "", time.Time{}},
		{"a claim that changes is remembered as it is", viewOf(held(deletes), func(v *View) { v.Claim.Labels = nil }),
			map[string]string{"policy": "Retain", "reclaim-policy": "Delete", "held-for": "72h", "claim": strings.Replace(remains, `"labels":{"app":"shop"},`, "", 1)}, false, "", time.Time{}},
		{"a volume without retention is left alone", viewOf(classSays("")), nil, false, "", time.Time{}},
		{"0s is no retention", viewOf(classSays("0s")), nil, false, "", time.Time{}},
		{"the class' parameter counts", viewOf(classSays(""), func(v *View) { v.Class.Parameters[tarnv1.AnnotationRetention] = "2d" }), bound("Delete", "2d"), false, "", time.Time{}},
		{"the volume's own word comes before the class'", viewOf(volumeSays("1h")), bound("Delete", "1h"), false, "", time.Time{}},
		{"the volume can say no", viewOf(held(deletes), volumeSays("0s")), map[string]string{"policy": "Delete"}, false, "", time.Time{}},
		{"the set's word comes before the class'", viewOf(setSays("5h")), bound("Delete", "5h"), false, "", time.Time{}},
		{"of several sets the longest counts", viewOf(setSays("5h", "2d", "1h")), bound("Delete", "2d"), false, "", time.Time{}},
		{"what is wrong keeps the volume and says so", viewOf(classSays("soon")), bound("Delete", ""), false, eventInvalid, time.Time{}},
		{"what has become wrong leaves what was held", viewOf(held(deletes), setSays("1h", "-1h")), nil, false, eventInvalid, time.Time{}},
		{"a retention taken back gives the policy back", viewOf(held(recycles), classSays("")), map[string]string{"policy": "Recycle"}, false, "", time.Time{}},
		{"a class that is deleted takes nothing back", viewOf(held(deletes), func(v *View) { v.Class = nil }), nil, false, "", time.Time{}},
		{"a class that was never there holds nothing", viewOf(func(v *View) { v.Class = nil }), nil, false, "", time.Time{}},
		{"a volume bound again is not in the trash any more", viewOf(held(deletes), func(v *View) { volume.Trash(v.Volume, later) }), bound("Delete", "72h"), false, "", time.Time{}},
		{"a volume whose claim has taken it is held before it is Bound", viewOf(func(v *View) { v.Volume.Status.Phase = corev1.VolumeAvailable }), bound("Delete", "72h"), false, "", time.Time{}},
		{"a volume whose claim may take another one is not held", viewOf(func(v *View) { v.Volume.Status.Phase, v.Claim.Spec.VolumeName = corev1.VolumeAvailable, "" }), nil, false, "", time.Time{}},

		{"a released volume is kept from then on", viewOf(held(deletes), orphaned), kept("Delete", "72h", "2026-11-23T13:00:00Z", "2026-11-23T13.00.00Z"), false, eventTrashed, now.Add(71 * time.Hour)},
		{"a retention that was shortened meanwhile counts", viewOf(held(deletes), orphaned, classSays("2h")), kept("Delete", "2h", "2026-11-20T15:00:00Z", "2026-11-20T15.00.00Z"), false, eventTrashed, now.Add(time.Hour)},
		{"the class gone, what was held counts", viewOf(held(deletes), orphaned, func(v *View) { v.Class = nil }), kept("Delete", "72h", "2026-11-23T13:00:00Z", "2026-11-23T13.00.00Z"), false, eventTrashed, now.Add(71 * time.Hour)},
		{"a text that is wrong now, what was held counts", viewOf(held(deletes), orphaned, classSays("x")), kept("Delete", "72h", "2026-11-23T13:00:00Z", "2026-11-23T13.00.00Z"), false, eventTrashed, now.Add(71 * time.Hour)},
		{"a text that was always wrong keeps the volume with no end", viewOf(orphaned, classSays("x")), map[string]string{"policy": "Retain", "reclaim-policy": "Delete", "held-for": ""}, false, eventInvalid, time.Time{}},
		{"one released before it could be held is held now", viewOf(orphaned), map[string]string{"policy": "Retain", "reclaim-policy": "Delete", "held-for": "72h", "trashed-until": "2026-11-23T13:00:00Z", "shown": "2026-11-23T13.00.00Z"}, false, eventTrashed, now.Add(71 * time.Hour)},
		{"one without retention goes its way", viewOf(orphaned, classSays("")), nil, false, "", time.Time{}},

		{"in the trash it waits", viewOf(held(deletes), trashedUntil(later)), nil, false, "", later},
		{"a time that was changed is shown", viewOf(held(deletes), trashedUntil(later), annotated(tarnv1.AnnotationTrashedUntil, "2026-12-24T00:00:00Z")),
			kept("Delete", "72h", "2026-12-24T00:00:00Z", "2026-12-24T00.00.00Z"), false, "", time.Date(2026, 12, 24, 0, 0, 0, 0, time.UTC)},
		{"a time that is none is told", viewOf(held(deletes), trashedUntil(later), annotated(tarnv1.AnnotationTrashedUntil, "tomorrow")), nil, false, eventInvalid, time.Time{}},
		{"when the time is over it gets its policy, after live looks", viewOf(held(deletes), trashedUntil(earlier)),
			map[string]string{"policy": "Delete", "trashed-until": "2026-11-20T13:59:00Z", "claim": remains}, true, eventOver, time.Time{}},
		{"so does one to be recycled", viewOf(held(recycles), trashedUntil(now)),
			map[string]string{"policy": "Recycle", "trashed-until": "2026-11-20T14:00:00Z", "claim": remains}, true, eventOver, time.Time{}},
		{"one that is retained stays, with its claim remembered", viewOf(held(retains), trashedUntil(earlier)),
			map[string]string{"policy": "Retain", "trashed-until": "2026-11-20T13:59:00Z", "claim": remains}, false, eventOver, time.Time{}},
		{"one protected from deletion stays in the trash", viewOf(held(deletes), trashedUntil(earlier), func(v *View) {
			v.Volume.Labels[tarnv1.LabelDeletionProtection] = "true"
		}), nil, false, eventProtected, time.Time{}},
		{"one that is over is not kept a second time", viewOf(trashedUntil(earlier), func(v *View) { delete(v.Volume.Labels, tarnv1.LabelTrashedUntil) }), nil, false, "", time.Time{}},
		{"a policy set by hand in the trash is obeyed", viewOf(held(deletes), trashedUntil(later), policy(deletes)),
			map[string]string{"policy": "Delete", "reclaim-policy": "Delete", "held-for": "72h", "trashed-until": "2026-11-20T15:00:00Z", "claim": remains}, false, "", time.Time{}},

		{"a volume promised by name is left alone", viewOf(held(deletes), orphaned, func(v *View) { v.Volume.Spec.ClaimRef.UID = "" }), nil, false, "", time.Time{}},
		{"a volume whose claimRef was cleared keeps its policy until it is Available", viewOf(held(deletes), trashedUntil(earlier), func(v *View) { v.Volume.Spec.ClaimRef = nil }), nil, false, "", time.Time{}},
		{"so does one that was bound", viewOf(held(deletes), func(v *View) { v.Volume.Spec.ClaimRef = nil }), nil, false, "", time.Time{}},
		{"a volume that is nobody's forgets everything", viewOf(held(deletes), trashedUntil(later), func(v *View) { v.Volume.Spec.ClaimRef, v.Volume.Status.Phase = nil, corev1.VolumeAvailable }), map[string]string{"policy": "Delete"}, false, "", time.Time{}},
		{"a filler claim's volume is left alone", viewOf(func(v *View) { v.Volume.Spec.ClaimRef.Namespace = "tarn-system" }), nil, false, "", time.Time{}},
		{"a volume being added to a pool is left alone", viewOf(annotated(tarnv1.AnnotationPoolFilling, "u")), nil, false, "", time.Time{}},
		{"a volume being deleted is left alone", viewOf(func(v *View) { v.Volume.DeletionTimestamp = &gone }), nil, false, "", time.Time{}},
		{"one being deleted while it is held is told that its storage stays", viewOf(held(deletes), func(v *View) { v.Volume.DeletionTimestamp = &gone }), nil, false, eventLeft, time.Time{}},
		{"a volume that could not be deleted is left alone", viewOf(orphaned, func(v *View) { v.Volume.Status.Phase = corev1.VolumeFailed }), nil, false, "", time.Time{}},
		{"a volume that is gone is no matter", &View{}, nil, false, "", time.Time{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := c.view.Volume.DeepCopy()
			got := plan(c.view, now)
			switch {
			case (got.Write != nil) != (c.want != nil):
				t.Errorf("write = %v, want marks %v", got.Write, c.want)
			case got.Write != nil && !maps.Equal(marks(got.Write), c.want):
				t.Errorf("marks = %v\n   want %v", marks(got.Write), c.want)
			}
			if got.Grave != c.wantGrave || got.Event.Reason != c.wantEvent || !got.Next.Equal(c.wantNext) {
				t.Errorf("grave %v, event %q, next %s; want %v, %q, %s", got.Grave, got.Event.Reason, got.Next, c.wantGrave, c.wantEvent, c.wantNext)
			}
			if before != nil && !maps.Equal(marks(before), marks(c.view.Volume)) {
				t.Error("the View was changed, which is the cache's")
			}
			if got.Write == nil {
				return
			}
			c.view.Volume = got.Write
			if again := plan(c.view, now); again.Write != nil && stateOf(c.view) != trashed {
				t.Errorf("planned again, it writes %v over %v", marks(again.Write), c.want)
			}
		})
	}
}
