package pavvolume

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

func TestAClaimOfTheOldClassAnnotationIsServed(t *testing.T) {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	claim.Spec.StorageClassName = nil
	claim.Annotations[corev1.BetaStorageClassAnnotation] = "prov"
	w := newWorld(t, claim, testkit.Class("prov"), testkit.Provisioner("prov"))
	w.look("u1")
	record := w.record("u1")
	if record == nil || !strings.Contains(string(record.Spec.ClassSnapshot.Raw), `"name":"prov"`) {
		t.Fatalf("got record %+v, want one with the class", record)
	}
}

func TestAParameterThatNobodyReadsIsToldOnceAndTheClaimIsServed(t *testing.T) {
	class := testkit.Class("prov", func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"compres": "zstd"} })
	provisioner := testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) { p.Spec.VolumeStaging = testkit.Section(`"{{ params.compress }}"`) })
	w := newWorld(t, testkit.Claim("ns", "data", "u1", "prov"), class, provisioner)
	for range 4 {
		w.look("u1")
		w.born()
	}
	var told []string
	for len(w.events.Events) > 0 {
		if event := <-w.events.Events; strings.Contains(event, eventUnknownParameter) {
			told = append(told, event)
		}
	}
	want := `Warning UnknownParameter StorageClass "prov": parameter "compres" has no effect, because no template of PavProvisioner "prov" reads it; did you mean compress? (create the class and the claim again to change that)`
	if len(told) != 1 || told[0] != want {
		t.Errorf("told %q, want once %q", told, want)
	}
	if len(w.pods()) != 1 {
		t.Errorf("%d pods, want that of the creation", len(w.pods()))
	}
}

func TestAPodThatTheAPIServerRefusesIsToldToItsClaim(t *testing.T) {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	w := newWorld(t, claim, testkit.Class("prov"), testkit.Provisioner("prov"))
	refusing := interceptor.NewClient(w.store, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if _, ok := o.(*corev1.Pod); ok {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, o.GetName(), errors.New("exceeded quota: tight"))
			}
			return c.Create(ctx, o, opts...)
		},
	})
	w.through(refusing)
	for range 4 {
		w.look("u1")
	}
	var told string
	for len(w.events.Events) > 0 {
		told += <-w.events.Events + "\n"
	}
	if !strings.Contains(told, "Warning ProvisioningFailed") || !strings.Contains(told, "the API server rejected the creation pod") || !strings.Contains(told, "exceeded quota: tight") {
		t.Errorf("told:\n%s\nwant the words of the API server", told)
	}
	if record := w.record("u1"); record == nil || record.Status.Phase == tarnv1.VolumeCreating || record.Status.NextAttemptTime == nil {
		t.Errorf("got record %+v, want one that is tried again", record)
	}
}

// creating is a world whose claim has a creation pod without a node.
func creating(t *testing.T) (*world, *corev1.PersistentVolumeClaim) {
	t.Helper()
	claim := testkit.Claim("ns", "data", "u1", "prov")
	w := newWorld(t, claim, testkit.Record(claim, "prov", tarnv1.VolumePending), testkit.Class("prov"), testkit.Provisioner("prov"))
	for range 2 {
		w.look("u1")
		w.born()
	}
	if pods := w.pods(); len(pods) != 1 || w.record("u1").Status.Phase != tarnv1.VolumeCreating {
		t.Fatalf("%d pods, %+v", len(pods), w.record("u1").Status)
	}
	return w, claim
}

// born sets the pods' creation time, as there is no API server to set it.
func (w *world) born() {
	w.t.Helper()
	for _, pod := range w.pods() {
		pod.CreationTimestamp = metav1.NewTime(now)
		w.must(w.store.Update(w.t.Context(), &pod))
	}
}

func TestACreationPodThatNeverRanIsTakenBackWithItsClaim(t *testing.T) {
	w, claim := creating(t)
	w.must(w.store.Delete(t.Context(), claim))
	w.settle()
	if record, pods := w.record("u1"), w.pods(); record != nil || len(pods) > 0 {
		t.Errorf("record %v, %d pods, want none", record, len(pods))
	}
}

