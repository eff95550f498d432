//go:build integration

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod/steppodtest"
	"tarn.dev/tarn/internal/testkit"
)

func TestMain(m *testing.M) { testkit.QuietMain(m) }

// world is one API server with one provisioner, a fake kubelet and a fake binder.
type world struct {
	t       *testing.T
	ctx     context.Context
	config  *rest.Config
	client  client.WithWatch
	mirror  *testkit.Mirror
	kubelet *steppodtest.Kubelet
	name    string
}

// newWorld prepares one case; all objects carry the case's name.
func newWorld(t *testing.T, config *rest.Config, name string, policy corev1.PersistentVolumeReclaimPolicy, ends func(*corev1.Pod) steppodtest.End) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	w := &world{t: t, ctx: ctx, config: config, name: name}
	w.client, w.mirror = testkit.Client(t, w.config), testkit.MirrorOf(t, w.config)
	w.kubelet = &steppodtest.Kubelet{Provisioner: name, Client: w.client, Ends: ends}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}
	if err := w.client.Create(ctx, account); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	w.create(testkit.Class(name, func(c *storagev1.StorageClass) { c.ReclaimPolicy = &policy }))
	p := testkit.Provisioner(name)
	p.UID, p.Status = "", pavv1.PavProvisionerStatus{}
	p.Spec.VolumeValidation = testkit.PodSection()
	w.create(p)
	done := make(chan error, 2)
	go func() { done <- w.kubelet.Run(ctx) }()
	go func() { done <- w.bind() }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	if err := w.client.Create(w.ctx, o); err != nil {
		w.t.Fatalf("creating %T %s: %v", o, o.GetName(), err)
	}
}

// bind does the work of Kubernetes' controllers that a case needs. It binds volumes to their claims
// and releases them when those are deleted. It removes all protection finalizers. It deletes pods
// whose record is gone.
func (w *world) bind() error {
	var err error
	w.mirror.Until(w.ctx, func() bool {
		err = w.bindOnce()
		return err != nil
	})
	if w.ctx.Err() != nil {
		return nil //nolint:nilerr // the case is over
	}
	return err
}

func (w *world) bindOnce() error {
	volumes, claims := &corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{}
	if err := errors.Join(w.mirror.List(w.ctx, volumes), w.mirror.List(w.ctx, claims)); err != nil {
		return err
	}
	for i := range claims.Items {
		w.unprotect(&claims.Items[i])
	}
	for i := range volumes.Items {
		w.unprotect(&volumes.Items[i])
		w.settlePhase(&volumes.Items[i], claims.Items)
	}
	return w.collect()
}

func (w *world) collect() error {
	pods := &corev1.PodList{}
	if err := w.mirror.List(w.ctx, pods, client.MatchingLabels{tarnv1.LabelProvisioner: w.name}); err != nil {
		return err
	}
	for i := range pods.Items {
		owner := pods.Items[i].OwnerReferences[0]
		record := &tarnv1.PavVolume{}
		if w.mirror.Get(w.ctx, client.ObjectKey{Name: owner.Name}, record) == nil && record.UID == owner.UID {
			continue
		}
		err := w.client.Get(w.ctx, client.ObjectKey{Name: owner.Name}, record)
		if apierrors.IsNotFound(err) || err == nil && record.UID != owner.UID {
			_ = w.client.Delete(w.ctx, &pods.Items[i]) // the next round retries
		}
	}
	return nil
}

func (w *world) unprotect(o client.Object) {
	base, ok := o.DeepCopyObject().(client.Object)
	if !ok || o.GetDeletionTimestamp() == nil {
		return
	}
	o.SetFinalizers(slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return strings.HasPrefix(f, "kubernetes.io/") }))
	if len(o.GetFinalizers()) != len(base.GetFinalizers()) {
		_ = w.client.Patch(w.ctx, o, client.MergeFrom(base)) // the next round retries
	}
}

