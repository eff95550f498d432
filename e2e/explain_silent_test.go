//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// stops halts one of Tarn's processes, like one that hangs, until the case ends. Where controllers
// are pods, it removes them meanwhile.
func (s *scenario) stops(name string) (goOn func()) {
	s.t.Helper()
	s.needsThisMachine()
	switch {
	case inPods() && name == controller:
		return s.withoutController()
	case inPods():
		return s.pausesAgent()
	}
	c, err := suite.machine.component(name)
	if err != nil || c.PID <= 1 {
		s.t.Fatalf("%s has pid %d: %v", name, c.PID, err)
	}
	if err := syscall.Kill(c.PID, syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	goOn = func() { _ = syscall.Kill(c.PID, syscall.SIGCONT) } // a process that has ended meanwhile does not need it
	s.t.Cleanup(goOn)
	return goOn
}

// runsNone is the answer's text where Tarn's controller is stopped. The cluster's only controller
// needs no lease, so there is none. Where controllers are pods, the last one has released it.
func runsNone() string {
	if inPods() {
		return "but no tarn controller runs"
	}
	return "but has not started; no lease shows whether a tarn controller runs"
}

// silence is the wanted answer for an object while Tarn's controller is stopped.
type silence struct {
	kind, name string
	want       []string
	// by names the controller that does not respond, beside Tarn's own part: binder or protection.
	// Where that job is Kubernetes', there is nothing to explain.
	by string
}

// muted is a case whose controller is to be stopped, with the objects it began before.
type muted struct {
	*scenario
	claims map[string]*corev1.PersistentVolumeClaim
	set    *tarn.PersistentVolumeSet
	// refused is the record of a claim that is rejected repeatedly. It is due when its controller
	// wants to retry.
	refused *tarn.PavVolume
	due     *metav1.Time
}

// beforeSilence makes the objects that must exist when the controller stops. Those that wait for a
// file on the shelf then continue.
func beforeSilence(s *scenario, shelf string) *muted {
	s.t.Helper()
	m := &muted{scenario: s, claims: map[string]*corev1.PersistentVolumeClaim{}}
	s.create(s.provisioner(fields{"volumeCreation": moods("slow) sleep 1d;;", "true", asRequested), "volumeDeletion": script{text: "true"}.section(nil), "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	growing := s.classWith("-growing", s.name, func(class *storagev1.StorageClass) { class.AllowVolumeExpansion = new(true) })
	m.set = s.pool(0, 1)
	s.endsApps()
	s.create(&tarn.App{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "crashes"}, Spec: tarn.AppSpec{Image: "busybox:1.36", Command: []string{"false"}}})
	s.deploys("ends", s.name, stays)
	for _, name := range []string{"data", "unused", "orphaned", "unnamed", "bereft", "nameless", "unseen", "lost"} {
		m.claims[name] = s.naming(name, s.byHand(name).Name)
	}
	m.claims["released"], m.claims["staged"] = s.claim("released"), s.claim("staged")
	m.claims["grows"] = s.claimWith("grows", ofClass(growing))
	s.classWith("-folder", hostPath)
	if suite.machine.hostPathRoot() != "" {
		m.claims["kept"] = s.claimWith("kept", m.ofFolder)
	}
	for name, claim := range m.claims {
		m.claims[name] = s.bound(claim)
	}
	lost := m.volumeOf(m.claims["lost"])
	s.delete(lost)
	s.unhold(lost)
	s.explainsClaim("lost", "is Lost: ")
	s.explains("volume", s.byHand("spare").Name, "is Available: ")
	s.explains("volume", s.byHand("named").Name, "is Available: ")
	slow := s.claim("slow")
	s.t.Cleanup(func() { // its pod would run for a day
		s.deleteIfThere(slow)
		record := &tarn.PavVolume{ObjectMeta: named("pvc-" + string(slow.UID))}
		s.wait("what is being made to be given up", s.limit(), func() (bool, string) {
			for _, pod := range s.stepPods(tarn.StepCreation) {
				s.deleteIfThere(&pod)
			}
			return apierrors.IsNotFound(s.get(record)), "the record is there"
		})
	})
	s.explainsClaim("slow", "the creation pod tarn-volumes/pav-creation-", "has been running for")
	s.explains("pvset", m.set.Name, "is Ready: ")
	s.explainsApp("crashes", "keeps crashing")
	m.checks(shelf)
	return m
}

// checks makes a claim that is rejected repeatedly, and one whose check runs until the shelf has a
// file. It waits until both have reached the state they keep without a controller. The next attempt
// is put off until isDue, however long the controller takes to stop.
func (m *muted) checks(shelf string) {
	m.t.Helper()
	checks := script{hostDir: shelf, text: "case {{ pvc.metadata.name }} in\nrefused) echo no > /pav/error; false;;\nchecked) until [ -e /host/go ]; do sleep 0.1; done;;\nesac"}.section(nil)
	class := ofClass(m.another("-checks", fields{"volumeValidation": checks, "volumeCreation": asRequested, "volumeStaging": greeting}))
	m.claimWith("checked", class)
	m.t.Cleanup(func() { put(m.t, shelf+"/go") })
	m.explainsClaim("checked", "is Pending: the validation pod tarn-volumes/pav-validation-", "has been running for")
	m.refused = &tarn.PavVolume{ObjectMeta: named("pvc-" + string(m.claimWith("refused", class).UID))}
	m.await("the next attempt at claim refused to be put off", func() (bool, string) {
		if err := m.get(m.refused); err != nil {
			return false, err.Error()
		}
		status := &m.refused.Status
		if m.due = status.NextAttemptTime; status.Phase != tarn.VolumePending || m.due == nil {
			return false, fmt.Sprintf("%s, %v", status.Phase, m.due)
		}
		status.NextAttemptTime = &metav1.Time{Time: time.Now().Add(time.Hour)}
		err := suite.live.Status().Update(m.ctx, m.refused) // it is rejected if the attempt has begun
		return err == nil, fmt.Sprint(err)
	})
}

// isDue makes the next attempt at claim refused due at the time the controller had set.
func (m *muted) isDue() {
	m.t.Helper()
	m.refused.Status.NextAttemptTime = m.due
	if err := suite.live.Status().Update(m.ctx, m.refused); err != nil {
		m.t.Fatal(err)
	}
}

// endsAtLease asks about an object that waits only for the controller, until the chain ends with
// the lease, which has no holder.
func (m *muted) endsAtLease(c silence) explanation {
	m.t.Helper()
	return m.explainsThat(os.Getenv("KUBECONFIG"), c.kind, c.name, fmt.Sprintf("the verdict to have %q, and the chain to end with the lease", c.want), func(e explanation) bool {
		last := e.Links[len(e.Links)-1]
		return containsAll(e.Verdict, c.want) && last.Object.Kind == "Lease" && last.Next == "when tarn controller runs"
	})
}

// patch merges a change into an object or its status.
func (m *muted) patch(o client.Object, change any, status bool) {
	m.t.Helper()
	data, err := json.Marshal(change)
	if err == nil && status {
		err = suite.live.Status().Patch(m.ctx, o, client.RawPatch(types.MergePatchType, data))
	} else if err == nil {
		err = suite.live.Patch(m.ctx, o, client.RawPatch(types.MergePatchType, data))
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// ofVolumes changes claims and volumes while no controller responds. It gives the wanted answers
// for them.
func (m *muted) ofVolumes() []silence {
	m.t.Helper()
	volume := func(claim string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: named(m.claims[claim].Spec.VolumeName)}
	}
	claim := func(name string, want ...string) silence {
		return silence{kind: "claim", name: m.name + "/" + name, want: want}
	}
	newborn := m.byHand("newborn")
	m.byHand("lost")
	m.naming("named", m.name+"-named")
	m.claimWith("uncalled", ofClass(m.classWith("-uncalled", "csi.example.org")))
	m.naming("reserved", m.byHand("reserved", func(vol *corev1.PersistentVolume) {
		vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: m.name, Name: "reserved"}
	}).Name)
	made := m.claimWith("made", ofClass(m.name+"-by-hand"))
	its := m.byHand("made", func(vol *corev1.PersistentVolume) { // the maker of a volume for a claim names that claim
		vol.Name = "pvc-" + string(made.UID)
		vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: m.name, Name: made.Name, UID: made.UID}
	})
	m.claimWith("classless", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.StorageClassName = nil })
	m.classWith("-default", m.name, func(class *storagev1.StorageClass) {
		class.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
	})
	unseen := volume("unseen")
	m.delete(unseen)
	m.unhold(unseen)
	for _, name := range []string{"orphaned", "bereft"} {
		m.delete(m.claims[name])
		m.unhold(m.claims[name])
	}
	for _, name := range []string{"unnamed", "nameless"} {
		m.patch(volume(name), fields{"spec": fields{"claimRef": nil}}, false)
	}
	m.delete(volume("bereft")) // the deleted volume keeps the text on them
	m.delete(volume("nameless"))
	all := []silence{
		claim("fits", "fits, but no binder responds"),
		claim("named", "volume "+m.name+"-named fits, but no binder responds"),
		claim("made", "volume "+its.Name+" is reserved for it, but no binder responds"),
		claim("uncalled", "provisioner csi.example.org has to be called, but no binder responds"),
		claim("reserved", "volume "+m.name+"-reserved is reserved for it, but no binder responds"),
		claim("classless", "it is to get the default class "+m.name+"-default, but no binder responds"),
		claim("lost", "is reserved for it again, but no binder responds"),
		claim("unseen", "its volume "+unseen.Name+" no longer exists"),
		{kind: "volume", name: newborn.Name, want: []string{"no binder has reconciled it yet"}},
		{kind: "volume", name: volume("orphaned").Name, want: []string{"is Bound: its claim " + m.name + "/orphaned is gone, and no binder has reconciled it since"}},
		{kind: "volume", name: volume("unnamed").Name, want: []string{"is Bound: it names no claim; a binder corrects that"}},
		{kind: "volume", name: volume("bereft").Name, want: []string{"is Terminating: its claim " + m.name + "/bereft is gone, and no binder has reconciled it since"}},
		{kind: "volume", name: volume("nameless").Name, want: []string{"is Terminating: it names no claim; a binder corrects that"}},
	}
	all = append(all, m.ofReleased()...)
	for i := range all {
		all[i].by = "BINDER"
	}
	protected := []silence{
		claim("unused", "no pod uses it, but its protection controller does not remove the finalizer"),
		{kind: "volume", name: m.name + "-dropped", want: []string{"no claim is bound to it, but its protection controller does not remove the finalizer"}},
	}
	for i := range protected {
		protected[i].by = "PROTECTION"
	}
	return slices.Concat(all, protected, []silence{{kind: "volume", name: volume("released").Name, want: []string{"is gone, and its storage has to be destroyed, " + runsNone()}}})
}

// ofTarns makes and changes Tarn's own objects. It gives the wanted answers for them.
func (m *muted) ofTarns() []silence {
	m.t.Helper()
	m.patch(m.claims["grows"], fields{"spec": fields{"resources": fields{"requests": fields{"storage": "8Mi"}}}}, false)
	creation := m.stepPods(tarn.StepCreation)
	for i := range creation {
		err := suite.live.Delete(m.ctx, &creation[i], client.GracePeriodSeconds(0))
		if client.IgnoreNotFound(err) != nil { // an object that was being deleted may be gone
			m.t.Fatal(err)
		}
	}
	mustTool(m.t, 0, "", "app", "delete", "ends", "--namespace", m.name, "--yes", "--wait=false")
	if err := suite.live.Delete(m.ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: m.name, Name: "paas-app-crashes"}}, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		m.t.Fatal(err)
	}
	m.patch(m.set, fields{"spec": fields{"maximumReplicas": 2}}, false)
	m.explains("pvset", m.set.Name, "it has to be reconciled, "+runsNone())
	m.delete(m.set)
	of := func(kind, name string, want ...string) silence {
		return silence{kind: kind, name: m.name + "/" + name, want: want}
	}
	return append(m.ofPromises(), []silence{
		of("claim", "judged-by-nobody", "PavProvisioner "+m.name+"-unjudged has to be validated, "+runsNone()),
		of("claim", "folder", "provisioner tarn.dev/host-path has not started"),
		of("claim", "grows", "it is to be expanded from 2Mi to 8Mi"),
		of("pod", "staged", "is not staged on node ", ", its pod has to be started, "+runsNone()),
		of("app", "late", "it has to be reconciled, "+runsNone()),
		of("app", "crashes", "its Deployment has to be created, "+runsNone()),
		of("app", "ends", "is Terminating: it is being deleted"),
		{kind: "pvset", name: m.set.Name, want: []string{"is Terminating: its spare volumes have to be deleted first"}},
	}...)
}

