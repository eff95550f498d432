//go:build integration

package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/plugintest"
	"tarn.dev/tarn/internal/volume"
)

func TestCase106AVolumeThatIsMadeIsTheClaimsAndToldAndBound(t *testing.T) {
	w := newWorld(t, "made")
	defer w.run(w.Config)()
	claim := w.claim("data")
	w.saying(claim, eventSucceeded, "PersistentVolume pvc-"+string(claim.UID)+" is created")
	vol := &corev1.PersistentVolume{}
	vol.Name = "pvc-" + string(claim.UID)
	w.Must(w.now(vol))
	w.Must(w.now(claim))
	ref := vol.Spec.ClaimRef
	if ref == nil || ref.Namespace != claim.Namespace || ref.Name != claim.Name || ref.UID != claim.UID || vol.Spec.StorageClassName != w.name ||
		vol.Annotations[volume.AnnProvisionedBy] != w.plugin.Name || !strings.Contains(strings.Join(vol.Finalizers, " "), volume.FinalizerExternal) {
		t.Errorf("the volume is %+v, want it the claim's, of its class and plugin, and held", vol)
	}
	if volume.ProvisionerOf(claim) != w.plugin.Name || claim.Spec.VolumeName != "" || w.fake.Made(vol.Name) != 1 {
		t.Errorf("claim %+v, made %d times; want it annotated, not bound by who makes, and once", claim, w.fake.Made(vol.Name))
	}
	w.bind()
	if w.bound(claim); claim.Spec.VolumeName != vol.Name {
		t.Errorf("the claim has %q", claim.Spec.VolumeName)
	}
}

// calls records when a plugin was called.
type calls struct {
	plugin.Creator
	mu sync.Mutex
	at []time.Time
}

func (c *calls) Create(ctx context.Context, r plugin.Request) (plugin.Asset, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = append(c.at, time.Now())
	return c.Creator.Create(ctx, r)
}

func TestCase107ACallThatFailsIsToldAndMadeAgainAfterPausesThatGrow(t *testing.T) {
	w := newWorld(t, "fails-to-make")
	w.bind()
	made := &calls{Creator: w.plugin.Creator}
	w.plugin.Creator = made
	w.fake.Break(plugintest.Create, errors.New("the disk is full"))
	defer w.run(w.Config)()
	claim := w.claim("data")
	const tries, noted = 12, 3 // up to this many calls may follow the writes to the claim
	w.eventually("the call to be made again", func() error {
		made.mu.Lock()
		defer made.mu.Unlock()
		if len(made.at) < tries {
			return fmt.Errorf("%d calls", len(made.at))
		}
		// The first pause is 5 ms, and each later one is twice as long.
		if last, least := made.at[tries-1].Sub(made.at[tries-2]), 5*time.Millisecond<<(tries-2-noted); last < least {
			t.Errorf("call %d came %s after the one before, want %s at the least", tries, last, least)
		}
		return nil
	})
	w.saying(claim, eventFailed, "the disk is full")
	if w.Must(w.now(claim)); volume.ProvisionerOf(claim) != w.plugin.Name || !promised(claim) || claim.Spec.VolumeName != "" {
		t.Errorf("the claim is %+v, want what calls the plugin kept", claim)
	}
	w.fake.Break(plugintest.Create, nil)
	vol := w.bound(claim)
	w.saying(claim, eventSucceeded, vol.Name)
	if times := w.fake.Made(vol.Name); times != 1 {
		t.Errorf("storage was made %d times", times)
	}
}

func TestCase107ACallThatFailsOnASelectedNodeGivesTheNodeBack(t *testing.T) {
	w := newWorld(t, "fails-on-node", lives[3].class)
	r, recorder := w.alone()
	claim := w.claim("data", func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = w.name })
	v := w.view(claim)
	w.Must(r.promise(w.Ctx, v))
	told(recorder) // the Event that a volume is being made
	w.fake.Break(plugintest.Create, errors.New("the disk is full"))
	if _, err := r.apply(w.Ctx, v, Plan{Act: ActMake}); err != nil {
		t.Fatalf("got %v, want the node to be given back alone", err)
	}
	if event := told(recorder); !strings.HasPrefix(event, "Warning ProvisioningFailed") || !strings.Contains(event, "the disk is full") {
		t.Errorf("the claim was told %q", event)
	}
	w.Must(w.now(claim))
	if _, selected := claim.Annotations[volume.AnnSelectedNode]; selected || volume.ProvisionerOf(claim) != w.plugin.Name || promised(claim) {
		t.Errorf("the claim has annotations %v and finalizers %q, want the node alone to go", claim.Annotations, claim.Finalizers)
	}
	if left := w.fake.Names(); len(left) > 0 {
		t.Errorf("%q is left on the node", left)
	}
}