func (w *world) settlePhase(vol *corev1.PersistentVolume, claims []corev1.PersistentVolumeClaim) {
	if vol.Spec.ClaimRef == nil {
		return
	}
	want := corev1.VolumeReleased
	for i := range claims {
		if claims[i].UID == vol.Spec.ClaimRef.UID {
			want = corev1.VolumeBound
			if claims[i].Spec.VolumeName == "" {
				claims[i].Spec.VolumeName = vol.Name
				_ = w.client.Update(w.ctx, &claims[i]) // the next round retries
			}
		}
	}
	if vol.Status.Phase == want || want == corev1.VolumeReleased && w.isThere(vol.Spec.ClaimRef) {
		return
	}
	vol.Status.Phase = want
	_ = w.client.Status().Update(w.ctx, vol) // the next round retries
}

// isThere asks the API server whether a claim exists that the mirror may not have yet.
func (w *world) isThere(ref *corev1.ObjectReference) bool {
	claim := &corev1.PersistentVolumeClaim{}
	err := w.client.Get(w.ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, claim)
	return err == nil && claim.UID == ref.UID || err != nil && !apierrors.IsNotFound(err)
}

// run starts the controllers with a configuration and returns the function that ends them.
func (w *world) run(restConfig *rest.Config) (stop func()) {
	w.t.Helper()
	cached, err := controllerCache()
	if err != nil {
		w.t.Fatal(err)
	}
	all := func(mgr ctrl.Manager) error {
		return register(mgr, controllerFlags{controllers: defaultControllers, workers: 4, stateDir: tarnv1.DefaultStateDir, namespaces: []string{"default"}})
	}
	return testkit.Run(w.ctx, w.t, restConfig, all, func(o *ctrl.Options) { o.Cache = cached })
}

func (w *world) claim() *corev1.PersistentVolumeClaim {
	claim := testkit.Claim("default", w.name, "", w.name)
	w.create(claim)
	return claim
}

// eventually waits until check returns an empty string.
func (w *world) eventually(what string, check func() string) {
	w.t.Helper()
	wrong := ""
	if !w.mirror.Until(w.ctx, func() bool { wrong = check(); return wrong == "" }) {
		w.t.Fatalf("%s: %s", what, wrong)
	}
}

func (w *world) bound(claim *corev1.PersistentVolumeClaim) func() string {
	return func() string {
		record, vol := &tarnv1.PavVolume{}, &corev1.PersistentVolume{}
		key := client.ObjectKey{Name: "pvc-" + string(claim.UID)}
		if err := w.client.Get(w.ctx, key, record); err != nil {
			return err.Error()
		}
		if err := w.client.Get(w.ctx, key, vol); err != nil {
			return fmt.Sprintf("%v; the record: %+v", err, record.Status)
		}
		if vol.Status.Phase != corev1.VolumeBound || !meta.IsStatusConditionTrue(record.Status.Conditions, tarnv1.ConditionProvisioned) {
			return fmt.Sprintf("volume %s, record %+v", vol.Status.Phase, record.Status)
		}
		return w.noPods()
	}
}

func (w *world) noPods() string {
	pods := &corev1.PodList{}
	if err := w.client.List(w.ctx, pods, client.MatchingLabels{tarnv1.LabelProvisioner: w.name}); err != nil {
		return err.Error()
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		return fmt.Sprintf("pod %s is left: %s, to go since %v", pod.Name, pod.Status.Phase, pod.DeletionTimestamp)
	}
	return ""
}

// nothing lists the remaining objects of the case, except the provisioner and its class.
func (w *world) nothing() string {
	records, volumes := &tarnv1.PavVolumeList{}, &corev1.PersistentVolumeList{}
	if err := w.client.List(w.ctx, records, client.MatchingLabels{tarnv1.LabelProvisioner: w.name}); err != nil {
		return err.Error()
	}
	for i := range records.Items {
		return fmt.Sprintf("PavVolume %s is left: %+v", records.Items[i].Name, records.Items[i].Status)
	}
	if err := w.client.List(w.ctx, volumes); err != nil {
		return err.Error()
	}
	for i := range volumes.Items {
		if volumes.Items[i].Spec.CSI.Driver == w.name {
			return fmt.Sprintf("PersistentVolume %s is left, %s", volumes.Items[i].Name, volumes.Items[i].Status.Phase)
		}
	}
	return w.noPods()
}

