package pavvolume

import (
	"context"
	"slices"
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
	"tarn.dev/tarn/internal/steppod"
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

func (w *world) provisioner() *pavv1.PavProvisioner {
	w.t.Helper()
	p := &pavv1.PavProvisioner{}
	w.must(w.store.Get(w.t.Context(), client.ObjectKey{Name: "prov"}, p))
	return p
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

func TestADeletionPodThatMountsAClaim(t *testing.T) {
	for name, c := range map[string]struct {
		phase    tarnv1.VolumePhase
		claims   []client.Object
		wantPod  bool
		wantTold string
	}{
		"starts if that is bound":                        {tarnv1.VolumeUndoing, []client.Object{backingOf("pv")}, true, ""},
		"is skipped if that is gone":                     {tarnv1.VolumeUndoing, nil, false, "Warning UndoSkipped no deletion pod runs, because claim tarn-volumes/pvc-u1-backing, which it would mount, is gone"},
		"is skipped if an attempt never bound that":      {tarnv1.VolumeUndoing, []client.Object{backingOf("")}, false, "Warning UndoSkipped no deletion pod runs, because claim tarn-volumes/pvc-u1-backing, which it would mount, was never bound"},
		"starts for a volume that was in use, and binds": {tarnv1.VolumeDeleting, []client.Object{backingOf("")}, true, ""},
		"is skipped if the data of a volume is gone":     {tarnv1.VolumeDeleting, nil, false, "Warning VolumeFailedDelete no deletion pod runs, because claim tarn-volumes/pvc-u1-backing, which it would mount, is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			w := over(t, c.phase, c.claims...)
			if c.phase == tarnv1.VolumeDeleting { // its own claim is gone
				w.must(w.store.Delete(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}}))
			}
			w.look("u1")
			started := slices.ContainsFunc(w.pods(), func(pod corev1.Pod) bool { return pod.Labels[tarnv1.LabelStep] == string(tarnv1.StepDeletion) })
			if started != c.wantPod {
				t.Errorf("deletion pod started: %t, want %t", started, c.wantPod)
			}
			told := ""
			if len(w.events.Events) > 0 {
				told = <-w.events.Events
			}
			if told != c.wantTold {
				t.Errorf("told %q, want %q", told, c.wantTold)
			}
			if record := w.record("u1"); !c.wantPod && record != nil && record.Status.Phase == tarnv1.VolumeUndoing {
				t.Errorf("status %+v, want the attempt undone", record.Status)
			}
		})
	}
}

// A volume below whose node is gone keeps no attempt from being undone elsewhere, and a volume of a
// user waits for that node.
func TestAVolumeBelowOnANodeThatIsGone(t *testing.T) {
	below := func(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
		vol.Spec.NodeAffinity = affinityTo("n1")
		change(vol)
		return vol
	}
	plain, anywhere := func(*corev1.PersistentVolume) {}, func(vol *corev1.PersistentVolume) { vol.Spec.NodeAffinity = nil }
	labelled := node("machine")
	labelled.Labels = map[string]string{corev1.LabelHostname: "n1"}
	for name, c := range map[string]struct {
		phase    tarnv1.VolumePhase
		objects  []client.Object
		wantPods int
		wantWhy  string
	}{
		"ends an attempt":                           {tarnv1.VolumeUndoing, []client.Object{below(plain), node("n2")}, 0, "the node of PersistentVolume pv is gone, so what was created there"},
		"keeps a volume":                            {tarnv1.VolumeDeleting, []client.Object{below(plain), node("n2")}, 0, "the node of PersistentVolume pv, which has the volume's storage, is gone"},
		"matters not while another has its label":   {tarnv1.VolumeUndoing, []client.Object{below(plain), labelled}, 1, ""},
		"matters not for a volume of the network":   {tarnv1.VolumeUndoing, []client.Object{below(anywhere), node("n2")}, 1, ""},
		"matters not if the volume is gone as well": {tarnv1.VolumeUndoing, []client.Object{node("n2")}, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := over(t, c.phase, append(c.objects, backingOf("pv"))...)
			p := w.provisioner()
			p.Spec.Topology = pavv1.TopologyClaims
			w.must(w.store.Update(t.Context(), p))
			if c.phase == tarnv1.VolumeDeleting {
				w.must(w.store.Delete(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}}))
			}
			w.look("u1")
			told := ""
			if len(w.events.Events) > 0 {
				told = <-w.events.Events
			}
			if len(w.pods()) != c.wantPods || !strings.Contains(told, c.wantWhy) || (told == "") != (c.wantWhy == "") {
				t.Errorf("%d pods, told %q, want %d and %q", len(w.pods()), told, c.wantPods, c.wantWhy)
			}
			if woken := w.r.mapNode(t.Context(), node("n1")); c.phase == tarnv1.VolumeDeleting && (w.deletable().Reason != steppod.ReasonNodeGone || len(woken) != 1) {
				t.Errorf("condition %+v, and the node wakes %v", w.deletable(), woken)
			}
		})
	}
}

func TestAVolumeIsHandedOverWithTheClaimsItsProvisionerDeclares(t *testing.T) {
	dropped := tarnv1.MadeClaim{Namespace: tarnv1.StepNamespace, Name: "pvc-u1-dropped"}
	of := func(volumeName string) *corev1.PersistentVolumeClaim {
		c := backingOf(volumeName)
		c.Name = dropped.Name
		return c
	}
	bound := backingOf("pv")
	bound.Status.Phase = corev1.ClaimBound
	for name, c := range map[string]struct {
		claims     []client.Object
		wantVolume bool
	}{
		"without one that was dropped":               {[]client.Object{bound, of("")}, true},
		"without one that was dropped and is gone":   {[]client.Object{bound}, true},
		"but not without one that has lost its data": {[]client.Object{bound, of("lost")}, false},
		"but not without one that is declared":       {[]client.Object{backingOf(""), of("")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := over(t, tarnv1.VolumeCreated, append(c.claims, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}})...)
			record, p := w.record("u1"), w.provisioner()
			record.Status.Claims = append(record.Status.Claims, dropped)
			w.must(w.store.Status().Update(t.Context(), record))
			p.Spec.Topology = pavv1.TopologyClaims
			w.must(w.store.Update(t.Context(), p))
			if err := w.try(); (err == nil) != c.wantVolume || (w.volume("u1") != nil) != c.wantVolume {
				t.Errorf("got %v, volume %v, want one: %t", err, w.volume("u1"), c.wantVolume)
			}
		})
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
