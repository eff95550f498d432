package pavvolume

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

const madeName = "pvc-u1-backing"

// over is a waiting claim whose volume lies over a claim, and the objects that exist besides.
func over(t *testing.T, phase tarnv1.VolumePhase, others ...client.Object) *world {
	t.Helper()
	p := testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) {
		p.Spec.Claims = []pavv1.VolumeClaim{{Name: "backing", Template: testkit.Section(`{"spec": {"storageClassName": "disk"}}`)}}
		mounts := testkit.Section(`{"podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}],
			"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "{{ claims.backing }}"}}]}}}`)
		p.Spec.VolumeCreation, p.Spec.VolumeDeletion = mounts, mounts
	})
	claim := testkit.Claim("ns", "data", "u1", "prov")
	record := testkit.Record(claim, "prov", phase, func(r *tarnv1.PavVolume) {
		if phase != tarnv1.VolumePending {
			r.Status.Claims = []tarnv1.MadeClaim{{Namespace: tarnv1.StepNamespace, Name: madeName}}
		}
	})
	return newWorld(t, append(others, p, claim, record, testkit.Class("prov"))...)
}

// backingOf is the claim that was made for the volume, bound to a volume of that name.
func backingOf(volumeName string) *corev1.PersistentVolumeClaim {
	return testkit.Claim(tarnv1.StepNamespace, madeName, "made", "disk", func(c *corev1.PersistentVolumeClaim) {
		c.Labels = map[string]string{tarnv1.LabelRecord: "record-u1", tarnv1.LabelVolume: "pvc-u1", tarnv1.LabelDeletionProtection: "true"}
		c.Spec.VolumeName = volumeName
	})
}

func (w *world) made() *corev1.PersistentVolumeClaim {
	w.t.Helper()
	claim, err := kube.Get(w.t.Context(), w.store, client.ObjectKey{Namespace: tarnv1.StepNamespace, Name: madeName}, &corev1.PersistentVolumeClaim{})
	w.must(err)
	return claim
}

func TestTheClaimOfAVolumeIsMadeBeforeItsCreationPod(t *testing.T) {
	w := over(t, tarnv1.VolumePending)
	w.look("u1")
	if w.made() == nil || len(w.status().Claims) != 1 || w.status().Claims[0].Name != madeName || len(w.pods()) != 1 {
		t.Errorf("claim %v, status %+v, %d pods, want the claim recorded and made, and the pod", w.made(), w.status(), len(w.pods()))
	}
}

func TestAClaimThatTheAPIServerRejectsFailsTheAttemptInItsWords(t *testing.T) {
	w := over(t, tarnv1.VolumePending)
	w.through(interceptor.NewClient(w.store, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if _, ok := o.(*corev1.PersistentVolumeClaim); ok {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, o.GetName(), context.DeadlineExceeded)
		}
		return c.Create(ctx, o, opts...)
	}}))
	w.look("u1")
	if said := w.provisioned(); said.Reason != reasonClaimRefused || !strings.Contains(said.Message, tarnv1.StepNamespace+"/"+madeName) || len(w.pods()) > 0 {
		t.Errorf("condition %+v, %d pods, want %s with the claim named, and no pod", said, len(w.pods()), reasonClaimRefused)
	}
	if w.look("u1"); len(w.status().Claims) > 0 || w.status().Phase != tarnv1.VolumePending {
		t.Errorf("status %+v, want it Pending without claims", w.status())
	}
}

func TestAClaimOfAnotherIsNotUsed(t *testing.T) {
	other := backingOf("")
	other.Labels = nil
	w := over(t, tarnv1.VolumePending, other)
	if w.settle(); w.provisioned().Reason != reasonClaimForeign || len(w.pods()) > 0 || w.made() == nil {
		t.Errorf("condition %+v, %d pods, want %s and the claim untouched", w.provisioned(), len(w.pods()), reasonClaimForeign)
	}
}

func TestWhatWasNeverInAClaimIsNotDeletedByAPod(t *testing.T) {
	for name, claims := range map[string][]client.Object{"gone": nil, "never bound": {backingOf("")}} {
		w := over(t, tarnv1.VolumeUndoing, claims...)
		w.settle()
		for _, pod := range w.pods() {
			if pod.Labels[tarnv1.LabelStep] == string(tarnv1.StepDeletion) {
				t.Errorf("the claim %s: deletion pod %s was started, and would wait for it", name, pod.Name)
			}
		}
		if w.status().Phase == tarnv1.VolumeUndoing {
			t.Errorf("the claim %s: status %+v, want the attempt undone", name, w.status())
		}
	}
}

func TestAClaimIsDeletedWithItsLabelAfterTheAttemptIsUndone(t *testing.T) {
	w := over(t, tarnv1.VolumePending, backingOf("pv"))
	record := w.record("u1")
	record.Status.Claims = []tarnv1.MadeClaim{{Namespace: tarnv1.StepNamespace, Name: madeName}}
	at := metav1.NewTime(now.Add(time.Minute))
	record.Status.NextAttemptTime = &at
	w.must(w.store.Status().Update(t.Context(), record))
	if w.look("u1"); w.made() != nil || len(w.status().Claims) != 1 {
		t.Errorf("claim %v, status %+v, want it deleted, and recorded until that is seen", w.made(), w.status())
	}
	if w.look("u1"); len(w.status().Claims) > 0 || len(w.pods()) > 0 {
		t.Errorf("status %+v, %d pods, want no claims, and the attempt to wait", w.status(), len(w.pods()))
	}
}

