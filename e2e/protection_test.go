//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// These cases hold for Tarn's protection and for Kubernetes' own, except where they check
// PROTECTION.

// Case 153. Not parallel: it kills the kubelet.
func TestAClaimInUseWaitsForThePodsThatUseIt(t *testing.T) {
	s := beginServed(t, "protected")
	s.needsThisMachine()
	claim := s.bound(s.claim("data"))
	pod := s.consumer("reader", claim.Name, stays)
	s.ready(pod)
	s.delete(claim)
	s.terminating(claim)
	finished := s.claim("finished")
	job := s.job("job", finished.Name)

	late := s.consumer("late", claim.Name, stays)
	s.told(late, "FailedScheduling", `persistentvolumeclaim "`+claim.Name+`" is being deleted`)
	if err := s.get(pod); err != nil {
		t.Fatal(err)
	}
	placed := s.consumer("placed", claim.Name, stays, func(p *corev1.Pod) { p.Spec.NodeName = pod.Spec.NodeName })
	s.told(placed, "FailedMount", "can't start pod "+s.name+"/placed because it's using claim "+s.name+"/data that is being deleted")

	if err := suite.machine.kill("kubelet"); err != nil {
		t.Fatal(err)
	}
	other := &corev1.Pod{ObjectMeta: named("other"), Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, NodeName: pod.Spec.NodeName,
		Containers: []corev1.Container{{Name: "main", Image: "busybox:1.36", Command: []string{"true"}}},
	}}
	other.Namespace = s.name
	s.create(other)
	s.succeeded(other) // so the kubelet works again
	s.neverRestarted(pod)
	if text := s.kubectlSays("exec", "-n", s.name, pod.Name, "--", "cat", "/data/greeting"); strings.TrimSpace(text) != "hello" {
		t.Errorf("after the kubelet's restart the pod reads %q in its volume, want hello", text)
	}
	s.terminating(claim)
	if err := s.get(placed); err != nil || placed.Status.Phase != corev1.PodPending || len(placed.Status.ContainerStatuses) > 0 && placed.Status.ContainerStatuses[0].ContainerID != "" {
		t.Errorf("a pod that was placed on a claim which is being deleted: %v, %+v, want it not to have started", err, placed.Status)
	}

	s.endsUse(job, finished)

	s.remove(placed)
	s.remove(late)
	s.terminating(claim)
	s.remove(pod)
	s.gone(claim)
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
}

// job starts a Job whose one pod reads the greeting of a claim and ends.
func (s *scenario) job(name, claim string) *batchv1.Job {
	s.t.Helper()
	job := &batchv1.Job{ObjectMeta: named(name), Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "main", Image: "busybox:1.36", Command: []string{"cat", "/data/greeting"},
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}},
	}}}}
	job.Namespace = s.name
	s.create(job)
	return job
}

// endsUse deletes the claim of a Complete Job whose pod still exists. With Tarn's protection, claim
// and volume are deleted. With Kubernetes' own, they wait until the pod is deleted.
func (s *scenario) endsUse(job *batchv1.Job, claim *corev1.PersistentVolumeClaim) {
	s.t.Helper()
	s.await("Job "+job.Name+" to be Complete", func() (bool, string) {
		err := s.get(job)
		return err == nil && job.Status.Succeeded == 1, fmt.Sprintf("%+v (%v)", job.Status, err)
	})
	claim = s.bound(claim)
	s.delete(claim)
	if os.Getenv("PROTECTION") == "kubernetes" {
		s.terminating(claim)
		s.remove(s.podOfJob(job))
	}
	s.gone(claim)
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
	if os.Getenv("PROTECTION") != "kubernetes" {
		if pod := s.podOfJob(job); pod.Status.Phase != corev1.PodSucceeded {
			s.t.Errorf("the pod of the Job is %s, want it Succeeded still", pod.Status.Phase)
		}
	}
	s.remove(job)
}

// podOfJob is the one pod of a Job.
func (s *scenario) podOfJob(job *batchv1.Job) *corev1.Pod {
	s.t.Helper()
	var pods corev1.PodList
	if err := suite.live.List(s.ctx, &pods, client.InNamespace(s.name), client.MatchingLabels{batchv1.JobNameLabel: job.Name}); err != nil || len(pods.Items) != 1 {
		s.t.Fatalf("Job %s has %d pods (%v), want one", job.Name, len(pods.Items), err)
	}
	return &pods.Items[0]
}

// beginServed begins a case whose class makes volumes at once and stages them with a greeting.
func beginServed(t *testing.T, label string) *scenario {
	t.Helper()
	s := begin(t, label)
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	return s
}