// ofFolder makes a claim ask for a directory of the node.
func (m *muted) ofFolder(claim *corev1.PersistentVolumeClaim) {
	ofClass(m.name + "-folder")(claim)
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
}

// ofPromises puts claims into the states that the provisioner inside Tarn's controller leaves when
// it dies. It may die before it has made or removed a directory, or before it has removed its
// finalizer. ofPromises gives the wanted answers; none where the cluster lacks that provisioner.
func (m *muted) ofPromises() []silence {
	m.t.Helper()
	kept := m.claims["kept"]
	if kept == nil {
		return nil
	}
	const promise = "tarn.dev/in-process"
	node := m.volumeOf(kept).Annotations["tarn.dev/node"]
	begun := func(claim *corev1.PersistentVolumeClaim) {
		m.ofFolder(claim)
		claim.Finalizers = []string{promise}
		claim.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": hostPath, "tarn.dev/plugin": hostPath, "tarn.dev/node": node}
	}
	m.claimWith("promised", begun)
	for _, claim := range []*corev1.PersistentVolumeClaim{kept, m.claimWith("undone", begun)} {
		m.patch(claim, fields{"metadata": fields{"finalizers": []string{promise}}}, false)
		m.delete(claim)
	}
	undone := "what may have been made for it is being undone"
	if inPods() { // a lease shows that no controller leads
		undone = "what may have been made for it has to be undone, " + runsNone()
	}
	return []silence{
		{kind: "claim", name: m.name + "/kept", want: []string{"is Terminating: it has its volume, and Tarn has to remove finalizer " + promise + ", " + runsNone()}},
		{kind: "claim", name: m.name + "/promised", want: []string{"is Pending: its volume is being made by " + hostPath}},
		{kind: "claim", name: m.name + "/undone", want: []string{"is Terminating: " + undone}},
	}
}

