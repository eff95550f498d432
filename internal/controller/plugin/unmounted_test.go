//go:build integration

package plugin

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/plugin/plugintest"
)

// This is a machine after a reboot, whose controller starts before its disk is mounted.
func TestAControllerWithoutItsDiskLeavesAllAsItIsUntilItHasIt(t *testing.T) {
	w := newWorld(t, "unmounted")
	w.bind()
	stop := w.run(w.Config)
	released, kept := w.claim("released"), w.claim("kept")
	vol := w.bound(released)
	w.bound(kept)
	w.fake.Break(plugintest.Create, errors.New("the disk is full"))
	begun := w.claim("begun")
	w.eventually("its storage to be made", func() error {
		if w.fake.Made(volumeName(begun.UID)) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	stop()
	w.fake.Break(plugintest.Create, nil)
	if w.Must(w.now(begun)); begun.Annotations[tarnv1.AnnotationPlace] != w.plugin.Place || vol.Annotations[tarnv1.AnnotationPlace] != w.plugin.Place {
		t.Fatalf("claim %v and volume %v, want the place in both", begun.Annotations, vol.Annotations)
	}

	disk := w.plugin
	var beneath *plugintest.Fake
	beneath, w.plugin = plugintest.NewFakeElsewhere(disk.Name, disk.Node)
	stop = w.run(w.Config)
	w.Must(w.Client.Delete(w.Ctx, released))
	w.Must(w.Client.Delete(w.Ctx, begun))
	late := w.claim("late")
	w.saying(vol, eventDeleteFailed, "lies in "+disk.Place)
	w.saying(begun, eventFailed, "lies in "+disk.Place)
	w.saying(late, eventFailed, "lies in "+disk.Place)
	stop()
	if made := beneath.Ever(); len(made) > 0 || len(w.fake.Names()) != 3 {
		t.Errorf("%q was made beneath, the disk has %q; want nothing, and the three that were there", made, w.fake.Names())
	}

	w.plugin = disk
	defer w.run(w.Config)()
	w.eventually("the volume and the claim that wait to go", func() error { return errors.Join(w.gone(vol)(), w.gone(begun)()) })
	for _, claim := range []*corev1.PersistentVolumeClaim{late, kept} {
		vol := w.bound(claim)
		w.Must(w.Client.Delete(w.Ctx, claim))
		w.eventually("the volume to go", w.gone(vol))
	}
	w.check(4, 4)
}