// terminating wants a claim or volume to exist, and kubectl to show that it is being deleted.
func (s *scenario) terminating(o client.Object) {
	s.t.Helper()
	kind := "pv"
	args := []string{"get", kind, o.GetName(), "--no-headers"}
	if o.GetNamespace() != "" {
		kind = "pvc"
		args = []string{"get", kind, o.GetName(), "--no-headers", "-n", o.GetNamespace()}
	}
	columns := strings.Fields(s.kubectlSays(args...))
	if len(columns) < 2 || columns[0] != o.GetName() || !strings.Contains(strings.Join(columns, " "), "Terminating") {
		s.t.Errorf("kubectl get %s shows %q, want it to be Terminating", kind, columns)
	}
	args[0], args[3] = "describe", "--show-events=false"
	if text := s.kubectlSays(args...); !strings.Contains(text, "Terminating (lasts ") {
		s.t.Errorf("kubectl describe %s does not say since when it is Terminating:\n%s", kind, text)
	}
}

// kubectlSays gives the output of the kubectl beside tarn-cluster.
func (s *scenario) kubectlSays(args ...string) string {
	s.t.Helper()
	out, err := exec.Command(filepath.Join(filepath.Dir(suite.machine.binary), "kubectl"), args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestClaimsAndVolumesAreBornProtected(t *testing.T) {
	t.Parallel()
	s := begin(t, "born")
	spec := corev1.PersistentVolumeSpec{
		Capacity: size("1Mi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: s.name,
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: named("data"), Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &s.name, AccessModes: spec.AccessModes, Resources: corev1.VolumeResourceRequirements{Requests: spec.Capacity},
	}}
	claim.Namespace = s.name
	for o, want := range map[client.Object]string{
		claim: "kubernetes.io/pvc-protection", &corev1.PersistentVolume{ObjectMeta: named(s.name), Spec: spec}: "kubernetes.io/pv-protection",
	} {
		// A dry run stores nothing, so no controller can have added it.
		if err := suite.live.Create(s.ctx, o, client.DryRunAll); err != nil || !slices.Equal(o.GetFinalizers(), []string{want}) {
			t.Errorf("%T is born with finalizers %q (%v), want %s", o, o.GetFinalizers(), err, want)
		}
	}
}

// Protection adds its finalizer wherever it is missing, for whatever reason.
func TestFinalizersThatWereTakenOffByHandComeBack(t *testing.T) {
	t.Parallel()
	s := beginServed(t, "stripped")
	claim := s.bound(s.claim("data"))
	vol := &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
	for o, finalizer := range map[client.Object]string{claim: "kubernetes.io/pvc-protection", vol: "kubernetes.io/pv-protection"} {
		if err := s.get(o); err != nil {
			t.Fatal(err)
		}
		at := slices.Index(o.GetFinalizers(), finalizer)
		if at < 0 {
			t.Fatalf("%T has finalizers %q before they are taken off, want %s", o, o.GetFinalizers(), finalizer)
		}
		others := slices.Delete(slices.Clone(o.GetFinalizers()), at, at+1)
		off := client.RawPatch(types.JSONPatchType, fmt.Appendf(nil, `[{"op":"test","path":"/metadata/finalizers/%d","value":%q},{"op":"remove","path":"/metadata/finalizers/%d"}]`, at, finalizer, at))
		if err := suite.live.Patch(s.ctx, o, off); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(o.GetFinalizers(), finalizer) {
			t.Fatalf("%T has %s in the answer to the write that takes it off: %q", o, finalizer, o.GetFinalizers())
		}
		s.await(finalizer+" to be back", func() (bool, string) {
			err := s.get(o)
			return err == nil && slices.Contains(o.GetFinalizers(), finalizer), fmt.Sprintf("%q (%v)", o.GetFinalizers(), err)
		})
		for _, other := range others {
			if !slices.Contains(o.GetFinalizers(), other) {
				t.Errorf("%T has lost %s: %q", o, other, o.GetFinalizers())
			}
		}
	}
	s.remove(claim)
	s.gone(vol)
}

func TestTheStorageOfAProtectedVolumeOutlivesItsClaim(t *testing.T) {
	t.Parallel()
	shelf := t.TempDir()
	s := begin(t, "guarded")
	s.needsThisMachine()
	s.create(s.provisioner(shelved(shelf)))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	vol := &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
	label := tarn.LabelDeletionProtection
	s.kubectl("label", "pvc", claim.Name, "-n", s.name, label+"=true")
	s.kubectl("label", "pv", vol.Name, label+"=true")

	s.refused(suite.live.Delete(s.ctx, claim), "kubectl label persistentvolumeclaims "+claim.Name+" -n "+s.name+" "+label+"-")
	s.answers("a refusal for its claim", &corev1.Namespace{ObjectMeta: named(s.name)}, func(err error) bool {
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "holds claim "+claim.Name)
	})
	s.kubectl("label", "pvc", claim.Name, "-n", s.name, label+"-")
	s.remove(claim)

	s.await("the record to say what keeps the storage", func() (bool, string) {
		record := &tarn.PavVolume{ObjectMeta: named(vol.Name)}
		if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(record), record); err != nil {
			return false, err.Error()
		}
		c := meta.FindStatusCondition(record.Status.Conditions, tarn.ConditionDeletable)
		return c != nil && c.Reason == "DeletionProtected", "it does not"
	})
	s.refused(suite.live.Delete(s.ctx, vol), "kubectl label persistentvolumes "+vol.Name+" "+label+"-")
	if kept := entriesOf(t, shelf); len(kept) == 0 {
		t.Error("the storage of a protected volume is gone")
	}
	s.kubectl("label", "pv", vol.Name, label+"-")
	s.gone(vol)
	if left := entriesOf(t, shelf); len(left) > 0 {
		t.Errorf("the deletion pod has left %q on the shelf", left)
	}
}

