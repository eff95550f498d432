//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// write is a kind of write that a policy can reject: the resource or status, its group, and the
// operation.
type write struct {
	group, version, resource string
	operation                admissionv1.OperationType
}

// refuses makes the API server reject a kind of write of the case, as an administrator's policy
// can, until lift is called. A state that would pass within moments then lasts, while all other
// cases continue. where selects the objects, in CEL.
func (s *scenario) refuses(what string, w write, where string) (lift func()) {
	s.t.Helper()
	rule := func(w write) admissionv1.NamedRuleWithOperations {
		return admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{w.operation},
			Rule:       admissionv1.Rule{APIGroups: []string{w.group}, APIVersions: []string{w.version}, Resources: []string{w.resource}},
		}}
	}
	// A policy takes effect a moment after it is written; a ConfigMap tests that.
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "refused-" + what}}
	name := named(s.name + "-" + what)
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: name, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: ptr.To(admissionv1.Ignore), // other objects are not affected, even if they lack the field
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{
			rule(w), rule(write{"", "v1", "configmaps", admissionv1.Create}),
		}},
		MatchConditions: []admissionv1.MatchCondition{{Name: "of-the-case", Expression: fmt.Sprintf(
			"request.resource.resource == 'configmaps' ? request.namespace == '%s' && object.metadata.name == '%s' : %s", s.name, probe.Name, where)}},
		Validations: []admissionv1.Validation{{Expression: "false", Message: "refused by the policy of an end-to-end case"}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: name, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	lift = func() {
		s.deleteIfThere(binding)
		s.deleteIfThere(policy)
	}
	s.create(policy)
	s.t.Cleanup(lift)
	s.create(binding)
	over, again := time.NewTimer(soon), time.NewTicker(200*time.Millisecond)
	defer over.Stop()
	defer again.Stop()
	for {
		err := suite.live.Create(s.ctx, probe.DeepCopy(), client.DryRunAll)
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			return lift
		}
		select {
		case <-again.C:
		case <-over.C:
			s.t.Fatalf("policy %s is not in force: %v", policy.Name, err)
		}
	}
}