// goesNoFurther asks about work begun before the controller stopped: an overdue attempt, a pod that
// has ended, a missing pod, and an object that no controller has begun.
func (m *muted) goesNoFurther() explanation {
	m.t.Helper()
	claim := func(name string, want ...string) silence {
		return silence{kind: "claim", name: m.name + "/" + name, want: want}
	}
	e := m.endsAtLease(claim("refused", "PavProvisioner "+m.name+"-checks rejects it, attempt "))
	since := " ago, at " + m.due.UTC().Format(time.TimeOnly+"Z")
	if !slices.ContainsFunc(e.Links, func(l link) bool {
		return l.Object.Kind == "PavVolume" && strings.Contains(l.Next, " was due ") && strings.Contains(l.Next, since)
	}) {
		m.t.Errorf("it does not say that the next attempt is due since %s: %+v", m.due, e.Links)
	}
	m.endsAtLease(claim("checked", "is Pending: its claim is being validated"))
	m.endsAtLease(claim("slow", "is Pending: its volume is being made, attempt 1"))
	return m.endsAtLease(claim("grows", "it is to be expanded from 2Mi to 8Mi"))
}

// Not parallel: meanwhile no other case can make progress.
func TestExplainSaysThatTheControllerDoesNotAnswer(t *testing.T) {
	shelf := t.TempDir() // until the last pod of the case is gone
	s := begin(t, "explain-silent")
	s.needsThisMachine()
	m := beforeSilence(s, shelf)
	goOn := s.stops(controller)
	m.isDue()
	put(t, shelf+"/go")
	m.passesSoon()
	s.claim("more")
	said := slices.Concat(m.ofVolumes(), m.ofTarns())
	// The binder is a part of the stopped controller, unless it is Kubernetes' own.
	more := silence{kind: "claim", name: s.name + "/more", want: []string{"PavProvisioner " + s.name + " has to be called, but no binder responds"}}
	if os.Getenv("BINDER") == "kubernetes" {
		more.want = []string{"PavProvisioner " + s.name + " has to make its volume, " + runsNone()}
	}
	for _, c := range append(said, more) {
		if c.by == "" || os.Getenv(c.by) != "kubernetes" {
			s.explains(c.kind, c.name, c.want...)
		}
	}
	e := m.goesNoFurther()
	last := e.Links[len(e.Links)-1]
	if !slices.Contains([]string{"expired", "missing", "released"}, last.State) { // the cluster's only controller needs no lease
		t.Errorf("the chain ends with %+v", last)
	}
	m.byLease()
	m.byDeployment()
	if inPods() {
		s.does(last.Command)
	}
	goOn()
	s.explainsClaim("more", "is Bound")
	if m.claims["kept"] != nil {
		s.explainsClaim("promised", "is Bound")
	}
	s.remove(m.claims["nameless"]) // a binder gives it its volume again
	for _, name := range []string{"bereft", "nameless"} {
		s.gone(&corev1.PersistentVolume{ObjectMeta: named(m.claims[name].Spec.VolumeName)})
	}
}