func TestACreationPodThatRanIsNotForgottenWhenItIsStartedAgain(t *testing.T) {
	for name, end := range map[string]func(*world, *corev1.PersistentVolumeClaim){
		"and the claim is deleted": func(w *world, claim *corev1.PersistentVolumeClaim) { w.must(w.store.Delete(w.t.Context(), claim)) },
		"and its time is up": func(w *world, _ *corev1.PersistentVolumeClaim) {
			pod := w.pods()[0]
			pod.CreationTimestamp = metav1.NewTime(now.AddDate(0, 0, -1))
			w.must(w.store.Update(w.t.Context(), &pod))
		},
		"and somebody has put his own in its place": func(w *world, claim *corev1.PersistentVolumeClaim) {
			pod := w.pods()[0]
			w.must(w.store.Delete(w.t.Context(), &pod))
			pod.ResourceVersion, pod.Labels, pod.Annotations = "", nil, nil // a user may set nothing else
			w.must(w.store.Create(w.t.Context(), &pod))
			w.must(w.store.Delete(w.t.Context(), claim))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, claim := creating(t)
			first := w.pods()[0]
			first.Spec.NodeName, first.Status.Phase = "n1", corev1.PodRunning // and creates something
			w.must(w.store.Update(t.Context(), &first))
			w.look("u1")
			w.must(w.store.Delete(t.Context(), &first)) // evicted, drained, or its node is gone
			w.look("u1")
			w.born()
			if again := w.pods(); len(again) != 1 || again[0].Name != first.Name || again[0].Spec.NodeName != "" {
				t.Fatalf("started again: %+v", again)
			}
			end(w, claim)
			w.settle()
			if record := w.record("u1"); record == nil || record.Status.Phase != tarnv1.VolumeUndoing {
				t.Errorf("the record is %+v, want it to wait for its deletion pod", record)
			}
		})
	}
}

func TestAPersistentVolumeThatIsThereAlreadyIs(t *testing.T) {
	going := func(vol *corev1.PersistentVolume) {
		vol.DeletionTimestamp, vol.Finalizers = &metav1.Time{Time: now}, []string{"kubernetes.io/pv-protection"}
	}
	others := func(vol *corev1.PersistentVolume) {
		vol.Annotations, vol.Spec.ClaimRef.UID = nil, "another" // with the same namespace and name
	}
	for _, c := range []struct {
		name   string
		change func(*corev1.PersistentVolume)
		// want is the message for claim and record; empty if the volume is adopted.
		want string
	}{
		{"taken over where it has the claim's uid", func(vol *corev1.PersistentVolume) { vol.Annotations = nil }, ""},
		{"taken over where it has the record's uid", func(vol *corev1.PersistentVolume) { vol.Spec.ClaimRef = nil }, ""},
		{"told to be another claim's", others, "PersistentVolume pvc-u1 exists and belongs to another claim; delete it to continue"},
		{"told to be another claim's where it is nobody's", func(vol *corev1.PersistentVolume) { vol.Annotations, vol.Spec.ClaimRef = nil, nil }, "belongs to another claim"},
		{"waited for while it is being deleted", going, "PersistentVolume pvc-u1 exists and is being deleted; waiting until it is gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			claim, record := made("u1", "shelf-7", tarnv1.VolumeCreated)
			vol, err := newVolume(record)
			if err != nil {
				t.Fatal(err)
			}
			vol.Finalizers = nil // so that it can be deleted
			c.change(vol)
			w := newWorld(t, claim, record, vol, testkit.Provisioner("prov"))
			record = w.record("u1")
			v := &View{Name: vol.Name, Claim: claim, Record: record}
			_, err = w.r.writeVolume(t.Context(), v)
			condition := w.provisioned()
			if c.want == "" {
				if err != nil || v.Volume == nil || condition.Type != "" {
					t.Errorf("%v, %v, %+v, want the volume", v.Volume, err, condition)
				}
				return
			}
			if err == nil || v.Volume != nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, %v, want an error with %q", v.Volume, err, c.want)
			}
			if len(w.events.Events) == 0 {
				t.Fatal("the claim is told nothing")
			}
			if told := <-w.events.Events; !strings.HasPrefix(told, "Warning ProvisioningFailed") || !strings.Contains(told, c.want) {
				t.Errorf("the claim is told %q", told)
			}
			if condition.Status != metav1.ConditionFalse || condition.Reason != reasonNameTaken || !strings.Contains(condition.Message, c.want) {
				t.Errorf("the record says %+v", condition)
			}
			vol.Finalizers = nil
			vol.ResourceVersion = ""
			w.must(client.IgnoreNotFound(w.store.Update(t.Context(), vol)))
			w.must(client.IgnoreNotFound(w.store.Delete(t.Context(), vol)))
			w.look("u1")
			if vol := w.volume("u1"); vol == nil || !isOf(vol, record) {
				t.Errorf("once that is gone, the volume is %v", vol)
			}
		})
	}
}

