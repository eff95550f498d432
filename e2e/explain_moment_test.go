//go:build e2e

package e2e

import (
	"os"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// soonDone is the answer's text for work that a running controller does within moments.
const soonDone = "which starts within moments"

// atOnce asks right after a change. The text holds for a few seconds; after that the answer is that
// the controller does not respond.
func (m *muted) atOnce(c silence) {
	m.t.Helper()
	if c.by == "" || os.Getenv(c.by) != "kubernetes" {
		m.explains(c.kind, c.name, c.want...)
	}
}

// leads writes the lease of Tarn's stopped controller, as a holder that renewed it at the given
// time would. The holder does not release it.
func (m *muted) leads(holder string, renewed time.Time) {
	m.t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "tarn-system", Name: "tarn-controller"}}
	err := suite.live.Get(m.ctx, client.ObjectKeyFromObject(lease), lease)
	if client.IgnoreNotFound(err) != nil {
		m.t.Fatal(err)
	}
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: ptr.To(metav1.NewMicroTime(renewed)), LeaseDurationSeconds: ptr.To[int32](60), LeaseTransitions: lease.Spec.LeaseTransitions}
	if err != nil {
		m.create(lease)
	} else if err := suite.live.Update(m.ctx, lease); err != nil {
		m.t.Fatal(err)
	}
}

// byDeployment asks for the command that restarts the work of binder and protection. The command
// names the Deployment of Tarn's controller; here that is one whose pods fit no node.
func (m *muted) byDeployment() {
	m.t.Helper()
	if inPods() { // that Deployment leaves both jobs to Kubernetes
		return
	}
	labels := map[string]string{"e2e": m.name}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: tarnSystem, Name: controller}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			SchedulerName: "nobody", Containers: []corev1.Container{{Name: "tarn", Image: "none", Args: []string{"controller", "--controllers=*"}}},
		}},
	}}
	m.create(d)
	remove := func() {
		m.kubectl("-n", tarnSystem, "delete", "deployment", controller, "--cascade=foreground", "--ignore-not-found")
	}
	m.t.Cleanup(remove)
	asks := func(by, claim, because, want string) {
		m.t.Helper()
		if os.Getenv(by) == "kubernetes" {
			return
		}
		if e := m.explainsClaim(claim, because); e.command() != want {
			m.t.Errorf("claim %s: the command is %q, want %q", claim, e.command(), want)
		}
	}
	const bind, protect = "fits, but no binder responds", "no pod uses it, but its protection controller does not remove the finalizer"
	scale, restart := "kubectl -n tarn-system scale deployment tarn-controller --replicas=2", "kubectl -n tarn-system rollout restart deployment tarn-controller"
	asks("BINDER", "fits", bind, scale)
	m.does(scale)
	asks("BINDER", "fits", bind, restart)
	asks("PROTECTION", "unused", protect, restart)
	m.does(restart)
	without := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/template/spec/containers/0/args/1","value":"--controllers=*,-bind,-protect"}]`))
	if err := suite.live.Patch(m.ctx, d, without); err != nil {
		m.t.Fatal(err)
	}
	asks("BINDER", "fits", bind, "") // for Kubernetes' own, the administrator must start it
	remove()
}

// leader is the holder of the lease where the case writes it.
const leader = "e2e"

// unlead restores the lease. The cluster's only controller needs none, and the last of those that
// are pods has released it. A restarted controller keeps it.
func (m *muted) unlead() {
	m.t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "tarn-system", Name: "tarn-controller"}}
	if !inPods() {
		m.deleteIfThere(lease)
		return
	}
	if err := suite.live.Get(m.ctx, client.ObjectKeyFromObject(lease), lease); err != nil {
		m.t.Fatal(err)
	}
	if ptr.Deref(lease.Spec.HolderIdentity, "") == leader {
		m.leads("", time.Now())
	}
}

