package bind

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"tarn.dev/tarn/internal/volume"
)

func modelessClass(c *storagev1.StorageClass) { c.VolumeBindingMode = nil }

func TestAClaimWithoutAClassIsGivenTheDefault(t *testing.T) {
	given := func(class string) func(*done) string {
		return func(d *done) string {
			if got := ptr.Deref(d.claim.Spec.StorageClassName, "none"); got != class {
				return fmt.Sprintf("the claim has class %q, want %q", got, class)
			}
			return ""
		}
	}
	old, young := classOf("old", isDefault(0)), classOf("young", isDefault(time.Hour))
	runClaimCases(t, []claimCase{
		{name: "case 94: there is none", claim: claimOf("1Gi"), others: []any{classOf("x")}, events: "Normal FailedBinding", check: given("none")},
		{name: "case 94: there is one", claim: claimOf("1Gi"), others: []any{old}, writes: "claim", check: given("old")},
		{name: "case 95: of two the newer", claim: claimOf("1Gi"), others: []any{young, old}, writes: "claim", check: given("young")},
		{name: "case 95: of two as old the first by name", claim: claimOf("1Gi"), others: []any{classOf("b", isDefault(0)), classOf("a", isDefault(0))}, writes: "claim", check: given("a")},
		{name: "case 96: one with an empty class", claim: claimOf("1Gi", ofClass("")), others: []any{old}, events: "Normal FailedBinding", writes: "none", check: given("")},
		{name: "case 96: one with an empty beta annotation", claim: claimOf("1Gi", noted(corev1.BetaStorageClassAnnotation+"=")), others: []any{old}, events: "Normal FailedBinding", writes: "none", check: given("none")},
		{name: "case 96: one that names a volume", claim: claimOf("1Gi", names("a")), others: []any{old}, check: given("none")},
		{name: "case 96: one that is being deleted", claim: claimOf("1Gi", terminating), others: []any{old}, writes: "none", check: given("none")},
		{name: "case 97: a volume without a class goes first", claim: claimOf("1Gi"), others: []any{old, volumeOf("a", "1Gi")}, want: "a", check: given("none")},
		{name: "case 99: a default is marked by true alone", claim: claimOf("1Gi"), others: []any{classOf("x", func(c *storagev1.StorageClass) {
			c.Annotations = map[string]string{volume.AnnDefaultClass: "True", volume.AnnBetaDefaultClass: "yes"}
		})}, events: "Normal FailedBinding", check: given("none")},
	})
}

