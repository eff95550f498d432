//go:build integration

package plugin

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/plugin/plugintest"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// life is what happens to one claim under a controller that may be killed. It ends with nothing
// left.
type life struct {
	name  string
	class testkit.With[*storagev1.StorageClass]
	live  func(w *world)
	// wantMade is how often the storage is created and destroyed.
	wantMade int
}

var lives = []life{
	{"deleted", func(*storagev1.StorageClass) {}, ordinary, 1},
	{"retained", func(c *storagev1.StorageClass) { c.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimRetain) }, retained, 1},
	{"abandoned", func(*storagev1.StorageClass) {}, abandoned, 1},
	{"givenback", func(c *storagev1.StorageClass) {
		c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	}, givenBack, 2},
	{"undeletable", func(*storagev1.StorageClass) {}, undeletable, 1},
}

func TestCase158AVolumeLivesAndEndsWhereverTheControllerIsKilled(t *testing.T) {
	for _, l := range lives {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			whole := testkit.NewKiller(0)
			try := func(name string, k *testkit.Killer) {
				t.Run(name, func(t *testing.T) {
					w := newWorld(t, "life-"+l.name+"-"+name, l.class)
					w.bind()
					stop := k.Life(w.Config, w.run)
					l.live(w)
					stop()
					w.check(l.wantMade, l.wantMade)
				})
			}
			try("whole", whole)
			if whole.Writes() < 2 {
				t.Fatalf("a whole life took %d writes; the killer sees none", whole.Writes())
			}
			for _, n := range testkit.Deaths(t, whole.Writes()) {
				try(fmt.Sprint(n), testkit.NewKiller(n))
			}
		})
	}
}

// check expects that nothing is left. The storage was made between least and most times, and
// destroyed each time.
func (w *world) check(least, most int) {
	w.T.Helper()
	if left := w.fake.Names(); len(left) > 0 {
		w.T.Errorf("the storage still has %q", left)
	}
	claims := &corev1.PersistentVolumeClaimList{}
	w.Must(w.Client.List(w.Ctx, claims))
	for i := range claims.Items {
		if volume.ProvisionerOf(&claims.Items[i]) == w.plugin.Name {
			w.T.Errorf("claim %s is left", claims.Items[i].Name)
		}
	}
	volumes := &corev1.PersistentVolumeList{}
	w.Must(w.Client.List(w.Ctx, volumes))
	for i := range volumes.Items {
		if volumes.Items[i].Annotations[volume.AnnProvisionedBy] == w.plugin.Name {
			w.T.Errorf("volume %s is left", volumes.Items[i].Name)
		}
	}
	made, deleted := 0, 0
	for _, name := range w.fake.Ever() {
		made, deleted = made+w.fake.Made(name), deleted+w.fake.Deleted(name)
	}
	if made < least || made > most || made != deleted {
		w.T.Errorf("storage was made %d times and destroyed %d times, want %d to %d", made, deleted, least, most)
	}
}

// bound waits until a claim has its volume and no promise.
func (w *world) bound(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	w.T.Helper()
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volumeName(claim.UID)}}
	w.eventually("claim "+claim.Name+" to be bound", func() error {
		if err := errors.Join(w.now(claim), w.now(vol)); err != nil {
			return err
		}
		if claim.Status.Phase != corev1.ClaimBound || promised(claim) {
			return fmt.Errorf("it is %s, finalizers %q", claim.Status.Phase, claim.Finalizers)
		}
		return nil
	})
	return vol
}

func ordinary(w *world) {
	claim := w.claim("data")
	vol := w.bound(claim)
	w.Must(w.Client.Delete(w.Ctx, claim))
	w.eventually("the volume to go", w.gone(vol))
}

func retained(w *world) {
	claim := w.claim("data")
	vol := w.bound(claim)
	w.Must(w.Client.Delete(w.Ctx, claim))
	w.eventually("the volume to be Released", func() error {
		if err := w.now(vol); err != nil || vol.Status.Phase != corev1.VolumeReleased {
			return fmt.Errorf("it is %s (%w)", vol.Status.Phase, err)
		}
		return nil
	})
	if got := w.fake.Names(); len(got) != 1 {
		w.T.Errorf("the storage has %q, want the retained volume", got)
	}
	w.eventually("the policy to be changed", func() error {
		if err := w.now(vol); err != nil {
			return err
		}
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		return w.Client.Update(w.Ctx, vol)
	})
	w.eventually("the volume to go", w.gone(vol))
}

// abandoned creates a claim whose volume cannot be made completely, and deletes it.
func abandoned(w *world) {
	w.fake.Break(plugintest.Create, errors.New("the disk is full"))
	claim := w.claim("data")
	w.eventually("half a volume to be made", func() error {
		if len(w.fake.Names()) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	w.Must(w.Client.Delete(w.Ctx, claim))
	w.eventually("the claim to go", w.gone(claim))
}

// givenBack creates a claim whose volume cannot be made completely on the node selected first.
func givenBack(w *world) {
	w.fake.Break(plugintest.Create, errors.New("the disk is full"))
	claim := w.claim("data", func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = w.name })
	w.eventually("the node to be given back", func() error {
		if err := w.now(claim); err != nil || claim.Annotations[volume.AnnSelectedNode] != "" || promised(claim) {
			return fmt.Errorf("it has annotations %v, finalizers %q (%w)", claim.Annotations, claim.Finalizers, err)
		}
		return nil
	})
	if left := w.fake.Names(); len(left) > 0 {
		w.T.Errorf("the node was given back and %q is left on it", left)
	}
	w.fake.Break(plugintest.Create, nil)
	base := claim.DeepCopy()
	claim.Annotations[volume.AnnSelectedNode] = w.name // as the scheduler does
	w.Must(w.Client.Patch(w.Ctx, claim, client.MergeFrom(base)))
	vol := w.bound(claim)
	w.Must(w.Client.Delete(w.Ctx, claim))
	w.eventually("the volume to go", w.gone(vol))
}

// undeletable creates a volume whose storage cannot be destroyed at first.
func undeletable(w *world) {
	claim := w.claim("data")
	vol := w.bound(claim)
	w.fake.Break(plugintest.Delete, errors.New("the disk is gone"))
	w.Must(w.Client.Delete(w.Ctx, claim))
	w.eventually("the volume to be Failed", func() error {
		if err := w.now(vol); err != nil || !calledFailed(vol) || vol.Status.Message != "the disk is gone" {
			return fmt.Errorf("it is %s, %s: %q (%w)", vol.Status.Phase, vol.Status.Reason, vol.Status.Message, err)
		}
		return nil
	})
	w.fake.Break(plugintest.Delete, errors.New("the disk is slow"))
	w.eventually("the new reason", func() error {
		if err := w.now(vol); err != nil || !calledFailed(vol) || vol.Status.Message != "the disk is slow" {
			return fmt.Errorf("it is %s, %s: %q (%w)", vol.Status.Phase, vol.Status.Reason, vol.Status.Message, err)
		}
		return nil
	})
	w.fake.Break(plugintest.Delete, nil)
	w.eventually("the volume to go", w.gone(vol))
}