func TestExplainSaysWhatIsAboutToHappen(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-soon")
	plain := fields{"volumeCreation": asRequested, "volumeStaging": greeting}
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": fails(nil), "volumeUnstaging": script{text: "true"}.section(nil)}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	begins, unwritten := s.another("-begins", plain), s.another("-unwritten", plain)
	goesOn := s.refuses("beginning", write{tarn.GroupVersion.Group, tarn.GroupVersion.Version, "pavvolumes/status", admissionv1.Update},
		"object.spec.provisioner.name == '"+begins+"' && has(object.status.phase) && object.status.phase != 'Pending'")
	writes := s.refuses("volumes", write{"", "v1", "persistentvolumes", admissionv1.Create}, "has(object.spec.csi) && object.spec.csi.driver == '"+unwritten+"'")
	tells := s.refuses("telling", write{tarn.GroupVersion.Group, tarn.GroupVersion.Version, "pavvolumes/status", admissionv1.Update},
		"object.spec.provisioner.name == '"+unwritten+"' && has(object.status.conditions) && object.status.conditions.exists(c, c.reason == 'VolumeRefused')")
	first := s.claimWith("first", ofClass(begins)) // each is in this state for a few seconds
	s.explainsClaim("first", "is Pending: PavProvisioner "+begins+" is about to start")
	made := s.claimWith("made", ofClass(unwritten))
	s.explainsClaim("made", "is Pending: its volume is made, and its PersistentVolume is about to be created")

	t.Run("a stage that has failed is made anew", s.failsToStage) // meanwhile the expected steps have become overdue
	t.Run("the first attempt, and what hinders it", func(t *testing.T) {
		sub := s.part(t)
		sub.explainsClaim("first", "is Pending: the first attempt of PavProvisioner "+begins+" is due, ")
		sub.respecify(begins, fields{"volumeCreation": fields{"capacity": "{{ oops | }}"}})
		sub.explainsClaim("first", "is Pending: PavProvisioner "+begins+" is not accepted: spec.volumeCreation.capacity: line 1")
		sub.asReader("no-provisioners", "pavprovisioners").explains("claim", s.name+"/first", "is Pending: PavProvisioner "+begins+" has not started: PavProvisioner ", "is not accepted: spec.volumeCreation.capacity: line 1")
		sub.respecify(begins, fields{"volumeCreation": asRequested})
		goesOn()
		sub.bound(first)
		sub.remove(first)
	})
	t.Run("a volume that is made is written, unless that is refused, or another has its name", func(t *testing.T) {
		sub := s.part(t)
		sub.explainsClaim("made", "is Pending: its volume is made, and its PersistentVolume has to be created, ")
		tells()
		sub.explainsClaim("made", "is Pending: its volume is made, but its PersistentVolume is not created: the API server rejects PersistentVolume pvc-"+string(made.UID)+": ")
		other := sub.byHand("unwritten", func(vol *corev1.PersistentVolume) { vol.Name = "pvc-" + string(made.UID) })
		writes()
		record := &tarn.PavVolume{ObjectMeta: named(other.Name)}
		sub.await("its record to tell of the other volume", func() (bool, string) {
			err := s.get(record)
			c := meta.FindStatusCondition(record.Status.Conditions, tarn.ConditionProvisioned)
			return err == nil && c != nil && strings.Contains(c.Message, "belongs to another claim"), fmt.Sprintf("%+v (%v)", c, err)
		})
		sub.explainsClaim("made", "is Pending: its volume is made, but its PersistentVolume is not created: PersistentVolume "+other.Name+" exists and belongs to another claim")
		sub.remove(other)
		sub.bound(made)
		sub.remove(made)
	})
	t.Run("a provisioner is judged", func(t *testing.T) {
		sub := s.part(t)
		class := sub.another("-judged", plain)
		claim, early := sub.bound(sub.claimWith("judged", ofClass(class))), sub.bound(sub.claimWith("early", ofClass(class)))
		starts := sub.refuses("starting", write{tarn.GroupVersion.Group, tarn.GroupVersion.Version, "pavstages/status", admissionv1.Update},
			"object.spec.provisioner.name == '"+class+"' && has(object.status.pod) && has(object.status.pod.phase) && object.status.pod.phase == 'Starting'")
		waiting := sub.consumer("early", early.Name, stays) // its stage has begun when no controller judges the provisioner any more
		(&scenario{t: t, ctx: s.ctx, name: class}).stageOf("there", func(*tarn.PavStage) bool { return true })
		lift := sub.refuses("judging", write{pav.GroupVersion.Group, pav.GroupVersion.Version, "pavprovisioners/status", admissionv1.Update},
			"object.metadata.name == '"+class+"' && has(object.status.conditions) && size(object.status.conditions) > 0")
		unjudged := client.RawPatch(types.MergePatchType, []byte(`{"status":{"conditions":null}}`))
		if err := suite.live.Status().Patch(s.ctx, &pav.PavProvisioner{ObjectMeta: named(class)}, unjudged); err != nil {
			t.Fatal(err)
		}
		pod := sub.consumer("judged", claim.Name, stays)
		sub.explains("pod", s.name+"/judged", "is starting: PavProvisioner "+class+" has to be validated, ")
		e := sub.explains("pod", s.name+"/early", "is starting: volume "+early.Spec.VolumeName+" is not staged on node ", ": PavProvisioner "+class+" has to be validated, ")
		if !slices.ContainsFunc(e.Links, func(l link) bool {
			return l.Object.Kind == "PavStage" && l.Next == "when the PavProvisioner has been validated" && strings.HasPrefix(l.Message, "waiting until PavProvisioner ")
		}) {
			t.Errorf("that the stage waits for that is not among %+v", e.Links)
		}
		lift()
		sub.explains("pod", s.name+"/early", "is starting: volume "+early.Spec.VolumeName+" is not staged on node ", ", its pod has to be started, but has not started")
		starts()
		for _, p := range []*corev1.Pod{pod, waiting} {
			sub.ready(p)
			sub.remove(p)
		}
		sub.remove(claim)
		sub.remove(early)
	})
}

// failsToStage lets a stage of the case's provisioner fail, which then cannot be ended.
func (s *scenario) failsToStage(t *testing.T) {
	sub := s.part(t)
	lift := sub.refuses("ends", write{tarn.GroupVersion.Group, tarn.GroupVersion.Version, "pavstages", admissionv1.Delete}, "oldObject.spec.provisioner.name == '"+s.name+"'")
	claim := sub.bound(sub.claim("bad"))
	pod := sub.consumer("bad", claim.Name, stays)
	sub.explains("pod", s.name+"/bad", "volume "+claim.Spec.VolumeName+" could not be staged on node ", complaint)
	lift()
	sub.remove(pod)
}