// refusing rejects every PersistentVolume, as a cluster's policy may.
type refusing struct{ client.Client }

func (r refusing) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	if _, ok := o.(*corev1.PersistentVolume); ok {
		return apierrors.NewForbidden(corev1.Resource("persistentvolumes"), o.GetName(), errors.New("a policy says no"))
	}
	return r.Client.Create(ctx, o, options...)
}

func TestAPersistentVolumeThatIsRefusedIsToldAndWrittenOnceItIsNot(t *testing.T) {
	const want = `the API server rejects PersistentVolume pvc-u1: persistentvolumes "pvc-u1" is forbidden: a policy says no`
	claim, record := made("u1", "shelf-7", tarnv1.VolumeCreated)
	w := newWorld(t, claim, record, testkit.Provisioner("prov"))
	w.through(refusing{w.store})
	if _, err := w.r.Reconcile(t.Context(), request(volumeName("u1"))); err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("%v, want an error with %q, by which it is tried again", err, want)
	}
	if len(w.events.Events) == 0 {
		t.Fatal("the claim is told nothing")
	}
	if told := <-w.events.Events; told != "Warning ProvisioningFailed "+want {
		t.Errorf("the claim is told %q", told)
	}
	condition := w.provisioned()
	if condition.Status != metav1.ConditionFalse || condition.Reason != reasonRefused || condition.Message != want {
		t.Errorf("the record says %+v", condition)
	}
	w.through(w.store)
	w.look("u1")
	if vol := w.volume("u1"); vol == nil || !isOf(vol, record) {
		t.Errorf("once it is not refused, the volume is %v", vol)
	}
}

func TestAVolumeThatWasHandedOnBeforeItsRecordSaysSoIsNotUndone(t *testing.T) {
	provisioner := testkit.Provisioner("prov")
	for name, ref := range map[string]*corev1.ObjectReference{
		"to nobody, by a pool":  nil,
		"to a claim that drew":  {Namespace: "tenant", Name: "data", UID: "u2"},
		"to a claim by name":    {Namespace: "tenant", Name: "data"},
		"to one that scrubs it": {Namespace: "tarn-system", Name: "scrub-volume-pvc-u1", UID: "u3"},
	} {
		t.Run(name, func(t *testing.T) {
			claim, record := made("u1", "shelf-7", tarnv1.VolumeCreated)
			vol, err := newVolume(record)
			if err != nil {
				t.Fatal(err)
			}
			vol.Spec.ClaimRef = ref
			for _, c := range []struct {
				cache string
				world *world
			}{
				{"has it", newWorld(t, record, vol, provisioner)},
				{"does not have it yet", newWorld(t, record, vol, provisioner)},
				{"does not have it yet, and a new claim has its name", newWorld(t, record, vol, provisioner, testkit.Claim("ns", claim.Name, "u4", "prov"))},
				{"does not have it yet, and the first claim is still there", newWorld(t, record, vol, provisioner, claim)},
				{"does not have it yet, and another volume has its handle", newWorld(t, record, vol, provisioner, claim, handMade("prov", "shelf-7"))},
			} {
				if c.cache != "has it" {
					c.world.remembering(record, provisioner)
				}
				c.world.look("u1")
				if record := c.world.record("u1"); record.Status.Phase != tarnv1.VolumeCreated || !handedOver(record) {
					t.Errorf("the cache %s: the record is %+v; its volume would be destroyed", c.cache, record.Status)
				}
			}
		})
	}
}

func TestACreationPodThatIsSlowToGoTakesNoneWithItThatMakesTheVolumeAnew(t *testing.T) {
	claim, record := made("u1", "shelf-7", tarnv1.VolumeCreated)
	pod := func(name string, labels map[string]string) *corev1.Pod {
		labels[tarnv1.LabelRecord], labels[tarnv1.LabelStep] = string(record.UID), string(tarnv1.StepCreation)
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{{UID: record.UID}},
		}}
	}
	handed(record)
	record.Status.PodNamespace = "default"
	first := pod(steppod.PodName(tarnv1.StepCreation, claim.UID, 1), map[string]string{})
	anew := pod(steppod.RecyclePodName(tarnv1.StepCreation, "scrub-uid", false), map[string]string{tarnv1.LabelScrub: "volume"})
	w := newWorld(t, claim, record, testkit.Volume(record), testkit.Provisioner("prov"), first, anew)
	w.look("u1")
	if pods := w.pods(); len(pods) != 1 || pods[0].Name != anew.Name {
		t.Errorf("%d pods are left, want that which makes the volume anew", len(pods))
	}
}
