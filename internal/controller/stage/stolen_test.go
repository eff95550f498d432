package stage

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// An attacker who controls a node can create stages of that node and never end them.
func TestAStageThatFitsNothingIsDroppedThoughItsNodeHoldsIt(t *testing.T) {
	for name, forge := range map[string]func(*tarnv1.PavStage){
		"no name of a stage":       func(s *tarnv1.PavStage) { s.Name = "squatter" },
		"the name of another node": func(s *tarnv1.PavStage) { s.Name = tarnv1.StageName(s.Spec.VolumeUID, "n2", false) },
		"a volume that there never was": func(s *tarnv1.PavStage) {
			s.Spec.VolumeUID = "made-up"
			s.Name = tarnv1.StageName(s.Spec.VolumeUID, "n1", false)
		},
		"no pod": func(s *tarnv1.PavStage) {
			s.Status.Node = tarnv1.PavStageNodeStatus{Phase: tarnv1.StageLost, Targets: []string{"/t"}, Loss: &tarnv1.StageLoss{Number: 1}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stolen := context.Background(), aStage(tarnv1.PavStagePodStatus{})
			forge(stolen)
			objects := slices.DeleteFunc(subjects(), func(o client.Object) bool {
				_, isStage := o.(*tarnv1.PavStage)
				_, isPod := o.(*corev1.Pod)
				return isStage || isPod && name == "no pod"
			})
			w := newWorld(t, append(objects, stolen)...)
			look := func() {
				for range 6 {
					if _, err := w.r.Reconcile(ctx, requestFor(stolen.Name)); err != nil {
						t.Fatal(err)
					}
				}
			}
			look()
			got := &tarnv1.PavStage{}
			if err := w.store.Get(ctx, client.ObjectKey{Name: stolen.Name}, got); err != nil || !got.Void() || len(w.made) > 0 {
				t.Fatalf("%+v, with pods %q (%v), want one that is void", got.Status.Pod, w.made, err)
			}
			w.clock.SetTime(noon.Add(dropAfter))
			look()
			if err := w.store.Get(ctx, client.ObjectKey{Name: stolen.Name}, got); !apierrors.IsNotFound(err) {
				t.Errorf("after %s it is still there: %v, %+v", dropAfter, got.Finalizers, got.Status.Pod)
			}
		})
	}
}

func TestTheNodeIsToldThatAClaimIsBeingDeletedAndNoPodStartsOnIt(t *testing.T) {
	for name, started := range map[string]bool{"its pod has never started": false, "its pod has": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, subjects()...)
			ctx := context.Background()
			claim := &corev1.PersistentVolumeClaim{}
			w.must(w.store.Get(ctx, client.ObjectKey{Namespace: "app", Name: "data"}, claim))
			claim.Finalizers = []string{"kubernetes.io/pvc-protection"}
			w.must(w.store.Update(ctx, claim))
			w.must(w.store.Delete(ctx, claim))
			if started {
				pod := &corev1.Pod{}
				w.must(w.store.Get(ctx, client.ObjectKeyFromObject(consumer("app", "data", "")), pod))
				pod.Status.Phase = corev1.PodRunning
				w.must(w.store.Status().Update(ctx, pod))
			}
			w.look()
			if got := w.stage().Status.Pod; got.ClaimDeleted != claim.UID || got.Phase != "" || len(w.made) > 0 {
				t.Fatalf("at first %+v, with pods %q, want the word on the claim alone", got, w.made)
			}
			w.look()
			got := w.stage().Status.Pod
			if got.ClaimDeleted != claim.UID {
				t.Errorf("the word on the claim is lost: %+v", got)
			}
			if want := "claim app/data is being deleted, and no pod"; !started && (got.Phase != tarnv1.StagePodFailed || !strings.HasPrefix(got.Message, want) || len(w.made) > 0) {
				t.Errorf("%s, %q, with pods %q, want Failed and %q", got.Phase, got.Message, w.made, want)
			}
			if started && (got.Phase != tarnv1.StagePodStarting || len(w.made) != 1) {
				t.Errorf("%s, %q, with pods %q, want one that starts", got.Phase, got.Message, w.made)
			}
		})
	}
}