// respecify changes sections of the case's second provisioner.
func (s *scenario) respecify(name string, sections fields) {
	s.t.Helper()
	p := s.provisioner(nil)
	p.SetName(name)
	p.Object["spec"] = sections
	s.edit(p)
}

func TestExplainSaysHowARecyclingStands(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-recycling")
	s.needsThisMachine()
	vol := s.recycled(t.TempDir(), tarn.RecycleFiles, corev1.PersistentVolumeFilesystem)
	ofVolume := func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = vol.Name }
	lift := s.refuses("scrubs", write{"", "v1", "persistentvolumeclaims", admissionv1.Create}, "object.metadata.namespace != '"+s.name+"' && has(object.spec.volumeName) && object.spec.volumeName == '"+vol.Name+"'")
	s.remove(s.bound(s.claimWith("first", ofVolume)))
	s.explains("volume", vol.Name, "is Released: claim "+s.name+"/first is gone, and the volume is being recycled")
	lift()
	s.phased(vol, corev1.VolumeAvailable)

	claim := s.bound(s.claimWith("second", ofVolume))
	pod := s.consumer("user", claim.Name, stays)
	s.ready(pod)
	s.delete(claim)
	s.unhold(claim) // as an administrator in a hurry does
	e := s.explains("volume", vol.Name, "is Released: it could not be recycled: ", "pod "+s.name+"/user")
	if last := e.Links[len(e.Links)-1]; !strings.Contains(last.Next, "when it is retried; last tried ") {
		t.Errorf("the chain ends with %+v", last)
	}
	s.remove(pod)
	s.phased(vol, corev1.VolumeAvailable)
}

func TestExplainSaysThatADeploymentMakesNothing(t *testing.T) {
	t.Parallel()
	s := beginApps(t, "explain-app-idle")
	tells := s.refuses("telling", write{"apps", "v1", "deployments/status", admissionv1.Update}, "request.namespace == '"+s.name+"'")
	makes := s.refuses("making", write{"apps", "v1", "replicasets", admissionv1.Create}, "request.namespace == '"+s.name+"'")
	s.deploys("idle", s.name, stays, "--wait=false")
	s.bound(s.claimed("idle"))
	e := s.explainsApp("idle", "is not Ready: 0 of 1 pods are ready")
	if len(e.Links) == 0 || e.Links[0].Since == nil || e.command() != "" {
		t.Errorf("the chain is %+v", e.Links)
	}
	tells()
	e = s.explainsApp("idle", "is not Ready: its pods cannot be created: ", "refused by the policy of an end-to-end case")
	if last := e.Links[len(e.Links)-1]; last.Object.Kind != "Deployment" || last.State != "creates no pods" {
		t.Errorf("the chain ends with %+v", last)
	}
	makes()
	s.explainsApp("idle", "is Ready: 1 of 1 pods are ready")
}

func TestExplainSaysThatARetentionKeepsAVolumeThatTheTrashDoesNotHold(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-retained")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeDeletion": script{text: "true"}.section(nil), "volumeStaging": greeting}))
	class := s.classWith("-kept", s.name, func(class *storagev1.StorageClass) {
		class.Annotations = map[string]string{tarn.AnnotationRetention: "1h"}
	})
	lift := s.refuses("holding", write{"", "v1", "persistentvolumes", admissionv1.Update},
		"has(object.spec.csi) && object.spec.csi.driver == '"+s.name+"' && object.spec.persistentVolumeReclaimPolicy == 'Retain'")
	claim := s.bound(s.claimWith("data", ofClass(class)))
	s.remove(claim)
	s.explains("volume", claim.Spec.VolumeName, "is Released: claim "+s.name+"/data is gone, and its storage is not destroyed yet: ")
	lift()
	s.explains("volume", claim.Spec.VolumeName, "is Released: claim "+s.name+"/data is gone, and its data is kept in the trash until ")
	mustTool(t, 0, "", "trash", "purge", claim.Spec.VolumeName, "--yes")
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
}
