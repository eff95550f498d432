package bind

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tarn.dev/tarn/internal/volume"
)

func TestAVolumeThatPointsAtAClaimIsIts(t *testing.T) {
	const none = "Normal FailedBinding"
	keepsNode := func(d *done) string {
		if d.claim.Annotations[volume.AnnSelectedNode] != "n" {
			return "the selected node is gone"
		}
		return ""
	}
	runClaimCases(t, []claimCase{
		{name: "case 33: by name, before a better one", claim: claimOf("1Gi"), others: []any{volumeOf("a", "10Gi", to("c", "")), volumeOf("b", "1Gi")}, want: "a", writes: fourWrites, check: marks(false)},
		{name: "case 34: by uid, with one write less", claim: claimOf("1Gi"), others: []any{volumeOf("a", "10Gi", to("c", "u")), volumeOf("b", "1Gi")}, want: "a",
			writes: "volume/status,claim,claim/status", check: marks(false)},
		{name: "case 35: another of that name", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", to("c", "other"))}, events: none, writes: "none"},
		{name: "case 36: what is kept for another is passed over", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", to("bar", "")), volumeOf("b", "2Gi")}, want: "b"},
		{name: "case 37: too small", claim: claimOf("2Gi"), others: []any{volumeOf("a", "1Gi", to("c", "")), volumeOf("b", "5Gi")}, want: "b"},
		{name: "case 37: without the access mode", claim: claimOf("1Gi", asking(rwx)), others: []any{volumeOf("a", "1Gi", to("c", "")), volumeOf("b", "5Gi", access(rwx))}, want: "b"},
		{name: "case 37: of another mode", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", to("c", ""), block), volumeOf("b", "5Gi")}, want: "b"},
		{name: "case 38: no pod is waited for", claim: claimOf("1Gi", ofClass("w")), others: []any{classOf("w", waits), volumeOf("a", "1Gi", class("w"), to("c", ""))}, want: "a"},
		{name: "case 39: the selected node stays", claim: claimOf("1Gi", ofClass("w"), noted(volume.AnnSelectedNode+"=n")),
			others: []any{classOf("w", waits), volumeOf("a", "1Gi", class("w"), to("c", "u"))}, want: "a", check: keepsNode},
		{name: "case 40: of another class", claim: claimOf("1Gi", ofClass("gold")), others: []any{volumeOf("a", "1Gi", to("c", ""))}, want: "a"},
		{name: "case 40: with other labels", claim: claimOf("1Gi", selecting(map[string]string{"k": "v"})), others: []any{volumeOf("a", "1Gi", to("c", ""))}, want: "a"},
		{name: "case 41: a block volume is of no use", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", block, to("c", "u"))}, events: none, writes: "none"},
		{name: "case 44: killed after the volume was written", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", to("c", "u"), marked(bbc))}, want: "a",
			writes: "volume/status,claim,claim/status", check: marks(true)},
		{name: "case 44: killed after the volume's status was", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", to("c", "u"), in(corev1.VolumeBound))}, want: "a", writes: "claim,claim/status"},
		{name: "case 44: killed after the claim was", claim: claimOf("1Gi", completed("a", corev1.ClaimPending)), others: []any{volumeOf("a", "1Gi", to("c", "u"), in(corev1.VolumeBound))},
			want: "a", writes: "claim/status"},
		{name: "case 45: a released volume whose uid was taken off", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", to("c", ""), in(corev1.VolumeReleased))}, want: "a"},
		{name: "by uid goes before by name, whatever the sizes", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", to("c", "")), volumeOf("b", "9Gi", to("c", "u"))}, want: "b"},
		{name: "across access modes too", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi"), volumeOf("b", "9Gi", access(rwo, rwx), to("c", ""))}, want: "b"},
		{name: "not one that is being deleted", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", to("c", "u"), deleting)}, events: none, writes: "none"},
	})
}

func TestAClaimWithADataSourceGetsNoFreeVolume(t *testing.T) {
	snapshot := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "VolumeSnapshot", Name: "from"}
	}
	populated := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "Backup", Name: "from"}
	}
	spare := volumeOf("b", "1Gi")
	runClaimCases(t, []claimCase{
		{name: "with dataSource", claim: claimOf("1Gi", snapshot), others: []any{spare}, events: "Normal FailedBinding", writes: "none"},
		{name: "with dataSourceRef", claim: claimOf("1Gi", populated), others: []any{spare}, events: "Normal FailedBinding", writes: "none"},
		{name: "but one that points at it by name", claim: claimOf("1Gi", populated), others: []any{spare, volumeOf("a", "2Gi", to("c", ""))}, want: "a"},
		{name: "but one that points at it by uid", claim: claimOf("1Gi", snapshot), others: []any{spare, volumeOf("a", "2Gi", to("c", "u"))}, want: "a"},
		{name: "but the one that it names", claim: claimOf("1Gi", snapshot, names("a")), others: []any{spare, volumeOf("a", "2Gi")}, want: "a"},
	})
	if booksOf().takesAnyVolume(claimOf("1Gi", snapshot)) {
		t.Error("a volume that becomes free is offered to a claim with a data source")
	}
}

func TestAClaimThatNamesAVolumeGetsThatOrNone(t *testing.T) {
	taken, mismatch := "Warning FailedBinding", "Warning VolumeMismatch"
	onlyCompleted := func(d *done) string {
		if d.volume.Annotations[bbc] == "" || d.claim.Annotations[bbc] != "" {
			return fmt.Sprintf("annotations are %v and %v", d.volume.Annotations, d.claim.Annotations)
		}
		return ""
	}
	neither := func(d *done) string {
		if d.volume.Annotations[bbc] != "" || d.claim.Annotations[bbc] != "" {
			return fmt.Sprintf("annotations are %v and %v", d.volume.Annotations, d.claim.Annotations)
		}
		return ""
	}
	named := func(with ...claimWith) *corev1.PersistentVolumeClaim {
		return claimOf("1Gi", append([]claimWith{names("a")}, with...)...)
	}
	other := volumeOf("a", "1Gi", to("other", "x"), in(corev1.VolumeBound))
	runClaimCases(t, []claimCase{
		{name: "case 47: there is none of that name yet", claim: named(), others: []any{volumeOf("b", "1Gi")}, writes: "none"},
		{name: "case 47: and the claim called itself bound", claim: named(inState(corev1.ClaimBound)), writes: "claim/status", check: emptied},
		{name: "case 48: one that is nobody's and fits", claim: named(), others: []any{volumeOf("a", "1Gi")}, want: "a", writes: threeWrites, check: onlyCompleted},
		{name: "case 49: one that points at it by name", claim: named(), others: []any{volumeOf("a", "1Gi", to("c", ""))}, want: "a", writes: threeWrites, check: neither},
		{name: "case 49: one that points at it by uid", claim: named(), others: []any{volumeOf("a", "1Gi", to("c", "u"))}, want: "a", writes: "volume/status,claim/status", check: neither},
		{name: "case 50: not the better one", claim: named(), others: []any{volumeOf("a", "10Gi"), volumeOf("b", "1Gi")}, want: "a"},
		{name: "case 51: another's", claim: named(), others: []any{other}, events: taken, writes: "none"},
		{name: "case 52: another's, though a binder has named it", claim: named(noted(bbc)), others: []any{other}, events: taken, writes: "none", problem: "belongs to another claim"},
		{name: "case 53: labels do not matter", claim: named(selecting(map[string]string{"k": "v"})), others: []any{volumeOf("a", "1Gi")}, want: "a"},
		{name: "case 54: too small", claim: claimOf("2Gi", names("a")), others: []any{volumeOf("a", "1Gi")}, events: mismatch, writes: "none"},
		{name: "case 54: of another class", claim: named(ofClass("gold")), others: []any{volumeOf("a", "1Gi")}, events: mismatch, writes: "none"},
		{name: "case 54: of another attributes class", claim: named(attributes("gold")), others: []any{volumeOf("a", "1Gi")}, events: mismatch, writes: "none"},
		{name: "case 54: of another mode", claim: named(blockClaim), others: []any{volumeOf("a", "1Gi")}, events: mismatch, writes: "none"},
		{name: "case 54: without an access mode", claim: named(asking(rwx)), others: []any{volumeOf("a", "1Gi")}, events: mismatch, writes: "none"},
		{name: "case 54: being deleted, as case 25", claim: named(), others: []any{volumeOf("a", "1Gi", deleting)}, events: mismatch, writes: "none"},
		{name: "case 54: and the claim called itself bound", claim: claimOf("2Gi", names("a"), inState(corev1.ClaimBound)), others: []any{volumeOf("a", "1Gi")}, events: mismatch,
			writes: "claim/status", check: emptied},
		{name: "case 54: the same attributes class", claim: named(attributes("gold")), others: []any{volumeOf("a", "1Gi", tuned("gold"))}, want: "a"},
		{name: "case 55: too small, but it points at the claim", claim: claimOf("2Gi", names("a")), others: []any{volumeOf("a", "1Gi", to("c", ""))}, want: "a"},
		{name: "case 56: no pod is waited for", claim: named(ofClass("w")), others: []any{classOf("w", waits), volumeOf("a", "1Gi", class("w"))}, want: "a"},
		{name: "not begun with for a claim that is being deleted", claim: named(terminating), others: []any{volumeOf("a", "1Gi")}, writes: "none"},
	})
}

func TestAClaimThatWasBoundIsKeptBoundOrIsLost(t *testing.T) {
	lost, misbound := "Warning ClaimLost", "Warning ClaimMisbound"
	isLost := func(d *done) string {
		if s := d.claim.Status; s.Phase != corev1.ClaimLost || s.Capacity != nil || s.AccessModes != nil {
			return fmt.Sprintf("the claim's status is %+v, want an empty Lost one", s)
		}
		return ""
	}
	was := func(name string, with ...claimWith) *corev1.PersistentVolumeClaim {
		return claimOf("1Gi", append([]claimWith{completed(name, corev1.ClaimBound)}, with...)...)
	}
	bound := volumeOf("a", "1Gi", to("c", "u"), in(corev1.VolumeBound))
	runClaimCases(t, []claimCase{
		{name: "case 58: it has lost the name", claim: was(""), events: lost, writes: "claim/status", check: isLost},
		{name: "case 58: and says so once", claim: claimOf("1Gi", completed("", corev1.ClaimLost)), writes: "none"},
		{name: "case 59: its volume is gone", claim: was("a"), events: lost, writes: "claim/status", check: isLost},
		{name: "case 60: somebody took its volume's claimRef off", claim: was("a"), others: []any{volumeOf("a", "1Gi", in(corev1.VolumeBound))}, want: "a", writes: "volume",
			check: func(d *done) string { return marks(true)(d) }},
		{name: "case 60: whatever its labels", claim: was("a", selecting(map[string]string{"k": "v"})), others: []any{volumeOf("a", "1Gi")}, want: "a", writes: "volume,volume/status"},
		{name: "case 61: its volume is called Available", claim: was("a"), others: []any{volumeOf("a", "1Gi", to("c", "u"))}, want: "a", writes: "volume/status"},
		{name: "case 62: its volume points at another of its name", claim: was("a"), others: []any{volumeOf("a", "1Gi", to("c", "other"))}, events: misbound, writes: "claim/status", check: isLost},
		{name: "case 62: its volume points at its name alone", claim: was("a"), others: []any{volumeOf("a", "1Gi", to("c", ""))}, events: misbound, writes: "claim/status", check: isLost},
		{name: "case 62: its volume points at another", claim: was("a"), others: []any{volumeOf("a", "1Gi", to("other", "x"))}, events: misbound, writes: "claim/status", check: isLost},
		{name: "case 64: a volume of that name is there again", claim: claimOf("1Gi", completed("a", corev1.ClaimLost)), others: []any{volumeOf("a", "1Gi")}, want: "a",
			writes: "volume,volume/status,claim/status", check: says("1Gi")},
		{name: "case 64: and points at the claim", claim: claimOf("1Gi", completed("a", corev1.ClaimLost)), others: []any{volumeOf("a", "1Gi", to("c", "u"))}, want: "a", writes: "volume/status,claim/status"},
		{name: "case 66: its class is never written", claim: was("a"), others: []any{classOf("d", isDefault(0))}, events: lost, writes: "claim/status", check: isLost},
		{name: "case 155: a pair that is bound takes no write", claim: was("a"), others: []any{bound}, writes: "none"},
		{name: "a pair that is bound takes none while it is deleted either", claim: was("a", terminating), others: []any{bound}, writes: "none"},
	})
}

func TestAClassMayWaitForAPod(t *testing.T) {
	const first, scheduled, provisioning = "Normal WaitForFirstConsumer", "Normal WaitForPodScheduled", "Normal ExternalProvisioning"
	placed := noted(volume.AnnSelectedNode + "=n")
	wait := func(with ...claimWith) *corev1.PersistentVolumeClaim {
		return claimOf("1Gi", append([]claimWith{ofClass("w")}, with...)...)
	}
	runClaimCases(t, []claimCase{
		{name: "case 83: a free volume is left alone", claim: wait(), others: []any{classOf("w", waits), volumeOf("a", "1Gi", class("w"))}, events: first, writes: "none"},
		{name: "case 85: the scheduler has chosen a volume", claim: wait(), others: []any{classOf("w", waits), volumeOf("a", "1Gi", class("w"), to("c", "u"), marked(bbc))},
			want: "a", writes: "volume/status,claim,claim/status", check: marks(true)},
		{name: "case 86: the scheduler has chosen a node", claim: wait(placed), others: []any{classOf("w", waits), volumeOf("a", "1Gi", class("w"))}, events: provisioning, writes: "claim/status"},
		{name: "case 87: the provisioner gave the node back", claim: wait(noted(volume.AnnProvisioner+"=p.example", volume.AnnBetaProvisioner+"=p.example")),
			others: []any{classOf("w", waits)}, events: first, writes: "none"},
		{name: "case 88: a class that does not say when", claim: wait(), others: []any{classOf("w", modelessClass), volumeOf("a", "1Gi", class("w"))}, problem: "volumeBindingMode", writes: "none"},
		{name: "case 88: a class that does not exist binds at once", claim: wait(), others: []any{volumeOf("a", "1Gi", class("w"))}, want: "a"},
		{name: "case 91: nobody makes volumes of the class", claim: wait(), others: []any{classOf("w", waits, by("kubernetes.io/no-provisioner"))}, events: first, writes: "none"},
		{name: "case 93: what the scheduler had chosen is nobody's again, and is its to choose anew", claim: wait(), others: []any{classOf("w", waits), volumeOf("a", "1Gi", class("w"), marked(bbc))},
			events: first, writes: "none"},
		{name: "case 93: and what it chooses anew is completed", claim: wait(), others: []any{classOf("w", waits), volumeOf("a", "1Gi", class("w")), volumeOf("b", "1Gi", class("w"), to("c", "u"), marked(bbc))},
			want: "b", writes: "volume/status,claim,claim/status", check: marks(true)},
		{name: "case 93: the uid alone was taken off what it had chosen, which is the claim's still", claim: wait(), others: []any{classOf("w", waits), volumeOf("a", "1Gi", class("w"), to("c", ""), marked(bbc))},
			want: "a", writes: fourWrites, check: marks(true)},
	})
	for _, c := range []struct {
		pods     []string
		wantNote string
	}{
		{[]string{"one"}, "waiting for pod one to be scheduled"},
		{[]string{"one", "two"}, "waiting for pod one, two to be scheduled"},
	} {
		d, err := syncClaim(t, booksOf(classOf("w", waits), wait()), c.pods...)
		if err != nil || !slices.Equal(d.events, []string{scheduled}) || !slices.Equal(d.notes, []string{c.wantNote}) || len(d.writes) > 0 {
			t.Errorf("case 84: pods %v: wrote %v and posted %v %q, problem %v, want %s %q alone", c.pods, d.writes, d.events, d.notes, err, scheduled, c.wantNote)
		}
	}
}

func TestWhichPodsAClaimWaitsFor(t *testing.T) {
	for name, c := range map[string]struct {
		node  string
		phase corev1.PodPhase
		want  bool
	}{
		"case 84: one without a node":              {phase: corev1.PodPending, want: true},
		"case 84: not one with a node":             {node: "n", phase: corev1.PodPending},
		"case 84: not one that has ended well":     {phase: corev1.PodSucceeded},
		"case 84: not one that has ended in error": {phase: corev1.PodFailed},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: c.node}, Status: corev1.PodStatus{Phase: c.phase}}
		if got := unplaced(pod); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}