// removeRetained does what an administrator does with a retained volume.
func (w *world) removeRetained() {
	volumes := &corev1.PersistentVolumeList{}
	if w.client.List(w.ctx, volumes) != nil {
		return // the next round retries
	}
	for i := range volumes.Items {
		vol := &volumes.Items[i]
		if vol.Spec.CSI.Driver == w.name && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain &&
			vol.Status.Phase == corev1.VolumeReleased && vol.DeletionTimestamp == nil {
			_ = w.client.Delete(w.ctx, vol) // the next round retries
		}
	}
}

// life takes a claim from its creation to its deletion with restConfig. It restarts the controllers
// whenever the killer has ended them.
func (w *world) life(k *testkit.Killer) {
	w.t.Helper()
	defer k.Life(w.config, w.run)()
	claim := w.claim()
	w.eventually("binding", w.bound(claim))
	if err := w.client.Delete(w.ctx, claim); err != nil {
		w.t.Fatal(err)
	}
	w.eventually("deleting", func() string { w.removeRetained(); return w.nothing() })
	w.removeProvisioner()
}

// removeProvisioner deletes the provisioner, which stays as long as a record does, and its class.
func (w *world) removeProvisioner() {
	w.t.Helper()
	p := &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: w.name}}
	if err := w.client.Delete(w.ctx, p); err != nil {
		w.t.Fatal(err)
	}
	w.eventually("deleting the provisioner", func() string {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(p), p); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("PavProvisioner is left (%v)", err)
		}
		return w.nothing()
	})
	if err := w.client.Delete(w.ctx, testkit.Class(w.name)); err != nil {
		w.t.Fatal(err)
	}
}

func wellBehaved(*corev1.Pod) steppodtest.End {
	return steppodtest.End{Result: tarnv1.PodResult{Capacity: ptr.To("1Gi")}}
}

// failsOnce makes the first creation pod fail, so that a life includes undoing.
func failsOnce(pod *corev1.Pod) steppodtest.End {
	end := wellBehaved(pod)
	end.Fails = pod.Labels[tarnv1.LabelStep] == string(tarnv1.StepCreation) && strings.HasSuffix(pod.Name, "-1")
	return end
}

func TestAVolumeLivesAndEndsWhereverTheControllerIsKilled(t *testing.T) {
	for _, c := range []struct {
		name                         string
		ends                         func(*corev1.Pod) steppodtest.End
		policy                       corev1.PersistentVolumeReclaimPolicy
		wantCreations, wantDeletions int
	}{
		{"well", wellBehaved, corev1.PersistentVolumeReclaimDelete, 1, 1},
		{"undone", failsOnce, corev1.PersistentVolumeReclaimDelete, 2, 2},
		{"retained", wellBehaved, corev1.PersistentVolumeReclaimRetain, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := testkit.OwnAPIServer(t)
			whole := testkit.NewKiller(0)
			live := func(name string, k *testkit.Killer) {
				t.Run(name, func(t *testing.T) {
					w := newWorld(t, server, "life-"+c.name+"-"+name, c.policy, c.ends)
					w.life(k)
					w.check(c.wantCreations, c.wantDeletions)
				})
			}
			live("whole", whole)
			for _, n := range testkit.Deaths(t, whole.Writes()) {
				live(fmt.Sprint(n), testkit.NewKiller(n))
			}
		})
	}
}

// check fails the test unless every pod has run exactly once.
func (w *world) check(wantCreations, wantDeletions int) {
	w.t.Helper()
	if got := w.kubelet.Ran(tarnv1.StepCreation); len(got) != wantCreations {
		w.t.Errorf("creation pods that ran: %v, want %d", got, wantCreations)
	}
	if got := w.kubelet.Ran(tarnv1.StepDeletion); len(got) != wantDeletions {
		w.t.Errorf("deletion pods that ran: %v, want %d", got, wantDeletions)
	}
}
