package bind

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	rwo  = corev1.ReadWriteOnce
	rox  = corev1.ReadOnlyMany
	rwx  = corev1.ReadWriteMany
	rwop = corev1.ReadWriteOncePod
)

// claimCase is one reconcile of claim ns/c. want is the volume it is joined to; empty for none.
type claimCase struct {
	name    string
	claim   *corev1.PersistentVolumeClaim
	others  []any
	want    string
	events  string // the Events posted, separated by commas
	writes  string // the writes made, separated by commas; empty: not checked
	problem string // a part of the plan's problem
	check   func(*done) string
}

const (
	fourWrites  = "volume,volume/status,claim,claim/status"
	threeWrites = "volume,volume/status,claim/status" // where the claim names the volume already
)

func (c *claimCase) run(t *testing.T) {
	d, err := syncClaim(t, booksOf(append([]any{c.claim}, c.others...)...))
	if wrong := c.joined(&d); wrong != "" {
		t.Error(wrong)
	}
	if got := strings.Join(d.events, ","); got != c.events {
		t.Errorf("posted %q, want %q", got, c.events)
	}
	if got := strings.Join(d.writes, ","); c.writes != "" && got != strings.TrimPrefix(c.writes, "none") {
		t.Errorf("wrote %q, want %q", got, c.writes)
	}
	if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
		t.Errorf("got problem %v, want one with %q", err, c.problem)
	}
	if c.check != nil {
		if wrong := c.check(&d); wrong != "" {
			t.Error(wrong)
		}
	}
}

func (c *claimCase) joined(d *done) string {
	switch {
	case c.want == "" && d.claim.Spec.VolumeName != c.claim.Spec.VolumeName:
		return fmt.Sprintf("the claim was joined to %q", d.claim.Spec.VolumeName)
	case c.want == "" && d.bound() == "": // it may have named the volume before
		return fmt.Sprintf("the claim was bound to %q", d.volume.Name)
	case c.want == "":
		return ""
	case d.volume != nil && d.volume.Name != c.want:
		return fmt.Sprintf("volume %q was taken, want %q", d.volume.Name, c.want)
	}
	return d.bound()
}

func runClaimCases(t *testing.T, cases []claimCase) {
	for i := range cases {
		t.Run(cases[i].name, cases[i].run)
	}
}

func emptied(d *done) string {
	if s := d.claim.Status; s.Phase != corev1.ClaimPending || s.Capacity != nil || s.AccessModes != nil {
		return fmt.Sprintf("the claim's status is %+v, want an empty Pending one", s)
	}
	return ""
}

// having sets the capacity in a claim's status.
func having(size string) claimWith {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
}

func says(size string) func(*done) string {
	return func(d *done) string {
		if got := d.capacity(); got != size {
			return fmt.Sprintf("the claim is told %s, want %s", got, size)
		}
		return ""
	}
}

// marks checks that the claim, and the volume if volumeToo, have the annotation of a binder that
// joined them.
func marks(volumeToo bool) func(*done) string {
	return func(d *done) string {
		if _, ok := d.volume.Annotations[bbc]; ok != volumeToo {
			return fmt.Sprintf("the volume's %s is there: %t, want %t", bbc, ok, volumeToo)
		}
		if d.claim.Annotations[bbc] == "" || d.claim.Annotations[bc] == "" {
			return fmt.Sprintf("the claim's annotations are %v", d.claim.Annotations)
		}
		return ""
	}
}

