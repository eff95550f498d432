package bind

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"tarn.dev/tarn/internal/volume"
)

var (
	drawSize  = rapid.SampledFrom([]string{"1Gi", "2Gi", "1G", "3Gi", "1.5Gi", "10E", "11E", "100m"})
	drawClass = rapid.SampledFrom([]string{"", "gold"})
	drawModes = rapid.SliceOfNDistinct(rapid.SampledFrom([]corev1.PersistentVolumeAccessMode{rwo, rox, rwx}), 1, 3, rapid.ID)
	drawLabel = rapid.SampledFrom([]string{"", "x", "y"})
	drawMode  = rapid.Bool()
)

func drawVolume(t *rapid.T, name string) *corev1.PersistentVolume {
	v := volumeOf(name, drawSize.Draw(t, "size"), class(drawClass.Draw(t, "class")), access(drawModes.Draw(t, "modes")...), labelled("k", drawLabel.Draw(t, "label")))
	if drawMode.Draw(t, "block") {
		block(v)
	}
	return v
}

func drawClaim(t *rapid.T, name string) *corev1.PersistentVolumeClaim {
	c := claimOf(drawSize.Draw(t, "size"), called("ns", name), ofClass(drawClass.Draw(t, "class")), asking(drawModes.Draw(t, "modes")...))
	if drawMode.Draw(t, "block") {
		blockClaim(c)
	}
	if label := drawLabel.Draw(t, "wanted label"); label != "" {
		selecting(map[string]string{"k": label})(c)
	}
	return c
}

// scan finds the volume for a claim by checking every volume.
func scan(t *rapid.T, volumes map[string]*corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	selector, err := volume.Selector(claim)
	if err != nil {
		t.Fatal(err)
	}
	var best *corev1.PersistentVolume
	for _, v := range volumes {
		if volume.Match(v, claim, selector) == volume.Fits && (best == nil || before(v, best)) {
			best = v
		}
	}
	return best
}

// before is the order in which volumes are chosen: fewer access modes first, then the modes
// themselves, size and name.
func before(a, b *corev1.PersistentVolume) bool {
	x, y := volume.AccessOf(a.Spec.AccessModes), volume.AccessOf(b.Spec.AccessModes)
	if x.Len() != y.Len() {
		return x.Len() < y.Len()
	}
	if x != y {
		return x < y
	}
	if by := volume.Capacity(a).Cmp(*volume.Capacity(b)); by != 0 {
		return by < 0
	}
	return a.Name < b.Name
}

// scanClaims finds the size of the largest claim that a volume serves; empty for none.
func scanClaims(t *rapid.T, claims map[string]*corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	var best *corev1.PersistentVolumeClaim
	for _, c := range claims {
		selector, err := volume.Selector(c)
		if err != nil {
			t.Fatal(err)
		}
		request := volume.Request(c)
		if volume.Match(v, c, selector) == volume.Fits && (best == nil || request.Cmp(volume.Request(best)) > 0) {
			best = c
		}
	}
	return best
}

func TestTheIndexFindsWhatAScanFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		free, waiting := newIndex[*corev1.PersistentVolume](), newIndex[waitingClaim]()
		volumes, claims := map[string]*corev1.PersistentVolume{}, map[string]*corev1.PersistentVolumeClaim{}
		name := rapid.Custom(func(t *rapid.T) string { return fmt.Sprintf("n%d", rapid.IntRange(0, 12).Draw(t, "n")) })
		t.Repeat(map[string]func(*rapid.T){
			"put a volume": func(t *rapid.T) {
				v := drawVolume(t, name.Draw(t, "name"))
				volumes[v.Name] = v
				free.put(v.Name, indexKeyOfVolume(v), *volume.Capacity(v), v)
			},
			"take a volume": func(t *rapid.T) {
				n := name.Draw(t, "name")
				delete(volumes, n)
				free.remove(n)
			},
			"put a claim": func(t *rapid.T) {
				c := drawClaim(t, name.Draw(t, "name"))
				claims[c.Name] = c
				waiting.put(c.Name, indexKeyOfClaim(c), volume.Request(c), waitingClaimOf(c))
			},
			"take a claim": func(t *rapid.T) {
				n := name.Draw(t, "name")
				delete(claims, n)
				waiting.remove(n)
			},
			"ask for a claim": func(t *rapid.T) {
				c := drawClaim(t, "asker")
				selector, err := volume.Selector(c)
				if err != nil {
					t.Fatal(err)
				}
				if got, want := smallest(free, c, selector), scan(t, volumes, c); got != want {
					t.Fatalf("the index finds %v, a scan %v", got, want)
				}
			},
			"ask for a volume": func(t *rapid.T) {
				v := drawVolume(t, "asker")
				got := largest(waiting, v)
				want := scanClaims(t, claims, v)
				if (got == nil) != (want == nil) {
					t.Fatalf("the index finds %v, a scan %v", got, want)
				}
				if got == nil {
					return
				}
				request := volume.Request(got)
				if request.Cmp(volume.Request(want)) != 0 || claims[got.Name] != got {
					t.Fatalf("the index finds %v, a scan %v", got, want)
				}
			},
			"": func(t *rapid.T) {
				if len(free.positions) != len(volumes) || len(waiting.positions) != len(claims) {
					t.Fatalf("the index has %d volumes and %d claims, want %d and %d", len(free.positions), len(waiting.positions), len(volumes), len(claims))
				}
				for kind, sets := range free.access {
					for _, set := range sets {
						on := kind
						on.access = set
						if free.trees[on].Len() == 0 {
							t.Fatalf("key %+v is empty", on)
						}
					}
				}
			},
		})
	})
}
