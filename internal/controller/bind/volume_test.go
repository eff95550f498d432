package bind

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"tarn.dev/tarn/internal/volume"
)

// volumeCase is one reconcile of volume "a".
type volumeCase struct {
	name   string
	volume *corev1.PersistentVolume
	claim  *corev1.PersistentVolumeClaim
	live   *corev1.PersistentVolumeClaim // what the API server knows, if it is asked
	phase  corev1.PersistentVolumePhase  // the one it has then; empty: the same
	writes string
	events string
	check  func(*corev1.PersistentVolume) string
}

func (c *volumeCase) run(t *testing.T) {
	b := newCache(false, deaf{})
	if c.claim != nil {
		b.claimChanged(c.claim)
	}
	b.volumeChanged(c.volume)
	d := syncVolume(b, "a", c.live)
	if got := strings.Join(d.writes, ","); got != c.writes {
		t.Errorf("wrote %q, want %q", got, c.writes)
	}
	if got := strings.Join(d.events, ","); got != c.events {
		t.Errorf("posted %q, want %q", got, c.events)
	}
	if c.phase != "" && d.volume.Status.Phase != c.phase {
		t.Errorf("the volume is %s, want %s", d.volume.Status.Phase, c.phase)
	}
	if c.check != nil {
		if wrong := c.check(d.volume); wrong != "" {
			t.Error(wrong)
		}
	}
}

func runVolumeCases(t *testing.T, cases []volumeCase) {
	for i := range cases {
		t.Run(cases[i].name, cases[i].run)
	}
}

func pointsAt(name string, u string) func(*corev1.PersistentVolume) string {
	return func(v *corev1.PersistentVolume) string {
		ref := v.Spec.ClaimRef
		if ref == nil && name == "" || ref != nil && ref.Name == name && string(ref.UID) == u {
			return ""
		}
		return fmt.Sprintf("the volume points at %+v, want claim %q with uid %q", ref, name, u)
	}
}

func unmarked(v *corev1.PersistentVolume) string {
	if v.Annotations != nil {
		return fmt.Sprintf("annotations are %v, want none at all", v.Annotations)
	}
	return ""
}

