//go:build integration

package pool

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
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
	w.Create(testkit.Class(name, func(c *storagev1.StorageClass) {
		if waits {
			c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
		}
	}))
	w.Play(w.round)
	return w
}

func (w *world) round() error {
	volumes, claims, pods := &corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PodList{}
	if err := errors.Join(w.Client.List(w.Ctx, volumes), w.Client.List(w.Ctx, claims), w.Client.List(w.Ctx, pods, client.InNamespace(testNamespace))); err != nil {
		return err
	}
	for i := range pods.Items {
		w.Stop(&pods.Items[i])
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
	used := slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == c.Name })
	if c.DeletionTimestamp != nil && !used {
		w.Release(c, "")
	}
	if c.DeletionTimestamp != nil || c.Status.Phase == corev1.ClaimBound || c.Spec.VolumeName != "" {
		w.Bind(c, c.Spec.VolumeName)
		return
	}
	for i := range volumes {
		vol := &volumes[i]
		ref := vol.Spec.ClaimRef
		if ref == nil && vol.Status.Phase == corev1.VolumeAvailable && vol.DeletionTimestamp == nil && vol.Spec.StorageClassName == *c.Spec.StorageClassName {
			vol.Spec.ClaimRef = testkit.ClaimRef(c)
			if w.Client.Update(w.Ctx, vol) != nil {
				return
			}
		}
		if vol.Spec.ClaimRef != nil && vol.Spec.ClaimRef.UID == c.UID {
			w.Bind(c, vol.Name)
			return
		}
	}
	if strings.HasPrefix(*c.Spec.StorageClassName, "tarn-pool-") {
		w.provision(c, used)
	}
}

// provision creates the volumes of the world's own class only: the controller also works on
// sets that other tests have left on the API server.
func (w *world) provision(c *corev1.PersistentVolumeClaim, used bool) {
	class := &storagev1.StorageClass{}
	if w.Client.Get(w.Ctx, client.ObjectKey{Name: *c.Spec.StorageClassName}, class) != nil || class.Provisioner != w.name || waits(class) && !used {
		return
	}
	err := w.Client.Create(w.Ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(c.UID), Annotations: map[string]string{volume.AnnProvisionedBy: class.Provisioner}, Finalizers: []string{volume.FinalizerExternal}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class.Name, Capacity: c.Spec.Resources.Requests, AccessModes: c.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: *class.ReclaimPolicy, ClaimRef: testkit.ClaimRef(c),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: class.Provisioner, VolumeHandle: string(c.UID)}},
		},
	})
	if err == nil {
		w.made++
	}
}

// volume gives a volume its phase, or destroys it by phase and policy alone.
func (w *world) volume(vol *corev1.PersistentVolume, claims []corev1.PersistentVolumeClaim) {
	if w.SetVolumePhase(vol, claims) {
		return
	}
	if vol.Status.Phase == corev1.VolumeReleased && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		_ = w.Client.Delete(w.Ctx, vol)
	}
	w.Release(vol, "")
}

// Run starts the controller with the account it has in a cluster, and returns a function that
// stops it.
func (w *world) Run(restConfig *rest.Config) (stop func()) {
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
	w.Create(s)
	return s
}

// read reads objects again.
func (w *world) read(objects ...client.Object) {
	w.T.Helper()
	for _, o := range objects {
		w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(o), o))
	}
}

// edit changes a set.
func (w *world) edit(s *tarnv1.PersistentVolumeSet, change testkit.With[*tarnv1.PersistentVolumeSet]) {
	w.T.Helper()
	w.read(s)
	base := s.DeepCopy()
	change(s)
	w.Must(w.Client.Patch(w.Ctx, s, client.MergeFrom(base)))
}

// pool returns the volumes of the set.
func (w *world) pool() []corev1.PersistentVolume {
	list := &corev1.PersistentVolumeList{}
	if err := w.Client.List(w.Ctx, list, client.MatchingLabels{"pool": w.name}); err != nil {
		w.T.Error(err)
	}
	return list.Items
}