func TestWhatIsMarkedIsDeletedWhenTheMarkIsTakenOffAndNotBefore(t *testing.T) {
	t.Parallel()
	s := begin(t, "marked")
	s.needsThisMachine()
	s.endsApps()
	mark := map[string]string{tarn.LabelDeletionProtection: "true"}
	set := s.pool(0, 1, func(set *tarn.PersistentVolumeSet) { set.Labels = mark })
	app := &tarn.App{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "web", Labels: mark}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name + "-itself", Labels: mark}}
	holder := &corev1.Namespace{ObjectMeta: named(s.name + "-holder")}
	claim := claimOf("none", "data")
	claim.Namespace, claim.Labels = holder.Name, mark
	for _, o := range []client.Object{app, namespace, holder, claim} {
		s.create(o)
		t.Cleanup(func() { s.deleteIfThere(o) })
	}
	t.Cleanup(func() { // a failing case would leave them for ever
		for _, o := range []client.Object{set, app, namespace, claim} {
			lift := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+tarn.LabelDeletionProtection+`":null}}}`))
			if err := client.IgnoreNotFound(suite.live.Patch(s.ctx, o, lift)); err != nil {
				t.Error(err)
			}
		}
	})
	for _, c := range []struct {
		o         client.Object
		kind      string
		what, how string
	}{
		{set, "persistentvolumesets.tarn.dev", "persistentvolumesets.tarn.dev " + set.Name, "kubectl label persistentvolumesets.tarn.dev " + set.Name},
		{app, "apps.tarn.dev", "apps.tarn.dev " + s.name + "/web", "kubectl label apps.tarn.dev web -n " + s.name},
		{namespace, "namespaces", "namespaces " + namespace.Name, "kubectl label namespaces " + namespace.Name},
		{holder, "namespaces", "namespace " + holder.Name + " holds claim data, which", "kubectl label persistentvolumeclaims data -n " + holder.Name},
	} {
		arguments := []string{"delete", c.kind, c.o.GetName(), "--timeout=180s"}
		if c.o.GetNamespace() != "" {
			arguments = append(arguments, "-n", c.o.GetNamespace())
		}
		// The API server watches the objects in a namespace separately.
		s.answers("a refusal", c.o, apierrors.IsForbidden)
		out, err := exec.Command(kubectlBinary(), arguments...).CombinedOutput()
		want := c.what + " is protected from deletion by its label " + tarn.LabelDeletionProtection + "; to lift that: " + c.how + " " + tarn.LabelDeletionProtection + "-"
		if err == nil || !strings.HasSuffix(strings.TrimSpace(string(out)), want) {
			t.Errorf("kubectl %s says (%v)\n%swant\n%s", strings.Join(arguments, " "), err, out, want)
			continue
		}
		if now := read(s, c.o); now.GetDeletionTimestamp() != nil {
			t.Errorf("%s is being deleted since %s", c.what, now.GetDeletionTimestamp())
		}
		_, lift, _ := strings.Cut(string(out), "to lift that: ")
		s.does(lift)
		s.answers("a deletion", c.o, func(err error) bool { return err == nil })
		s.kubectl(arguments...) // it waits until the object is gone
		if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(c.o), c.o); !apierrors.IsNotFound(err) {
			t.Errorf("%s is there (%v)", c.what, err)
		}
	}
}

// answers sends dry-run deletions of an object until the API server's answer is as wanted.
func (s *scenario) answers(what string, o client.Object, is func(error) bool) {
	s.t.Helper()
	over, again := time.NewTimer(soon), time.NewTicker(100*time.Millisecond)
	defer over.Stop()
	defer again.Stop()
	for {
		err := suite.live.Delete(s.ctx, o, client.DryRunAll)
		if is(err) {
			return
		}
		select {
		case <-again.C:
		case <-over.C:
			s.t.Fatalf("asked to delete %s the API server answers %v, want %s", describe(o), err, what)
		}
	}
}