// overReleased is a released volume over a claim, whose deletion pod has succeeded.
func overReleased(t *testing.T) *world {
	t.Helper()
	v := endingOf(tarnv1.VolumeDeleting, withVolume(corev1.VolumeReleased, corev1.PersistentVolumeReclaimDelete))
	v.Record.Finalizers, v.Volume.Finalizers = []string{tarnv1.FinalizerRecord}, []string{volume.FinalizerExternal}
	v.Record.Status.Claims = []tarnv1.MadeClaim{{Namespace: tarnv1.StepNamespace, Name: madeName}}
	w := newWorld(t, v.Record, v.Volume, v.Provisioner, backingOf("pv"))
	w.look("u1")
	pods := w.pods()
	if len(pods) != 1 {
		t.Fatalf("%d pods, want the deletion pod", len(pods))
	}
	metav1.SetMetaDataAnnotation(&pods[0].ObjectMeta, tarnv1.AnnotationResult, `{"succeeded": true}`)
	w.must(w.store.Update(t.Context(), &pods[0]))
	pods[0].Status.Phase = corev1.PodSucceeded
	w.must(w.store.Status().Update(t.Context(), &pods[0]))
	return w
}

func TestTheClaimOfAVolumeThatIsTakenBackDuringItsDeletion(t *testing.T) {
	keep := func(w *world) {
		vol := w.volume("u1")
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		w.must(w.store.Update(w.t.Context(), vol))
	}
	end := func(w *world) {
		claim := w.made()
		claim.Finalizers = []string{"kubernetes.io/pvc-protection"}
		w.must(w.store.Update(w.t.Context(), claim))
		w.must(w.store.Delete(w.t.Context(), claim))
	}
	for name, c := range map[string]struct {
		change    func(*world)
		behind    bool // the cache shows what was before the change
		wantClaim bool
		wantPhase tarnv1.VolumePhase
	}{
		"is deleted if it is not":             {func(*world) {}, false, false, tarnv1.VolumeDeleting},
		"stays":                               {keep, false, true, tarnv1.VolumeCreated},
		"stays though the cache is behind":    {keep, true, true, tarnv1.VolumeDeleting},
		"ends if it is being deleted already": {func(w *world) { end(w); keep(w) }, false, true, tarnv1.VolumeDeleting},
	} {
		t.Run(name, func(t *testing.T) {
			w := overReleased(t)
			seen := []client.Object{w.record("u1"), w.volume("u1"), testkit.Provisioner("prov"), w.made(), &w.pods()[0]}
			if c.change(w); c.behind {
				w.remembering(seen...)
			}
			w.look("u1")
			if claim := w.made(); (claim != nil) != c.wantClaim || w.status().Phase != c.wantPhase {
				t.Errorf("claim %v, phase %s, want it there: %t, and %s", claim, w.status().Phase, c.wantClaim, c.wantPhase)
			}
		})
	}
}

func TestARecordThatIsForgottenKeepsItsClaim(t *testing.T) {
	w := over(t, tarnv1.VolumeUndoing, backingOf("pv"))
	record := w.record("u1")
	record.Annotations = map[string]string{tarnv1.AnnotationForget: string(record.UID)}
	w.must(w.store.Update(t.Context(), record))
	w.must(w.store.Delete(t.Context(), record))
	for w.record("u1") != nil {
		w.look("u1")
	}
	if c := w.made(); c == nil || c.Labels[tarnv1.LabelDeletionProtection] != "true" {
		t.Errorf("claim %v, want it there and protected", c)
	}
}

func TestAPodThatWaitsForAClaimSaysWhy(t *testing.T) {
	w := over(t, tarnv1.VolumePending)
	w.r.steps.EventsOf = func(_ context.Context, about client.Object) ([]corev1.Event, error) {
		if about.GetName() != madeName {
			return nil, nil
		}
		return []corev1.Event{{Type: corev1.EventTypeWarning, Reason: "ProvisioningFailed", Message: `storageclass "disk" not found`}}, nil
	}
	w.look("u1")
	w.r.clock = testclock.NewFakePassiveClock(now.Add(10 * time.Second))
	pod := w.pods()[0]
	pod.CreationTimestamp = metav1.NewTime(now)
	w.must(w.store.Update(t.Context(), &pod))
	w.look("u1")
	if said := w.provisioned(); said.Reason != reasonPodWaits || !strings.Contains(said.Message, madeName+`, which was made for the volume, is not bound: ProvisioningFailed: storageclass "disk" not found`) {
		t.Errorf("condition %+v, want what the claim waits for", said)
	}
}

func TestBothTermsMatchWhatEachListMatches(t *testing.T) {
	of := func(values ...string) (terms []corev1.NodeSelectorTerm) {
		for _, v := range values {
			terms = append(terms, affinityTo(v).Required.NodeSelectorTerms...)
		}
		return terms
	}
	both := bothTerms(of("a", "b"), of("c"))
	if len(both) != 2 || len(both[1].MatchExpressions) != 2 || both[1].MatchExpressions[0].Values[0] != "b" || both[1].MatchExpressions[1].Values[0] != "c" {
		t.Errorf("got %+v, want each of a and b together with c", both)
	}
}