func TestAClaimIsMatchedWithTheSmallestVolumeThatFits(t *testing.T) {
	const none = "Normal FailedBinding"
	beta := func(class string) string { return corev1.BetaStorageClassAnnotation + "=" + class }
	runClaimCases(t, []claimCase{
		{name: "case 1: the one volume is taken", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi")}, want: "a", writes: fourWrites,
			check: func(d *done) string { return marks(true)(d) + says("1Gi")(d) }},
		{name: "case 2: too small a volume is none", claim: claimOf("10Gi"), others: []any{volumeOf("a", "1Gi")}, events: none, writes: "none"},
		{name: "case 3: a claim that calls itself bound without a volume is put right", claim: claimOf("10Gi", inState(corev1.ClaimBound)),
			others: []any{volumeOf("a", "1Gi")}, events: none, writes: "claim/status", check: emptied},
		{name: "case 4: of two the smaller", claim: claimOf("1Gi"), others: []any{volumeOf("a", "10Gi"), volumeOf("b", "1Gi")}, want: "b"},
		{name: "case 5: labels that do not match", claim: claimOf("1Gi", selecting(map[string]string{"k": "v"})), others: []any{volumeOf("a", "1Gi")}, events: none},
		{name: "case 5: labels that match", claim: claimOf("1Gi", selecting(map[string]string{"k": "v"})), others: []any{volumeOf("a", "1Gi", labelled("k", "v"))}, want: "a"},
		{name: "case 6: expressions", claim: claimOf("1Gi", selecting(nil,
			metav1.LabelSelectorRequirement{Key: "k", Operator: "In", Values: []string{"x", "y"}},
			metav1.LabelSelectorRequirement{Key: "n", Operator: "NotIn", Values: []string{"bad"}},
			metav1.LabelSelectorRequirement{Key: "e", Operator: "Exists"})),
			others: []any{volumeOf("a", "1Gi", labelled("k", "x")), volumeOf("b", "1Gi", labelled("k", "y"), labelled("n", "bad"), labelled("e", "")),
				volumeOf("d", "2Gi", labelled("k", "y"), labelled("n", "good"), labelled("e", ""))}, want: "d"},
		{name: "case 6: a selector nobody can read is a problem, not a match", claim: claimOf("1Gi", selecting(nil, metav1.LabelSelectorRequirement{Key: "k", Operator: "Like"})),
			others: []any{volumeOf("a", "1Gi")}, problem: "spec.selector"},
		{name: "case 7: volumes that are not Available", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", in(corev1.VolumePending)),
			volumeOf("b", "1Gi", in(corev1.VolumeFailed)), volumeOf("d", "1Gi", in(corev1.VolumeReleased)), volumeOf("e", "1Gi", in(""))}, events: none},
		{name: "case 8: class before size", claim: claimOf("1Gi", ofClass("gold")), others: []any{volumeOf("a", "1Gi"), volumeOf("b", "10Gi", class("gold"))}, want: "b", check: says("10Gi")},
		{name: "case 9: no class takes a volume without one", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", class("gold")), volumeOf("b", "10Gi")}, want: "b"},
		{name: "case 10: another class is no match", claim: claimOf("1Gi", ofClass("gold")), others: []any{volumeOf("a", "1Gi", class("silver")), volumeOf("b", "10Gi", class("gold"))}, want: "b"},
		{name: "case 11: an empty class", claim: claimOf("1Gi", ofClass("")), others: []any{volumeOf("a", "1Gi")}, want: "a"},
		{name: "case 12: a volume's beta annotation counts first", claim: claimOf("1Gi", ofClass("gold")),
			others: []any{volumeOf("a", "1Gi", class("silver"), marked(beta("gold")))}, want: "a"},
		{name: "case 12: a claim's too", claim: claimOf("1Gi", ofClass("silver"), noted(beta("gold"))), others: []any{volumeOf("a", "1Gi", class("gold"))}, want: "a"},
		{name: "case 13: the class need not exist", claim: claimOf("1Gi", ofClass("x")), others: []any{volumeOf("a", "1Gi", class("x"))}, want: "a"},
		{name: "case 14: block with block", claim: claimOf("1Gi", blockClaim), others: []any{volumeOf("a", "1Gi", block)}, want: "a"},
		{name: "case 14: no filesystem for a block claim", claim: claimOf("1Gi", blockClaim), others: []any{volumeOf("a", "1Gi")}, events: none},
		{name: "case 14: no block for a filesystem claim", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", block)}, events: none},
		{name: "case 15: no mode is Filesystem, on the volume", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", modeless)}, want: "a"},
		{name: "case 15: no mode is Filesystem, on the claim", claim: claimOf("1Gi", modelessClaim), others: []any{volumeOf("a", "1Gi")}, want: "a"},
		{name: "case 15: no mode is not Block, on the volume", claim: claimOf("1Gi", blockClaim), others: []any{volumeOf("a", "1Gi", modeless)}, events: none},
		{name: "case 15: no mode is not Block, on the claim", claim: claimOf("1Gi", modelessClaim), others: []any{volumeOf("a", "1Gi", block)}, events: none},
		{name: "case 16: another mode, and the class is missing", claim: claimOf("1Gi", ofClass("x")), others: []any{volumeOf("a", "1Gi", class("x"), block)}, events: "Warning ProvisioningFailed"},
		{name: "case 16: another class, and the claim's is missing", claim: claimOf("1Gi", ofClass("x")), others: []any{volumeOf("a", "1Gi", class("y"))}, events: "Warning ProvisioningFailed"},
		{name: "case 22: 1E takes the exact one", claim: claimOf("1E"), others: []any{volumeOf("a", "2E"), volumeOf("b", "999999T"), volumeOf("d", "1E")}, want: "d"},
		{name: "case 22: 1E with a byte too little", claim: claimOf("1E"), others: []any{volumeOf("a", "999999999999999999")}, events: none},
		{name: "case 22: a size beyond int64 fits exactly", claim: claimOf("800E"), others: []any{volumeOf("a", "900E"), volumeOf("b", "799999P")}, want: "a"},
		{name: "case 22: a size beyond int64 that nothing has", claim: claimOf("950E"), others: []any{volumeOf("a", "900E")}, events: none},
		{name: "case 23: an attributes class", claim: claimOf("1Gi", attributes("silver")),
			others: []any{volumeOf("a", "1Gi"), volumeOf("b", "1Gi", tuned("gold")), volumeOf("d", "9Gi", tuned("silver"))}, want: "d"},
		{name: "case 23: none never takes one", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", tuned("gold"))}, events: none},
		{name: "case 23: empty is none", claim: claimOf("1Gi", attributes("")), others: []any{volumeOf("a", "1Gi")}, want: "a"},
		{name: "case 23: one that no volume has", claim: claimOf("1Gi", attributes("unknown")), others: []any{volumeOf("a", "1Gi", tuned("gold"))}, events: none},
		{name: "case 24: the claim is told its attributes class", claim: claimOf("1Gi", attributes("gold")), others: []any{volumeOf("a", "1Gi", tuned("gold"))}, want: "a",
			check: func(d *done) string {
				if got := ptr.Deref(d.claim.Status.CurrentVolumeAttributesClassName, "none"); got != "gold" {
					return "the claim is told attributes class " + got
				}
				return ""
			}},
		{name: "case 24: and not again when the volume has another", claim: claimOf("1Gi", completed("a", corev1.ClaimBound), attributes("gold")), others: []any{volumeOf("a", "1Gi", tuned("silver"), to("c", "u"), in(corev1.VolumeBound))}, want: "", writes: "none"},
		{name: "a claim that calls itself bound lacks the annotation alone", claim: claimOf("1Gi", names("a"), noted(bbc), inState(corev1.ClaimBound)),
			others: []any{volumeOf("a", "1Gi", to("c", "u"), in(corev1.VolumeBound))}, want: "a", writes: "claim", check: func(d *done) string {
				if d.claim.Annotations[bc] != "yes" {
					return fmt.Sprintf("its annotations are %v, want %s", d.claim.Annotations, bc)
				}
				return ""
			}},
		{name: "case 30: the resizer's lower capacity is left alone", claim: claimOf("1Gi", completed("a", corev1.ClaimBound)), others: []any{volumeOf("a", "5Gi", to("c", "u"), in(corev1.VolumeBound))}, want: "", writes: "none", check: says("1Gi")},
		{name: "case 30: and its higher one", claim: claimOf("1Gi", completed("a", corev1.ClaimBound), having("9Gi")), others: []any{volumeOf("a", "5Gi", to("c", "u"), in(corev1.VolumeBound))}, want: "", writes: "none", check: says("9Gi")},
		{name: "case 30: access modes follow the volume's", claim: claimOf("1Gi", completed("a", corev1.ClaimBound)), others: []any{volumeOf("a", "5Gi", access(rwo, rox), to("c", "u"), in(corev1.VolumeBound))},
			want: "a", writes: "claim/status", check: says("1Gi")},
		{name: "case 30: and the resizer's higher capacity stays then", claim: claimOf("1Gi", completed("a", corev1.ClaimBound), having("9Gi")), others: []any{volumeOf("a", "5Gi", access(rwo, rox), to("c", "u"), in(corev1.VolumeBound))},
			want: "a", writes: "claim/status", check: says("9Gi")},
		{name: "case 25: a volume that is being deleted", claim: claimOf("1Gi"), others: []any{volumeOf("a", "1Gi", deleting)}, events: none},
		{name: "case 29: the capacity before a resize is reported", claim: claimOf("2Gi"), others: []any{volumeOf("a", "2Gi", marked("volume.alpha.kubernetes.io/pre-resize-capacity=1Gi"))}, want: "a", check: says("1Gi")},
		{name: "case 29: one that cannot be read is not", claim: claimOf("2Gi"), others: []any{volumeOf("a", "2Gi", marked("volume.alpha.kubernetes.io/pre-resize-capacity=much"))}, want: "a", check: says("2Gi")},
		{name: "case 32: a volume without a capacity is never matched", claim: claimOf("0"), others: []any{volumeOf("a", "1Gi", sizeless)}, events: none},
		{name: "case 32: nor bound where it is named", claim: claimOf("0", names("a")), others: []any{volumeOf("a", "1Gi", sizeless, to("c", "u"))}, problem: "spec.capacity.storage", writes: "none"},
		{name: "a claim that is being deleted is not begun with", claim: claimOf("1Gi", terminating), others: []any{volumeOf("a", "1Gi")}, writes: "none"},
		{name: "a claim that is being deleted is finished if it was begun with", claim: claimOf("1Gi", terminating), others: []any{volumeOf("a", "1Gi", to("c", "u"))}, want: "a"},
		{name: "a claim that is being deleted does not take what was kept for its name", claim: claimOf("1Gi", terminating), others: []any{volumeOf("a", "1Gi", to("c", ""))}, writes: "none"},
	})
}

func modeless(v *corev1.PersistentVolume)           { v.Spec.VolumeMode = nil }
func modelessClaim(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = nil }
func sizeless(v *corev1.PersistentVolume)           { v.Spec.Capacity = nil }

func TestAccessModesDecideBeforeSize(t *testing.T) {
	three := []any{volumeOf("a", "10G", access(rwo)), volumeOf("b", "10G", access(rwo, rox)), volumeOf("d", "10G", access(rwo, rox, rwx))}
	hundred := make([]any, 0, 100)
	for i := range 100 {
		hundred = append(hundred, volumeOf(fmt.Sprintf("v%d", i+1), fmt.Sprintf("%dG", i+1)))
	}
	sizes := []any{volumeOf("a", "1G", in(corev1.VolumeBound), to("other", "x")), volumeOf("b", "5G"), volumeOf("d", "10G")}
	runClaimCases(t, []claimCase{
		{name: "case 17: one mode takes the volume that has one", claim: claimOf("1G"), others: three, want: "a"},
		{name: "case 17: two modes, in any order", claim: claimOf("1G", asking(rox, rwo)), others: three, want: "b"},
		{name: "case 17: a mode only one has", claim: claimOf("1G", asking(rwx)), others: three, want: "d"},
		{name: "case 18: fewer modes go before less size", claim: claimOf("1G"), others: []any{volumeOf("a", "5G", access(rwo, rwx)), volumeOf("b", "10G")}, want: "b"},
		{name: "case 18: more modes serve where fewer are too small", claim: claimOf("8G"), others: []any{volumeOf("a", "9G", access(rwo, rwx)), volumeOf("b", "5G")}, want: "a"},
		{name: "case 19: a mode that none has", claim: claimOf("1G", asking(rwop)), others: three, events: "Normal FailedBinding"},
		{name: "case 20: one pod's claim takes one pod's volume", claim: claimOf("1G", asking(rwop)), others: []any{volumeOf("a", "1G"), volumeOf("b", "2G", access(rwop))}, want: "b"},
		{name: "case 20: and nobody else's does", claim: claimOf("1G"), others: []any{volumeOf("b", "2G", access(rwop))}, events: "Normal FailedBinding"},
		{name: "case 21: 8G of 1G (bound), 5G and 10G", claim: claimOf("8G"), others: sizes, want: "d"},
		{name: "case 21: 1G skips what is bound", claim: claimOf("1G"), others: sizes, want: "b"},
		{name: "case 26: of two equal ones, one", claim: claimOf("1G"), others: []any{volumeOf("b", "1G"), volumeOf("a", "1G")}, want: "a"},
		{name: "case 28: the exact one of a hundred", claim: claimOf("50G"), others: hundred, want: "v50"},
	})
}
