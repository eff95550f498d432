//go:build integration

package cli

import (
	"context"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/provisioners"
)

func TestAReadyProvisionerIsInstalledWithItsClassAndAcceptedOrItIsSaidWhyNot(t *testing.T) {
	own := testkit.OwnAPIServer(t)
	c, config := testkit.Client(t, own), kubeconfig(t, own)
	does := func(wantStatus int, says string, args ...string) string {
		t.Helper()
		out, said, status := run(t, "", append(args, "--kubeconfig", config)...)
		if status != wantStatus || !strings.Contains(out+said, says) {
			t.Fatalf("%v: exit status %d, want %d and %q:\n%s%s", args, status, wantStatus, says, out, said)
		}
		return out + said
	}
	p, class := &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: "xfs"}}, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "xfs"}}
	t.Cleanup(func() {
		for _, o := range []client.Object{p, class} {
			if err := client.IgnoreNotFound(c.Delete(context.Background(), o)); err != nil {
				t.Error(err)
			}
		}
	})
	does(3, "not accepted yet: no controller has validated it", "provisioner", "install", "xfs", "--timeout", "500ms")
	judge := func(status metav1.ConditionStatus, message string) {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
			t.Fatal(err)
		}
		condition := testkit.Accepted(status, "Tested", message)
		condition.ObservedGeneration = p.Generation
		meta.SetStatusCondition(&p.Status.Conditions, condition)
		if err := c.Status().Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	judge(metav1.ConditionFalse, "its name is taken")
	does(1, "rejected: Tested: its name is taken", "provisioner", "install", "xfs")
	judge(metav1.ConditionTrue, "")
	for range 2 { // again changes nothing
		generation := p.Generation
		does(0, "tarn provisioner show xfs --example", "provisioner", "install", "xfs")
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil || p.Generation != generation {
			t.Errorf("generation %d, %v; want %d", p.Generation, err, generation)
		}
	}
	list := does(0, "INSTALLED", "provisioner", "list")
	if cells := strings.Join(strings.Fields(list), " "); !strings.Contains(cells, "xfs RWO,RWOP yes its node yes xfs") || !strings.Contains(cells, "shared any yes any node no none") {
		t.Errorf("the list says\n%s", list)
	}

	// A class of that name which somebody else has made.
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(class), class); err != nil || class.Provisioner != "xfs" {
		t.Fatalf("class of provisioner %q, %v", class.Provisioner, err)
	}
	if err := c.Delete(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	other := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "xfs"}, Provisioner: "xfs", Parameters: map[string]string{"folder": "/mine"}, VolumeBindingMode: class.VolumeBindingMode}
	if err := c.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	said := does(1, "another parameters: folder=/mine, not none", "provisioner", "install", "shared", "xfs")
	if strings.Contains(said, "applied P") {
		t.Errorf("something was applied all the same:\n%s", said)
	}
}

func TestAProvisionerOfAnEarlierReleaseStaysBesideTheOneThatReplacesIt(t *testing.T) {
	own := testkit.OwnAPIServer(t)
	c, config := testkit.Client(t, own), kubeconfig(t, own)
	old, err := provisioners.Provisioner("xfs")
	if err != nil {
		t.Fatal(err)
	}
	old.SetName("ovh-csi-rbd")
	if err := c.Create(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	before := old.GetResourceVersion()
	xfs := &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: "xfs"}}
	t.Cleanup(func() {
		for _, o := range []client.Object{old, xfs} {
			if err := client.IgnoreNotFound(c.Delete(context.Background(), o)); err != nil {
				t.Error(err)
			}
		}
	})
	out, said, status := run(t, "", "install", "--provisioners=ovh-csi-rbd", "--kubeconfig", config)
	for _, want := range []string{"warning: --provisioners: ovh-csi-rbd is called xfs now", "applied PavProvisioner xfs\n", "kept PavProvisioner ovh-csi-rbd of an earlier release"} {
		if status != 0 || !strings.Contains(out+said, want) {
			t.Errorf("exit status %d, want %q:\n%s%s", status, want, out, said)
		}
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(old), old); err != nil || old.GetResourceVersion() != before {
		t.Errorf("the old one is %v, version %s, want %s unchanged", err, old.GetResourceVersion(), before)
	}
}