func TestAVolumesPhaseSaysHowItStandsToItsClaim(t *testing.T) {
	const status = "volume/status"
	const retain, available, bound, released = corev1.PersistentVolumeReclaimRetain, corev1.VolumeAvailable, corev1.VolumeBound, corev1.VolumeReleased
	u, unbound := claimOf("1Gi", completed("a", boundClaim)), claimOf("1Gi")
	elsewhere := claimOf("1Gi", completed("b", boundClaim))
	made := marked(volume.AnnProvisionedBy + "=p.example")
	runVolumeCases(t, []volumeCase{
		{name: "case 67: Pending and nobody's", volume: volumeOf("a", "1Gi", in(corev1.VolumePending)), writes: status, phase: available},
		{name: "case 67: Failed and nobody's", volume: volumeOf("a", "1Gi", in(corev1.VolumeFailed)), writes: status, phase: available},
		{name: "case 67: Released and nobody's, as case 46", volume: volumeOf("a", "1Gi", in(released)), writes: status, phase: available},
		{name: "case 67: kept for a claim that is not there", volume: volumeOf("a", "1Gi", in(corev1.VolumePending), to("c", "")), writes: status, phase: available},
		{name: "case 67: as it should be", volume: volumeOf("a", "1Gi")},
		{name: "case 67: as it should be, kept for a claim", volume: volumeOf("a", "1Gi", to("c", ""))},
		{name: "section 8: a mark left when the claimRef was taken off goes", volume: volumeOf("a", "1Gi", in(released), marked(bbc)), writes: "volume," + status, phase: available, check: unmarked},
		{name: "section 8: a claim that will take it acts instead", volume: volumeOf("a", "1Gi", in(corev1.VolumePending), to("c", "")), claim: unbound, writes: "wake c"},
		{name: "one that cannot does not", volume: volumeOf("a", "1Gi", in(corev1.VolumePending), to("c", "")), claim: claimOf("2Gi"), writes: status, phase: available},
		{name: "nor one that has another", volume: volumeOf("a", "1Gi", in(corev1.VolumePending), to("c", "")), claim: elsewhere, writes: status, phase: available},
		{name: "section 8: a claim that names it acts instead", volume: volumeOf("a", "1Gi", in(corev1.VolumePending)), claim: claimOf("1Gi", names("a")), writes: "wake c"},
		{name: "one that names it and cannot have it does not", volume: volumeOf("a", "1Gi", in(corev1.VolumePending)), claim: claimOf("2Gi", names("a")), writes: status, phase: available},
		{name: "section 1.9: one that was bound to it has it back", volume: volumeOf("a", "1Gi", in(bound)), claim: u, writes: "wake c"},
		{name: "case 68: its claim is gone", volume: volumeOf("a", "1Gi", to("c", "u"), in(bound), policy(retain)), writes: status, phase: released, check: pointsAt("c", "u")},
		{name: "case 69: its claim was made anew", volume: volumeOf("a", "1Gi", to("c", "old"), in(bound)), claim: u, live: u, writes: status, phase: released, check: pointsAt("c", "old")},
		{name: "case 46: restored with the uid of another cluster", volume: volumeOf("a", "1Gi", to("c", "foreign"), in(corev1.VolumePending)), claim: claimOf("1Gi", names("a")), live: u, writes: status, phase: released},
		{name: "case 70: the cache has not heard of the claim", volume: volumeOf("a", "1Gi", to("c", "u"), in(corev1.VolumePending)), live: u, writes: status, phase: bound},
		{name: "case 70: nor that it names a volume", volume: volumeOf("a", "1Gi", to("c", "u"), in(corev1.VolumePending)), live: unbound, writes: "wake c"},
		{name: "case 70: the cache has the claim before this one", volume: volumeOf("a", "1Gi", to("c", "u"), in(bound)), claim: claimOf("1Gi", uid("old")), live: u},
		{name: "case 72: its claim names none yet", volume: volumeOf("a", "1Gi", to("c", "u"), marked(bbc)), claim: unbound, writes: "wake c"},
		{name: "case 42: and never can, with another mode", volume: volumeOf("a", "1Gi", to("c", "u"), marked(bbc)), claim: claimOf("1Gi", blockClaim),
			events: "Warning VolumeMismatch on volume,Warning VolumeMismatch"},
		{name: "case 42: block with block is woken", volume: volumeOf("a", "1Gi", to("c", "u"), block), claim: claimOf("1Gi", blockClaim), writes: "wake c"},
		{name: "case 73: its claim names it", volume: volumeOf("a", "1Gi", to("c", "u")), claim: u, writes: status, phase: bound},
		{name: "case 73: with policy Delete it is not deleted", volume: volumeOf("a", "1Gi", to("c", "u"), made), claim: u, writes: status, phase: bound},
		{name: "case 74: its claim has another", volume: volumeOf("a", "1Gi", to("c", "u"), marked(bbc), in(bound)), claim: elsewhere, writes: "volume," + status, phase: available,
			check: func(v *corev1.PersistentVolume) string { return pointsAt("", "")(v) + unmarked(v) }},
		{name: "case 75: and it was kept by name", volume: volumeOf("a", "1Gi", to("c", "u"), in(bound)), claim: elsewhere, writes: "volume," + status, phase: available, check: pointsAt("c", "")},
		{name: "case 76: and it was made for the claim", volume: volumeOf("a", "1Gi", to("c", "u"), made), claim: elsewhere, writes: status, phase: released, check: pointsAt("c", "u")},
		{name: "case 76: and that was said before", volume: volumeOf("a", "1Gi", to("c", "u"), made, in(corev1.VolumeFailed)), claim: elsewhere},
		{name: "case 77: and it was made for the claim, to be kept", volume: volumeOf("a", "1Gi", to("c", "u"), made, policy(retain)), claim: elsewhere, writes: "volume", check: pointsAt("c", "")},
		{name: "case 79: it was wrongly called Released", volume: volumeOf("a", "1Gi", to("c", "u"), in(released)), claim: u, writes: status, phase: bound},
		{name: "case 162: it is being destroyed while its claim is made anew", volume: volumeOf("a", "1Gi", to("c", "old"), in(released)), claim: unbound, live: unbound, check: pointsAt("c", "old")},
		{name: "case 155: Released and kept, nothing is asked", volume: volumeOf("a", "1Gi", to("c", "gone"), in(released), policy(retain)), live: unbound},
		{name: "case 155: not where a new claim has the name either", volume: volumeOf("a", "1Gi", to("c", "gone"), in(released)), claim: unbound, live: u},
	})
}