// passesSoon asks for states that a running leader would end within moments. The states last,
// because that controller does not run. The case asks again after a while.
func (m *muted) passesSoon() {
	m.t.Helper()
	m.t.Cleanup(m.unlead)
	m.leads(leader, time.Now())
	claim := func(name, by string, want ...string) silence {
		return silence{kind: "claim", name: m.name + "/" + name, want: want, by: by}
	}
	m.claimWith("fits", ofClass(m.name+"-by-hand"))
	m.atOnce(claim("fits", "BINDER", "is Pending: it is being bound: volume ", " fits"))
	m.delete(m.claims["unused"])
	m.atOnce(claim("unused", "PROTECTION", "is Terminating: no pod uses it, so it is deleted within moments"))
	dropped := m.byHand("dropped")
	m.delete(dropped)
	m.atOnce(silence{kind: "volume", name: dropped.Name, want: []string{"is Terminating: no claim is bound to it, so it is deleted within moments"}, by: "PROTECTION"})
	m.claimWith("called", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": m.name} // as a binder does
	})
	m.atOnce(claim("called", "", "is Pending: PavProvisioner "+m.name+" has to make its volume, "+soonDone))
	m.claimWith("folder", func(claim *corev1.PersistentVolumeClaim) {
		m.ofFolder(claim)
		claim.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": hostPath} // as a binder does
	})
	m.atOnce(claim("folder", "", "is Pending: provisioner "+hostPath+" has to make its volume, "+soonDone))
	m.claimWith("judged-by-nobody", ofClass(m.another("-unjudged", fields{"volumeCreation": asRequested, "volumeStaging": greeting})))
	m.atOnce(claim("judged-by-nobody", "", "is Pending: PavProvisioner "+m.name+"-unjudged has to be validated, "+soonDone))
	m.consumer("staged", "staged", stays)
	m.atOnce(silence{kind: "pod", name: m.name + "/staged", want: []string{"is not staged on node ", ", its pod has to be started, " + soonDone}})
	m.deploys("late", m.name, stays, "--wait=false")
	m.atOnce(silence{kind: "app", name: m.name + "/late", want: []string{"is not judged: it has to be reconciled, " + soonDone}})
	fresh := m.freshPool()
	m.atOnce(silence{kind: "pvset", name: fresh.Name, want: []string{"is not judged: it has to be reconciled, " + soonDone}})
	m.delete(m.claims["released"])
	m.unhold(m.claims["released"])
	if os.Getenv("BINDER") != "kubernetes" { // else that does it
		m.patch(&corev1.PersistentVolume{ObjectMeta: named(m.claims["released"].Spec.VolumeName)}, fields{"status": fields{"phase": corev1.VolumeReleased}}, true)
	}
	m.atOnce(silence{kind: "volume", name: m.claims["released"].Spec.VolumeName, want: []string{"is Released: claim " + m.name + "/released is gone, and its storage has to be destroyed, " + soonDone}})
	m.unlead()
}

// freshPool makes an empty pool beside the case's own.
func (m *muted) freshPool() *tarn.PersistentVolumeSet {
	m.t.Helper()
	set := &tarn.PersistentVolumeSet{ObjectMeta: named(m.name + "-fresh"), Spec: tarn.PersistentVolumeSetSpec{
		MaximumReplicas: 1, Selector: map[string]string{poolOf: m.name + "-fresh"}, Template: *m.set.Spec.Template.DeepCopy(),
	}}
	set.Spec.Template.Metadata.Labels = set.Spec.Selector
	m.create(set)
	m.t.Cleanup(func() { m.deleteIfThere(set) })
	return set
}

// byLease asks for the answers that depend on the lease alone, for a claim that stays unserved.
func (m *muted) byLease() {
	m.t.Helper()
	const name, judged = "/judged-by-nobody", "-unjudged has to be validated, "
	e := m.asReader("no-leases", "leases").explains("claim", m.name+name, judged+"but has not started")
	if !strings.HasSuffix(e.Verdict, "but has not started") {
		m.t.Errorf("who may not read the lease is told %q", e.Verdict)
	}
	for state, c := range map[string]struct {
		holder  string
		renewed time.Time
		want    string
	}{
		"held":     {leader, time.Now(), "and has not started although tarn controller runs"},
		"expired":  {leader, time.Now().Add(-time.Hour), "but no tarn controller runs"},
		"released": {"", time.Now(), "but no tarn controller runs"},
	} {
		m.leads(c.holder, c.renewed)
		e := m.explains("claim", m.name+name, judged+c.want)
		if last := e.Links[len(e.Links)-1]; last.Object.Kind != "Lease" || last.State != state {
			m.t.Errorf("the chain ends with %+v, want a lease that is %s", last, state)
		}
		if state == "released" && m.claims["kept"] != nil { // no controller continues what another has begun
			m.explainsClaim("promised", "is Pending: its volume is being made by "+hostPath+", "+c.want)
			m.explainsClaim("undone", "is Terminating: what may have been made for it has to be undone, "+c.want)
		}
	}
	m.unlead()
}
