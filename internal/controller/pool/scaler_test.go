package pool

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
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
				if f, ok := a.(Follow); ok {
					got = f.Minimum
				}
			}
			if got != c.want {
				t.Errorf("it follows to %d, want %d", got, c.want)
			}
			var said *metav1.Condition
			for _, a := range report(v, testTime) {
				if w, ok := a.(WriteScaler); ok {
					said = meta.FindStatusCondition(w.Status.Conditions, tarnv1.ConditionFollowed)
					if w.Status.Replicas != 1 || w.Status.Selector == "" {
						t.Errorf("the scaler's status is %+v, want what the set has", w.Status)
					}
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

func TestAScalerWhoseStatusStandsIsNotWrittenAgain(t *testing.T) {
	s := set(1, 4, named)
	v := view(s, volumeOf(s, "a", in(corev1.VolumeAvailable)))
	v.Scalers = []tarnv1.PersistentVolumeSetScaler{scalerOf(s, 1)}
	for _, a := range report(v, testTime) {
		if w, ok := a.(WriteScaler); ok {
			v.Scalers[0].Status = w.Status
		}
	}
	if slices.ContainsFunc(report(v, testTime.Add(1)), func(a Action) bool { _, ok := a.(WriteScaler); return ok }) {
		t.Error("it is written again")
	}
}

func TestWhatAScalerWantsHoldsUpNothingElse(t *testing.T) {
	v := view(set(1, 4, named))
	v.Scalers = []tarnv1.PersistentVolumeSetScaler{scalerOf(v.Set, 3)}
	if got, want := did(plan(v, testTime)), "follow, order pool-set-uid-0"; got != want {
		t.Errorf("it does %s, want %s", got, want)
	}
}