const boundClaim = corev1.ClaimBound

func TestTheAPIServerIsAskedOnceBeforeAVolumeIsReleased(t *testing.T) {
	for phase, want := range map[corev1.PersistentVolumePhase]bool{
		corev1.VolumePending: true, corev1.VolumeAvailable: true, corev1.VolumeBound: true,
		corev1.VolumeReleased: false, corev1.VolumeFailed: false,
	} {
		p := planVolume(&VolumeView{Volume: volumeOf("a", "1Gi", to("c", "u"), in(phase))})
		if p.NeedsLiveRead != want || len(p.Actions) > 0 {
			t.Errorf("a %s volume without its claim: asks %t, does %v; want to ask: %t", phase, p.NeedsLiveRead, p.Actions, want)
		}
	}
}

func TestFinalizersAndMigrationOfVolumesAreKeptUp(t *testing.T) {
	const inTree, external = volume.FinalizerInTree, volume.FinalizerExternal
	having := func(finalizers ...string) volumeWith {
		return func(v *corev1.PersistentVolume) { v.Finalizers = finalizers }
	}
	has := func(finalizers ...string) func(*corev1.PersistentVolume) string {
		return func(v *corev1.PersistentVolume) string {
			if !slices.Equal(v.Finalizers, finalizers) {
				return fmt.Sprintf("finalizers are %v, want %v", v.Finalizers, finalizers)
			}
			return ""
		}
	}
	moved := func(driver string) func(*corev1.PersistentVolume) string {
		return func(v *corev1.PersistentVolume) string {
			if got := v.Annotations[volume.AnnMigratedTo]; got != driver {
				return fmt.Sprintf("migrated to %q, want %q", got, driver)
			}
			return ""
		}
	}
	madeBy := func(name string) volumeWith { return marked(volume.AnnProvisionedBy + "=" + name) }
	retain, recycle := policy(corev1.PersistentVolumeReclaimRetain), policy(corev1.PersistentVolumeReclaimRecycle)
	runVolumeCases(t, []volumeCase{
		{name: "case 140: made by hand", volume: volumeOf("a", "1Gi", having(inTree, external, "x")), check: has(inTree, external, "x")},
		{name: "case 141: made by a driver", volume: volumeOf("a", "1Gi", madeBy("p.example"), having(inTree, external)), check: has(inTree, external)},
		{name: "case 141: made inside Kubernetes", volume: volumeOf("a", "1Gi", madeBy("kubernetes.io/host-path"), having("x", external)), writes: "volume", check: has("x", inTree)},
		{name: "case 141: as it should be", volume: volumeOf("a", "1Gi", madeBy("kubernetes.io/host-path"), having("x", inTree)), check: has("x", inTree)},
		{name: "case 141: to be kept", volume: volumeOf("a", "1Gi", madeBy("kubernetes.io/host-path"), having(inTree, "x"), retain), writes: "volume", check: has("x")},
		{name: "case 141: to be recycled", volume: volumeOf("a", "1Gi", madeBy("kubernetes.io/host-path"), having("x"), recycle), check: has("x")},
		{name: "case 141: one being deleted takes none", volume: volumeOf("a", "1Gi", madeBy("kubernetes.io/host-path"), having("x"), deleting), check: has("x")},
		{name: "case 142: a driver has taken over", volume: volumeOf("a", "1Gi", madeBy("kubernetes.io/aws-ebs"), having(inTree, external)), writes: "volume",
			check: func(v *corev1.PersistentVolume) string { return has(external)(v) + moved("ebs.csi.aws.com")(v) }},
		{name: "case 142: no driver has", volume: volumeOf("a", "1Gi", madeBy("p.example"), marked(volume.AnnMigratedTo+"=old.example")), writes: "volume", check: moved("")},
		{name: "case 142: without annotations nothing is done", volume: volumeOf("a", "1Gi"), check: unmarked},
		{name: "case 142: it goes with the other writes", volume: volumeOf("a", "1Gi", madeBy("kubernetes.io/aws-ebs"), to("c", "u"), in(corev1.VolumeBound)), writes: "volume,volume/status", phase: corev1.VolumeReleased},
	})
}
