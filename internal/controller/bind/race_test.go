package bind

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"tarn.dev/tarn/internal/volume"
)

// race is a history of one volume that several claims want, and nothing else. The watches deliver
// the claims in any order, and the workers take turns step by step.
type race struct {
	*story
	t *testing.T
	// after is how many steps after the others the first claim is created.
	after int
}

func newRace(t *testing.T, seed, after int) *race {
	r := &race{story: newStory(mode{}, int64(seed)), t: t, after: after}
	r.calm = true
	phase := []corev1.PersistentVolumePhase{corev1.VolumePending, corev1.VolumeAvailable}[seed%2]
	r.putVolume(volumeOf(volumeNamed(0), "1Gi", in(phase)))
	return r
}

// claim creates one that wants the volume.
func (r *race) claim(i int, with ...claimWith) {
	key := claimNamed(i)
	r.putClaim(claimOf("1Gi", append([]claimWith{called(key.Namespace, key.Name), uid(types.UID(key.Name)), ofClass("")}, with...)...))
}

// run plays the race to its end, with a check at every step, and returns the claim that then has
// the volume.
func (r *race) run(number int, first func()) (winner string) {
	r.t.Helper()
	var had *corev1.ObjectReference
	for i := range longestEnd {
		if i == r.after {
			first()
		}
		if more := r.step(); !more && i >= r.after {
			break
		}
		wrong := r.bothHave()
		if ref := r.volumes[volumeNamed(0)].Spec.ClaimRef; had != nil && !sameRef(had, ref) {
			wrong = fmt.Sprintf("the volume pointed at %s and points at %+v", had.Name, ref)
		} else {
			had = ref
		}
		if wrong != "" {
			r.t.Fatalf("case %d: %s; the last steps:\n%s", number, wrong, strings.Join(r.told, "\n"))
		}
	}
	if wrong := r.check(); len(wrong) > 0 || had == nil {
		r.t.Fatalf("case %d: the volume points at %+v, %s; the steps:\n%s", number, had, strings.Join(wrong, "; "), strings.Join(r.told, "\n"))
	}
	for key, c := range r.claims {
		switch won := key.Name == had.Name; {
		case won && (c.Spec.VolumeName != volumeNamed(0) || c.Status.Phase != corev1.ClaimBound):
			r.t.Errorf("case %d: the volume points at claim %s, which is %s on %q", number, key.Name, c.Status.Phase, c.Spec.VolumeName)
		case !won && (c.Status.Phase != corev1.ClaimPending || volume.StateOfClaim(c) == volume.ClaimCompleted):
			r.t.Errorf("case %d: claim %s is %s, with annotations %v, beside the one that has the volume", number, key.Name, c.Status.Phase, c.Annotations)
		}
	}
	return had.Name
}

// bothHave says whether a claim is lost, or has a volume that another claim has too.
func (r *race) bothHave() string {
	has := ""
	for key, c := range r.claims {
		if c.Status.Phase == corev1.ClaimLost {
			return fmt.Sprintf("claim %s is lost", key.Name)
		}
		if c.Status.Phase != corev1.ClaimBound && volume.StateOfClaim(c) != volume.ClaimCompleted {
			continue
		}
		if has != "" {
			return fmt.Sprintf("claims %s and %s have the volume", has, key.Name)
		}
		has = key.Name
	}
	return ""
}

func TestCase160OfManyClaimsThatRaceForAVolumeOneGetsIt(t *testing.T) {
	won := map[string]bool{}
	for seed := range 300 {
		r := newRace(t, seed, 0)
		won[r.run(160, func() {
			for i := range population {
				r.claim(i)
			}
		})] = true
	}
	if len(won) < 2 {
		t.Errorf("case 160: %v have won in all races, want no race to be decided before it begins", won)
	}
}

func TestCase161AClaimThatNamesAVolumeAndOneThatItFitsRaceForIt(t *testing.T) {
	won := map[string]int{}
	for seed := range 300 {
		r := newRace(t, seed, seed%20)
		r.claim(1)
		won[r.run(161, func() { r.claim(0, names(volumeNamed(0))) })]++
		if fits := r.claims[claimNamed(1)]; fits.Spec.VolumeName != "" && fits.Status.Phase != corev1.ClaimBound {
			t.Errorf("case 161: the claim that names none of itself is %s on %q", fits.Status.Phase, fits.Spec.VolumeName)
		}
	}
	if len(won) < 2 {
		t.Errorf("case 161: %v have won, want each to win some races", won)
	}
}
