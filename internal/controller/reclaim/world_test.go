//go:build integration

package reclaim

import (
	"errors"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/steppod/steppodtest"
	"tarn.dev/tarn/internal/testkit"
)

const testNamespace = "tarn-system"

func TestMain(m *testing.M) { testkit.QuietMain(m) }

// world is one claim with its volume, record and storage. It also fakes the binder, protection, the
// garbage collector and the kubelet, which runs deletion pods.
type world struct {
	testkit.World
	claim  *corev1.PersistentVolumeClaim
	record *tarnv1.PavVolume
	vol    *corev1.PersistentVolume
	// kept says that the storage must outlive the volume.
	kept    bool
	kubelet *steppodtest.Kubelet

	mu sync.Mutex
	// failures is how many deletion pods will still fail. gone says that a pod deleted the storage;
	// wrong lists the problems seen when the storage or the volume was deleted.
	failures int
	gone     bool
	wrong    []string
}

func newWorld(t *testing.T, config *rest.Config, name string, c life) *world {
	t.Helper()
	w := &world{World: testkit.NewWorld(t, config), failures: c.failures, kept: c.kept}
	w.PodsMayRun(testNamespace)
	p := testkit.Provisioner(name, func(p *pavv1.PavProvisioner) {
		p.UID = ""
		p.Spec.VolumeDeletion = testkit.Section(`{"podTemplate": {"metadata": {"namespace": "` + testNamespace + `"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}`)
	})
	w.Must(w.Client.Create(w.Ctx, p))
	w.claim = testkit.Claim("default", name, "", name)
	w.Must(w.Client.Create(w.Ctx, w.claim))
	w.record = testkit.Record(w.claim, name, c.phase, func(r *tarnv1.PavVolume) { r.UID, r.Spec.Provisioner.UID = "", p.UID })
	status := w.record.Status
	w.Must(w.Client.Create(w.Ctx, w.record))
	status.Handle, status.Capacity = "handle", 1<<30
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionTrue, Reason: "Provisioned"})
	w.record.Status = status
	w.Must(w.Client.Status().Update(w.Ctx, w.record))
	w.vol = testkit.Volume(w.record, func(v *corev1.PersistentVolume) {
		v.UID, v.Finalizers = "", []string{kube.FinalizerExternalProvisioner}
		v.Annotations = map[string]string{tarnv1.AnnotationRecord: string(w.record.UID)}
		if c.kept {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}
	})
	if c.phase == tarnv1.VolumeCreated {
		w.Must(w.Client.Create(w.Ctx, w.vol))
	}
	w.kubelet = &steppodtest.Kubelet{Provisioner: name, Client: w.Client, Ends: w.ends}
	w.kubelet.Start(w.Ctx, t) // Play ends the context
	w.Play(w.round)
	return w
}

// ends is the result of a deletion pod, which deletes the storage unless it fails.
func (w *world) ends(*corev1.Pod) steppodtest.End {
	there, err := kube.Get(w.Ctx, w.Client, client.ObjectKeyFromObject(w.claim), &corev1.PersistentVolumeClaim{})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.record.Status.Phase == tarnv1.VolumeCreated && (err != nil || there != nil) {
		w.wrong = append(w.wrong, "a deletion pod ran while the claim was there")
	}
	if w.failures > 0 {
		w.failures--
		return steppodtest.End{Fails: true, Result: tarnv1.PodResult{Error: "the array is busy"}}
	}
	w.gone = true
	return steppodtest.End{}
}

func (w *world) round() error {
	// Pods come first: the record of a pod existed when the pod was seen. If it is missing
	// afterwards, it is gone.
	pods := &corev1.PodList{}
	podsErr := w.Client.List(w.Ctx, pods, client.InNamespace(testNamespace), client.MatchingLabels{tarnv1.LabelProvisioner: w.claim.Name})
	claim, err := kube.Get(w.Ctx, w.Client, client.ObjectKeyFromObject(w.claim), &corev1.PersistentVolumeClaim{})
	record, recordErr := kube.Get(w.Ctx, w.Client, client.ObjectKeyFromObject(w.record), &tarnv1.PavVolume{})
	vol, volumeErr := kube.Get(w.Ctx, w.Client, client.ObjectKeyFromObject(w.vol), &corev1.PersistentVolume{})
	if err := errors.Join(err, recordErr, volumeErr, podsErr); err != nil {
		return err
	}
	for i := range pods.Items {
		if record == nil || pods.Items[i].DeletionTimestamp != nil && steppod.Ended(&pods.Items[i]) {
			_ = w.Client.Delete(w.Ctx, &pods.Items[i], client.GracePeriodSeconds(0))
		}
	}
	if claim != nil && claim.DeletionTimestamp != nil {
		w.unprotect(claim)
	}
	if vol == nil {
		w.volumeGone()
		return nil
	}
	phase := corev1.VolumeBound
	if claim == nil {
		phase = corev1.VolumeReleased
	}
	if vol.Status.Phase != phase {
		vol.Status.Phase = phase
		_ = w.Client.Status().Update(w.Ctx, vol)
	} else if vol.DeletionTimestamp != nil && phase != corev1.VolumeBound {
		w.unprotect(vol)
	}
	return nil
}

// unprotect removes Kubernetes' own finalizers.
func (w *world) unprotect(o client.Object) {
	base := o.DeepCopyObject().(client.Object)
	o.SetFinalizers(slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f != kube.FinalizerExternalProvisioner }))
	if len(o.GetFinalizers()) != len(base.GetFinalizers()) {
		_ = w.Client.Patch(w.Ctx, o, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	}
}

// volumeGone checks that the storage was deleted before the volume, unless it must be kept.
func (w *world) volumeGone() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.record.Status.Phase == tarnv1.VolumeCreated && w.gone == w.kept && len(w.wrong) == 0 {
		w.wrong = append(w.wrong, "the volume went before its storage, or its storage was to be kept")
	}
}

// run starts the controller with the account it has in a cluster, and returns the function that
// stops it.
func (w *world) run(restConfig *rest.Config) (stop func()) {
	w.T.Helper()
	return testkit.Run(w.Ctx, w.T, restConfig, func(mgr ctrl.Manager) error {
		return Register(mgr, Options{
			Namespace: testNamespace, OwnBinder: true, Steps: &steppod.Steps{Client: mgr.GetClient(), Reader: mgr.GetAPIReader()},
		})
	})
}
