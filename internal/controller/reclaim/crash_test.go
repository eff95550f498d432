//go:build integration

package reclaim

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

// life is what happens to one volume under a controller that may be killed.
type life struct {
	name string
	// phase is the record's first phase.
	phase    tarnv1.VolumePhase
	failures int
	kept     bool
	live     func(*world)
	wantPods int
}

var lives = []life{
	{"deleted-at-second-go", tarnv1.VolumeCreated, 1, false, deletes, 2},
	{"retained", tarnv1.VolumeCreated, 0, true, keeps, 0},
	{"forgotten", tarnv1.VolumeCreated, 0, true, forgets, 0},
	{"undone", tarnv1.VolumeUndoing, 0, false, undoes, 1},
}

func TestAVolumeEndsOnceWhereverTheControllerIsKilled(t *testing.T) {
	for _, l := range lives {
		t.Run(l.name, func(t *testing.T) {
			live := func(t *testing.T, server *rest.Config, name string, k *testkit.Killer) {
				w := newWorld(t, server, "reclaim-"+l.name+"-"+name, l)
				stop := k.Life(w.Config, w.run)
				l.live(w)
				stop()
				w.check(l.wantPods)
			}
			whole := testkit.NewKiller(0)
			live(t, testkit.OwnAPIServer(t), "whole", whole)
			testkit.AtEveryWrite(t, whole.Writes(), func(t *testing.T, server *rest.Config, n int) {
				live(t, server, fmt.Sprint(n), testkit.NewKiller(n))
			})
		})
	}
}

// check checks the number of deletion pods that ran, and that nothing went wrong.
func (w *world) check(pods int) {
	w.T.Helper()
	if ran := w.kubelet.Ran(tarnv1.StepDeletion); len(ran) != pods {
		w.T.Errorf("deletion pods %q have run, want %d", ran, pods)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.wrong) > 0 || w.gone != (pods > 0) {
		w.T.Errorf("the storage is gone: %v; %s", w.gone, strings.Join(w.wrong, "; "))
	}
}

// ended waits until volume, record and pods are gone.
func (w *world) ended() {
	w.T.Helper()
	w.Eventually("the end of the volume", func() string {
		for _, o := range []client.Object{w.claim, w.vol, w.record} {
			there, err := kube.Get(w.Ctx, w.Client, client.ObjectKeyFromObject(o), o.DeepCopyObject().(client.Object))
			w.Must(err)
			if there != nil {
				return fmt.Sprintf("%T is there, finalizers %q", o, there.GetFinalizers())
			}
		}
		pods := &corev1.PodList{}
		w.Must(w.Client.List(w.Ctx, pods, client.InNamespace(testNamespace), client.MatchingLabels{tarnv1.LabelProvisioner: w.claim.Name}))
		if len(pods.Items) > 0 {
			return "pod " + pods.Items[0].Name + " is there"
		}
		return ""
	})
}

func deletes(w *world) {
	w.Must(w.Client.Delete(w.Ctx, w.claim))
	w.ended()
}

// keeps deletes the volume once it is Released.
func keeps(w *world) {
	w.released()
	w.Must(w.Client.Delete(w.Ctx, w.vol))
	w.ended()
}

// forgets gives up the record once the volume is Released.
func forgets(w *world) {
	w.released()
	w.Must(w.Client.Patch(w.Ctx, w.record.DeepCopy(), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}}`, tarnv1.AnnotationForget, w.record.UID))))
	w.Must(w.Client.Delete(w.Ctx, w.record.DeepCopy()))
	w.ended()
}

// released deletes the claim and waits until the volume is Released.
func (w *world) released() {
	w.T.Helper()
	w.Must(w.Client.Delete(w.Ctx, w.claim))
	w.Eventually("the volume to be Released", func() string {
		vol := &corev1.PersistentVolume{}
		w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(w.vol), vol))
		if vol.Status.Phase == corev1.VolumeReleased {
			return ""
		}
		return "it is " + string(vol.Status.Phase)
	})
}

// undoes waits until a failed creation is undone and the record is handed back to provision.
func undoes(w *world) {
	w.Eventually("the record to be handed back", func() string {
		now := &tarnv1.PavVolume{}
		w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(w.record), now))
		if now.Status.Phase == tarnv1.VolumePending && now.Status.Handle == "" {
			return ""
		}
		return fmt.Sprintf("it is %+v", now.Status)
	})
}
