//go:build integration

package pool

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

func TestMain(m *testing.M) { testkit.QuietMain(m) }

// world is one API server with one set, and a stand-in for the binder, the scheduler, an
// external provisioner and the deletion of objects.
type world struct {
	testkit.World
	name string
	// made counts the volumes that the provisioner has made.
	made int
}

func newWorld(t *testing.T, config *rest.Config, name string, waits bool) *world {
	t.Helper()
	w := &world{World: testkit.NewWorld(t, config), name: name}
	w.PodsMayRun(testNamespace)
	w.Must(w.Client.Create(w.Ctx, testkit.Class(name, func(c *storagev1.StorageClass) {
		if waits {
			c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
		}
	})))
	w.Play(w.round)
	return w
}

func (w *world) round() error {
	volumes, claims, pods := &corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PodList{}
	if err := errors.Join(w.Client.List(w.Ctx, volumes), w.Client.List(w.Ctx, claims), w.Client.List(w.Ctx, pods, client.InNamespace(testNamespace))); err != nil {
		return err
	}
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp != nil {
			_ = w.Client.Delete(w.Ctx, &pods.Items[i], client.GracePeriodSeconds(0))
		}
	}
	for i := range claims.Items {
		w.claim(&claims.Items[i], volumes.Items, pods.Items)
	}
	for i := range volumes.Items {
		w.volume(&volumes.Items[i], claims.Items)
	}
	return nil
}

// claim provisions for a claim, binds it, or removes its finalizers.
func (w *world) claim(c *corev1.PersistentVolumeClaim, volumes []corev1.PersistentVolume, pods []corev1.Pod) {
	usedBy := slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == c.Name })
	switch {
	case c.DeletionTimestamp != nil && !usedBy:
		base := c.DeepCopy()
		c.Finalizers = nil
		_ = w.Client.Patch(w.Ctx, c, client.MergeFrom(base))
	case c.DeletionTimestamp != nil || c.Status.Phase == corev1.ClaimBound:
	case c.Spec.VolumeName != "":
		c.Status.Phase = corev1.ClaimBound
		_ = w.Client.Status().Update(w.Ctx, c)
	default:
		for i := range volumes {
			vol := &volumes[i]
			if ref := vol.Spec.ClaimRef; ref != nil && ref.UID == c.UID || ref == nil && vol.Status.Phase == corev1.VolumeAvailable &&
				vol.DeletionTimestamp == nil && vol.Spec.StorageClassName == *c.Spec.StorageClassName {
				w.join(c, vol)
				return
			}
		}
		if strings.HasPrefix(*c.Spec.StorageClassName, "tarn-pool-") {
			w.provision(c, usedBy)
		}
	}
}

func (w *world) join(c *corev1.PersistentVolumeClaim, vol *corev1.PersistentVolume) {
	if vol.Spec.ClaimRef == nil {
		vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID}
		if w.Client.Update(w.Ctx, vol) != nil {
			return
		}
	}
	c.Spec.VolumeName = vol.Name
	_ = w.Client.Update(w.Ctx, c)
}

// provision creates the volumes of the world's own class only: the controller also works on
// sets that other tests have left on the API server.
func (w *world) provision(c *corev1.PersistentVolumeClaim, used bool) {
	class := &storagev1.StorageClass{}
	if w.Client.Get(w.Ctx, client.ObjectKey{Name: *c.Spec.StorageClassName}, class) != nil || class.Provisioner != w.name || waits(class) && !used {
		return
	}
	err := w.Client.Create(w.Ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(c.UID), Annotations: map[string]string{volume.AnnProvisionedBy: class.Provisioner}, Finalizers: []string{kube.FinalizerExternalProvisioner}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class.Name, Capacity: c.Spec.Resources.Requests, AccessModes: c.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: *class.ReclaimPolicy,
			ClaimRef:                      &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: class.Provisioner, VolumeHandle: string(c.UID)}},
		},
	})
	if err == nil {
		w.made++
	}
}

// volume gives a volume its phase, or destroys it by phase and policy alone.
func (w *world) volume(vol *corev1.PersistentVolume, claims []corev1.PersistentVolumeClaim) {
	ref := vol.Spec.ClaimRef
	want := corev1.VolumeAvailable
	if ref != nil {
		want = corev1.VolumeReleased
		if slices.ContainsFunc(claims, func(c corev1.PersistentVolumeClaim) bool { return c.UID == ref.UID }) {
			want = corev1.VolumeBound
		}
	}
	switch {
	case vol.Status.Phase != want:
		vol.Status.Phase = want
		_ = w.Client.Status().Update(w.Ctx, vol)
	case want == corev1.VolumeReleased && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		_ = w.Client.Delete(w.Ctx, vol)
		fallthrough
	case vol.DeletionTimestamp != nil:
		base := vol.DeepCopy()
		vol.Finalizers = nil
		_ = w.Client.Patch(w.Ctx, vol, client.MergeFrom(base))
	}
}

// run starts the controller with the account it has in a cluster, and returns a function that
// stops it.
func (w *world) run(restConfig *rest.Config) (stop func()) {
	w.T.Helper()
	return testkit.Run(w.Ctx, w.T, restConfig, func(mgr ctrl.Manager) error { return Register(mgr, Options{Namespace: testNamespace}) })
}

// set creates a set of the world's class.
func (w *world) set(minimum, maximum int32, changes ...testkit.With[*tarnv1.PersistentVolumeSet]) *tarnv1.PersistentVolumeSet {
	w.T.Helper()
	s := set(minimum, maximum, append([]testkit.With[*tarnv1.PersistentVolumeSet]{func(s *tarnv1.PersistentVolumeSet) {
		s.ObjectMeta = metav1.ObjectMeta{Name: w.name}
		s.Spec.Selector = map[string]string{"pool": w.name}
		s.Spec.Template.Metadata.Labels = map[string]string{"pool": w.name}
		s.Spec.Template.Spec.StorageClassName = w.name
	}}, changes...)...)
	w.Must(w.Client.Create(w.Ctx, s))
	return s
}

// pool returns the volumes of the set.
func (w *world) pool() []corev1.PersistentVolume {
	list := &corev1.PersistentVolumeList{}
	if err := w.Client.List(w.Ctx, list, client.MatchingLabels{"pool": w.name}); err != nil {
		w.T.Error(err)
	}
	return list.Items
}

func (w *world) gone(o client.Object) string {
	err := w.Client.Get(w.Ctx, client.ObjectKeyFromObject(o), o)
	if apierrors.IsNotFound(err) {
		return ""
	}
	return o.GetName() + " is left"
}
