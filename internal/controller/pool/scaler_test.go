package pool

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
)

// scalerOf is a scaler shop/auto that names a set.
func scalerOf(set *tarnv1.PersistentVolumeSet, replicas int32) tarnv1.PersistentVolumeSetScaler {
	return tarnv1.PersistentVolumeSetScaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "auto"},
		Spec:       tarnv1.PersistentVolumeSetScalerSpec{PersistentVolumeSet: set.Name, Replicas: replicas},
	}
}

// named lets a set name shop/auto.
func named(s *tarnv1.PersistentVolumeSet) {
	s.Spec.Scaler = &tarnv1.PersistentVolumeSetScalerReference{Namespace: "shop", Name: "auto"}
}

func TestASetFollowsTheScalerThatItNamesAndThatNamesIt(t *testing.T) {
	for _, c := range []struct {
		name     string
		set      *tarnv1.PersistentVolumeSet
		replicas int32
		change   func(*tarnv1.PersistentVolumeSetScaler)
		want     int32 // -1: the set is unchanged
		// wantCondition is the scaler's, wantText is in the set's Ready; empty for none.
		wantCondition metav1.ConditionStatus
		wantText      string
	}{
		{name: "up", set: set(1, 4, named), replicas: 3, want: 3, wantCondition: metav1.ConditionTrue},
		{name: "down to nothing", set: set(1, 4, named), replicas: 0, want: 0, wantCondition: metav1.ConditionTrue},
		{name: "not past the maximum", set: set(1, 4, named), replicas: 9, want: 4, wantCondition: metav1.ConditionTrue},
		{name: "once", set: set(3, 4, named), replicas: 3, want: -1, wantCondition: metav1.ConditionTrue},
		{name: "not where the set does not name it", set: set(1, 4), replicas: 3, want: -1, wantCondition: metav1.ConditionFalse},
		{name: "not where it names another set", set: set(1, 4, named), replicas: 3, want: -1, wantText: "which does not exist or does not name this set",
			change: func(s *tarnv1.PersistentVolumeSetScaler) { s.Spec.PersistentVolumeSet = "other" }},
		{name: "not one that is going", set: set(1, 4, named), replicas: 3, want: -1, wantCondition: metav1.ConditionTrue, wantText: "which does not exist or does not name this set",
			change: func(s *tarnv1.PersistentVolumeSetScaler) { s.DeletionTimestamp = &anHourAgo }},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := view(c.set, volumeOf(c.set, "a", in(corev1.VolumeAvailable)))
			v.Scalers = []tarnv1.PersistentVolumeSetScaler{scalerOf(c.set, c.replicas)}
			if c.change != nil {
				c.change(&v.Scalers[0])
			}
			var got int32 = -1
			for _, a := range plan(v, testTime).Actions {
				if p, ok := a.(action.Patch); ok {
					got = p.To.(*tarnv1.PersistentVolumeSet).Spec.MinimumReplicas
				}
			}
			if got != c.want {
				t.Errorf("it follows to %d, want %d", got, c.want)
			}
			var said *metav1.Condition
			if status := told(v, testTime); status != nil {
				said = meta.FindStatusCondition(status.Conditions, tarnv1.ConditionFollowed)
				if status.Replicas != 1 || status.Selector == "" {
					t.Errorf("the scaler's status is %+v, want what the set has", status)
				}
				v.Scalers[0].Status = *status
				if again := told(v, testTime.Add(1)); again != nil {
					t.Errorf("what stands is written again: %+v", again)
				}
			}
			if (said == nil) != (c.wantCondition == "") || said != nil && said.Status != c.wantCondition {
				t.Errorf("the scaler is told %+v, want %s", said, c.wantCondition)
			}
			if ready := meta.FindStatusCondition(statusOf(v, testTime).Conditions, tarnv1.ConditionReady); !strings.Contains(ready.Message, c.wantText) {
				t.Errorf("Ready says %q, want %q", ready.Message, c.wantText)
			}
		})
	}
}

// told is the status that a scaler gets, nil for none.
func told(v *View, now time.Time) *tarnv1.PersistentVolumeSetScalerStatus {
	for _, a := range report(v, now) {
		if p, ok := a.(action.PatchStatus); ok {
			return &p.To.(*tarnv1.PersistentVolumeSetScaler).Status
		}
	}
	return nil
}

func TestWhatAScalerWantsHoldsUpNothingElse(t *testing.T) {
	v := view(set(1, 4, named))
	v.Scalers = []tarnv1.PersistentVolumeSetScaler{scalerOf(v.Set, 3)}
	if got, want := did(plan(v, testTime)), "follow, order pool-set-uid-0"; got != want {
		t.Errorf("it does %s, want %s", got, want)
	}
}