func TestAClaimIsGivenToTheProvisionerOfItsClass(t *testing.T) {
	const provisioning, failed = "Normal ExternalProvisioning", "Warning ProvisioningFailed"
	calls := func(driver, migrated string) func(*done) string {
		return func(d *done) string {
			a := d.claim.Annotations
			if a[volume.AnnProvisioner] != driver || a[volume.AnnBetaProvisioner] != driver || a[volume.AnnMigratedTo] != migrated {
				return fmt.Sprintf("the claim's annotations are %v, want provisioner %q, migrated to %q", a, driver, migrated)
			}
			return emptied(d)
		}
	}
	of := func(with ...claimWith) *corev1.PersistentVolumeClaim {
		return claimOf("1Gi", append([]claimWith{ofClass("x")}, with...)...)
	}
	called := noted(volume.AnnProvisioner+"=p.example", volume.AnnBetaProvisioner+"=p.example")
	moved := classOf("x", by("kubernetes.io/aws-ebs"))
	runClaimCases(t, []claimCase{
		{name: "case 100: by both annotations in one write", claim: of(), others: []any{classOf("x")}, events: provisioning, writes: "claim/status", check: calls("p.example", "")},
		{name: "case 101: not again", claim: of(called), others: []any{classOf("x")}, events: provisioning, writes: "none"},
		{name: "case 102: not where a volume fits", claim: of(), others: []any{classOf("x"), volumeOf("a", "1Gi", class("x"))}, want: "a", writes: fourWrites, check: func(d *done) string {
			if _, ok := d.claim.Annotations[volume.AnnProvisioner]; ok {
				return "the claim was given to a provisioner"
			}
			return ""
		}},
		{name: "case 103: to the driver that took over", claim: of(), others: []any{moved}, events: provisioning, writes: "claim/status", check: calls("ebs.csi.aws.com", "ebs.csi.aws.com")},
		{name: "case 103: and that stays so", claim: of(noted(volume.AnnProvisioner+"=ebs.csi.aws.com", volume.AnnBetaProvisioner+"=ebs.csi.aws.com", volume.AnnMigratedTo+"=ebs.csi.aws.com")),
			others: []any{moved}, events: provisioning, writes: "none"},
		{name: "case 104: not without the class", claim: of(), events: failed, writes: "none"},
		{name: "case 104: not for an empty class", claim: claimOf("1Gi", ofClass("")), events: "Normal FailedBinding", writes: "none"},
		{name: "case 105: not to what nobody serves", claim: of(), others: []any{classOf("x", by("kubernetes.io/glusterfs"))}, events: failed, writes: "none"},
		{name: "case 105: nor to the provisioner that makes none", claim: of(), others: []any{classOf("x", by("kubernetes.io/no-provisioner"))}, events: failed, writes: "none"},
		{name: "case 113: what was made for it is bound with three writes", claim: of(called), others: []any{classOf("x"),
			volumeOf("pvc-u", "1Gi", class("x"), to("c", "u"), in(corev1.VolumePending), marked(volume.AnnProvisionedBy+"=p.example"))},
			want: "pvc-u", writes: "volume/status,claim,claim/status", check: marks(false)},
		{name: "case 115: of two made for it the first", claim: of(called), others: []any{classOf("x"), volumeOf("pvc-v", "1Gi", class("x"), to("c", "u")), volumeOf("pvc-u", "1Gi", class("x"), to("c", "u"))}, want: "pvc-u"},
		{name: "section 8: a claim that called itself bound is put right", claim: of(inState(corev1.ClaimBound)), others: []any{classOf("x")}, events: provisioning, writes: "claim/status", check: calls("p.example", "")},
		{name: "case 142: a claim's migration is kept up", claim: of(noted(volume.AnnBetaProvisioner + "=kubernetes.io/gce-pd")), others: []any{moved}, events: provisioning, writes: "claim", check: calls("ebs.csi.aws.com", "ebs.csi.aws.com")},
		{name: "case 142: that of one that called itself bound, too", claim: of(inState(corev1.ClaimBound), noted(volume.AnnBetaProvisioner+"=kubernetes.io/gce-pd")),
			others: []any{moved}, events: provisioning, writes: "claim,claim/status", check: calls("ebs.csi.aws.com", "ebs.csi.aws.com")},
		{name: "case 142: and taken off", claim: claimOf("1Gi", completed("a", corev1.ClaimBound), called, noted(volume.AnnMigratedTo+"=old.example")),
			others: []any{volumeOf("a", "1Gi", to("c", "u"), in(corev1.VolumeBound))}, want: "a", writes: "claim"},
	})
}

func TestNothingIsDoneWhereProvisioningIsOff(t *testing.T) {
	b := booksOf(claimOf("1Gi", ofClass("x")), classOf("x"))
	b.noProvisioning = true
	if d, err := syncClaim(t, b); err != nil || len(d.events)+len(d.writes) > 0 {
		t.Errorf("case 112: posted %v, wrote %v, problem %v, want nothing at all", d.events, d.writes, err)
	}
}

func TestAWaitingClaimIsCalledOutOnce(t *testing.T) {
	b := booksOf(claimOf("1Gi", ofClass("x")), classOf("x"))
	writes := 0
	for range 100 {
		d, err := syncClaim(t, b)
		if err != nil {
			t.Fatal(err)
		}
		writes += len(d.writes)
		if len(d.writes) > 0 {
			d.claim.ResourceVersion = "2"
			b.putWritten(d.claim, nil)
		}
	}
	if writes != 1 {
		t.Errorf("case 116: 100 looks made %d writes, want 1", writes)
	}
}
