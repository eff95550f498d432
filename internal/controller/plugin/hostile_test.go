//go:build integration

package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/volume"
)

// hostile does something to every other write of a kind to an object. So each write is hit, and
// its repetition is not.
type hostile struct {
	mu   sync.Mutex
	seen map[string]int
	hits int
	do   func(next http.RoundTripper, r *http.Request) (*http.Response, error)
}

func (h *hostile) wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if h.toBeHit(r) {
				return h.do(next, r)
			}
			return next.RoundTrip(r)
		})
	})
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (h *hostile) toBeHit(r *http.Request) bool {
	if !isWrite(r) {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	key := r.Method + r.URL.Path
	h.seen[key]++
	if h.seen[key]%2 == 0 {
		return false
	}
	h.hits++
	return true
}

// isWrite reports whether a request changes anything besides Events.
func isWrite(r *http.Request) bool {
	return r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events")
}

var errLost = errors.New("the answer was lost")

func TestCases157And165AVolumeLivesThroughConflictsAndLostAnswers(t *testing.T) {
	ways := map[string]func(w *world) func(http.RoundTripper, *http.Request) (*http.Response, error){
		"unheard": func(*world) func(http.RoundTripper, *http.Request) (*http.Response, error) {
			return func(http.RoundTripper, *http.Request) (*http.Response, error) { return nil, errLost }
		},
		"unanswered": func(*world) func(http.RoundTripper, *http.Request) (*http.Response, error) {
			return func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
				response, err := next.RoundTrip(r)
				if err == nil {
					err = response.Body.Close()
				}
				return nil, errors.Join(errLost, err)
			}
		},
		"outrun": func(w *world) func(http.RoundTripper, *http.Request) (*http.Response, error) {
			return func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
				w.touchAll()
				return next.RoundTrip(r)
			}
		},
	}
	for _, l := range lives {
		for way, do := range ways {
			t.Run(l.name+" "+way, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, "hostile-"+l.name+"-"+way, l.class)
				w.bind()
				h := &hostile{seen: map[string]int{}, do: do(w)}
				stop := w.run(h.wrap(w.Config))
				l.live(w)
				stop()
				// If the answer to giving a node back was lost, creation there is tried once
				// more.
				w.check(l.wantMade, l.wantMade+1)
				if h.hits == 0 {
					t.Error("no write was hit")
				}
			})
		}
	}
}

// touchAll writes to every object of the test, as a faster writer would.
func (w *world) touchAll() {
	claims, volumes := &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}
	if w.Client.List(w.Ctx, claims) != nil || w.Client.List(w.Ctx, volumes) != nil {
		return
	}
	touch := func(o client.Object, ours bool) {
		if base, ok := o.DeepCopyObject().(client.Object); ok && ours {
			o.SetAnnotations(map[string]string{"test.tarn.dev/touched": o.GetResourceVersion()})
			for key, value := range base.GetAnnotations() {
				if key != "test.tarn.dev/touched" {
					o.GetAnnotations()[key] = value
				}
			}
			_ = w.Client.Patch(w.Ctx, o, client.MergeFrom(base)) // it may be gone by now
		}
	}
	for i := range claims.Items {
		touch(&claims.Items[i], volume.ProvisionerOf(&claims.Items[i]) == w.plugin.Name)
	}
	for i := range volumes.Items {
		touch(&volumes.Items[i], volumes.Items[i].Annotations[volume.AnnProvisionedBy] == w.plugin.Name)
	}
}

// small makes volumes that are smaller than requested.
type small struct{ plugin.Creator }

func (s small) Create(ctx context.Context, r plugin.Request) (plugin.Asset, error) {
	asset, err := s.Creator.Create(ctx, r)
	asset.Bytes = r.Bytes - 1
	return asset, err
}

func TestAVolumeThatCameOutTooSmallIsNotHandedOver(t *testing.T) {
	w := newWorld(t, "small")
	r, recorder := w.alone()
	claim := w.claim("data", func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = w.name })
	v := w.view(claim)
	v.Plugin.Creator = small{v.Plugin.Creator}
	w.Must(r.promise(w.Ctx, v))
	told(recorder)
	if err := r.make(w.Ctx, v); err != nil {
		t.Fatal(err)
	}
	if event := told(recorder); !strings.Contains(event, "ProvisioningFailed") || !strings.Contains(event, "1073741823") {
		t.Errorf("told %q, want what was made", event)
	}
	w.Must(w.now(claim))
	if left := w.fake.Names(); v.Volume != nil || len(left) > 0 || promised(claim) || claim.Annotations[volume.AnnSelectedNode] != "" {
		t.Errorf("volume %v, storage %q, claim %v; want all undone and the node given back", v.Volume, left, claim.Annotations)
	}
}

func TestAClaimForAnotherNodeGoesBackToTheScheduler(t *testing.T) {
	w := newWorld(t, "elsewhere", lives[3].class)
	stop := w.run(w.Config)
	defer stop()
	claim := w.claim("data", func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "another" })
	w.eventually("the node to be given back", func() error {
		if err := w.now(claim); err != nil || claim.Annotations[volume.AnnSelectedNode] != "" {
			return fmt.Errorf("annotations %v (%w)", claim.Annotations, err)
		}
		return nil
	})
	if made := w.fake.Ever(); len(made) > 0 || volume.ProvisionerOf(claim) == "" {
		t.Errorf("%q was made; annotations %v, want only the node's to go", made, claim.Annotations)
	}
}
