//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// deploys deploys, with the command line, an app with one volume whose container runs a script.
func (s *scenario) deploys(id, class, script string, args ...string) {
	s.t.Helper()
	file := fmt.Sprintf("[app]\nimage = \"busybox:1.36\"\ncommand = [\"sh\", \"-c\", %q]\n\n[[volumes]]\nname = \"data\"\nmountPath = \"/data\"\nsize = \"1Gi\"\nstorageClass = %q\n", script, class)
	mustTool(s.t, 0, file, append([]string{"app", "deploy", id, "--namespace", s.name, "--file", "-"}, args...)...)
}

// claimed is the claim of an app's only volume.
func (s *scenario) claimed(id string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "paas-app-" + id + "-data"}}
}

// explainsApp is explains for an app of the case.
func (s *scenario) explainsApp(id string, texts ...string) explanation {
	s.t.Helper()
	return s.explains("app", s.name+"/"+id, texts...)
}

// endsApps deletes the apps of the case before its general cleanup.
func (s *scenario) endsApps() {
	s.t.Cleanup(func() {
		var apps tarn.AppList
		if err := suite.live.List(s.ctx, &apps, client.InNamespace(s.name)); err != nil {
			s.t.Error(err)
		}
		for i := range apps.Items {
			s.deleteIfThere(&apps.Items[i])
		}
		for i := range apps.Items {
			s.gone(&apps.Items[i])
		}
	})
}

// beginApps begins a case of apps with a class whose volumes are made at once.
func beginApps(t *testing.T, label string) *scenario {
	t.Helper()
	s := beginServed(t, label)
	s.endsApps()
	return s
}

func TestExplainSaysWhatAnAppWaitsFor(t *testing.T) {
	t.Parallel()
	s := beginApps(t, "explain-app")
	s.deploys("lacks", s.name+"x", stays, "--wait=false")
	s.deploys("crashes", s.name, "echo oops; exit 7", "--wait=false")
	s.deploys("fine", s.name, stays)

	t.Run("nothing", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		e := sub.explainsApp("fine", "is Ready: 1 of 1 pods are ready", "claim "+s.name+"/paas-app-fine-data from volume pvc-", "PavProvisioner "+s.name)
		if out, _ := mustTool(t, 0, "", "explain", "app", s.name+"/fine"); out != e.Verdict+"\n" || !e.Healthy {
			t.Errorf("healthy %t, printed:\n%s", e.Healthy, out)
		}
	})
	t.Run("a claim whose class does not exist", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		sub.explainsApp("lacks", "is not Ready: claim "+s.name+"/paas-app-lacks-data: StorageClass \""+s.name+"x\" does not exist")
	})
	t.Run("a pod that crashes, with its log", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		e := sub.explainsWith("oops", "app", s.name+"/crashes", "is not Ready: pod "+s.name+"/paas-app-crashes-", "its volumes are mounted, but keeps crashing")
		if last := e.Links[len(e.Links)-1]; last.Object.Kind != "Pod" || last.Node == "" {
			t.Errorf("the chain ends with %+v, want a pod on a node", last)
		}
	})
	t.Run("a claim of somebody else's, and the command hands it over", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		sub.create(&tarn.App{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "taken"}})
		sub.explainsApp("taken", "is not deployed: nothing is deployed to it")
		claim := sub.claimWith(s.claimed("taken").Name, func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
			claim.Spec.Resources.Requests = size("1Gi")
		})
		// The command line would reject it at once.
		app := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"image":"busybox:1.36","command":["sh","-c",%q],"volumes":[{"name":"data","mountPath":"/data","sizeGi":1}]}}`, stays))
		if err := suite.live.Patch(s.ctx, &tarn.App{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "taken"}}, app); err != nil {
			t.Fatal(err)
		}
		e := sub.explainsApp("taken", "is refused: its spec is rejected: ", claim.Name)
		sub.does(e.command())
		sub.explainsApp("taken", "is Ready: 1 of 1 pods are ready")
	})
	t.Run("an end that a label forbids, and the command lifts that", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		protect := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+tarn.LabelDeletionProtection+`":"true"}}}`))
		if err := suite.live.Patch(s.ctx, s.claimed("fine"), protect); err != nil {
			t.Fatal(err)
		}
		mustTool(t, 0, "", "app", "delete", "fine", "--namespace", s.name, "--yes", "--wait=false")
		e := sub.explainsApp("fine", "is Terminating: claim "+s.name+"/paas-app-fine-data is protected from deletion")
		sub.does(e.command())
		sub.gone(&tarn.App{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "fine"}})
		sub.gone(s.claimed("fine"))
	})
	t.Run("pods that a quota forbids", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		sub.create(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "none"}, Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")},
		}})
		sub.deploys("forbidden", s.name, stays, "--wait=false")
		e := sub.explainsApp("forbidden", "is not Ready: its pods cannot be created: ", "exceeded quota")
		if last := e.Links[len(e.Links)-1]; last.Object.Kind != "Deployment" || !strings.Contains(last.Next, "when its pods are allowed") {
			t.Errorf("the chain ends with %+v", last)
		}
	})
}

func TestExplainSaysWhatElseAnAppWaitsFor(t *testing.T) {
	t.Parallel()
	s := beginApps(t, "explain-app-else")
	t.Run("more pods than its volume may have, and the command takes them back", func(t *testing.T) {
		sub := s.part(t)
		sub.deploys("scaled", s.name, stays)
		more := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":2}}`)) // the command line would reject it at once
		if err := suite.live.Patch(s.ctx, &tarn.App{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "scaled"}}, more); err != nil {
			t.Fatal(err)
		}
		sub.does(sub.explainsApp("scaled", "is refused: its spec is rejected: ", "volume 'data' is ReadWriteOnce").command())
		sub.explainsApp("scaled", "is Ready: 1 of 1 pods are ready")
		// When a user deletes its claim, the app continues, but not as its spec requires.
		sub.delete(s.claimed("scaled"))
		sub.explainsApp("scaled", "is not Ready: claim "+s.name+"/paas-app-scaled-data: it is used by pod "+s.name+"/paas-app-scaled-")
		claim := s.claimed("scaled")
		command := sub.explainsClaim(claim.Name, "is Terminating: it is used by pod "+s.name+"/paas-app-scaled-").command()
		if want := "tarn app scale scaled 0 --namespace " + s.name; command != want {
			t.Errorf("the command is %q, want %q", command, want)
		}
		claim = read(sub, claim)
		sub.does(command)
		sub.gone(claim)
	})
	t.Run("a volume that its node cannot stage", func(t *testing.T) {
		sub := s.part(t)
		class := sub.another("-unstaged", fields{"volumeCreation": asRequested, "volumeStaging": fails(nil)})
		sub.deploys("unstaged", class, stays, "--wait=false")
		sub.explainsApp("unstaged", "is not Ready: pod "+s.name+"/paas-app-unstaged-", "cannot be staged on node ", complaint)
	})
	t.Run("an end that waits for a pod, then for whoever else uses its claim, then for a finalizer", func(t *testing.T) {
		sub := s.part(t)
		sub.deploys("ends", s.name, "trap '' TERM; until [ -e /data/go ]; do sleep 0.1; done")
		sub.ready(sub.consumer("guest", s.claimed("ends").Name, stays))
		held := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["tarn.dev/app","example.org/audit"]}}`))
		app := &tarn.App{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "ends"}}
		if err := suite.live.Patch(s.ctx, app, held); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sub.unhold(app) })
		mustTool(t, 0, "", "app", "delete", "ends", "--namespace", s.name, "--yes", "--wait=false")
		sub.explainsApp("ends", "is Terminating: pod "+s.name+"/paas-app-ends-", "its containers have not ended")
		sub.kubectl("-n", s.name, "exec", "guest", "--", "touch", "/data/go") // before the kubelet kills it
		e := sub.explainsApp("ends", "is Terminating: claim "+s.name+"/paas-app-ends-data: it is used by ", s.name+"/guest")
		for _, l := range e.Links {
			if l.Object.Kind == "Pod" && l.Command != "" {
				sub.does(l.Command)
			}
		}
		sub.does(sub.explainsApp("ends", "is Terminating: finalizer example.org/audit keeps it").command())
		sub.gone(app)
	})
	t.Run("a pod that finds no node", func(t *testing.T) {
		sub := s.part(t)
		much := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "much"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("900")}, DefaultRequest: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("900")},
		}}}}
		sub.create(much)
		sub.deploys("unplaced", s.name, stays, "--wait=false")
		sub.explainsApp("unplaced", "is not Ready: pod "+s.name+"/paas-app-unplaced-", "the scheduler finds no node for it: ", "Insufficient cpu")
		sub.remove(much)
	})
}

func TestExplainSaysWhatTheVolumesOfAnAppWaitFor(t *testing.T) {
	t.Parallel()
	s := beginApps(t, "explain-app-volumes")
	t.Run("a volume that does not grow", func(t *testing.T) {
		sub := s.part(t)
		class := sub.classWith("-grows", s.name, func(class *storagev1.StorageClass) { class.AllowVolumeExpansion = new(true) })
		sub.deploys("grows", class, stays)
		mustTool(t, 0, "", "volume", "resize", "grows", "data", "2", "--namespace", s.name, "--wait=false")
		e := sub.explainsApp("grows", "is not Ready: claim "+s.name+"/paas-app-grows-data: it cannot be expanded, attempt ", "has no spec.volumeExpansion")
		if want := "kubectl edit pavprovisioner " + s.name; e.command() != want {
			t.Errorf("the command is %q, want %q", e.command(), want)
		}
		// The app's claim is not the cause for a pod that finds no node.
		lost := sub.consumer("lost", s.claimed("grows").Name, stays, func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{"e2e": "nowhere"} })
		sub.explains("pod", s.name+"/lost", "is not scheduled: the scheduler finds no node for it: ")
		sub.remove(lost)
	})
	t.Run("a volume that is to go", func(t *testing.T) {
		sub := s.part(t)
		sub.deploys("doomed", s.name, stays)
		vol := sub.volumeNamed(s.claimed("doomed").Name)
		sub.delete(vol)
		claim := "claim " + s.name + "/paas-app-doomed-data"
		sub.explainsApp("doomed", "is Ready: "+claim+": its volume "+vol.Name+" is being deleted, and still exists only because "+claim+" has it")
	})
	t.Run("a volume that was removed under it, and the command writes it anew", func(t *testing.T) {
		sub := s.part(t)
		sub.deploys("robbed", s.name, stays)
		mustTool(t, 0, "", "app", "scale", "robbed", "0", "--namespace", s.name)
		vol := sub.volumeNamed(s.claimed("robbed").Name)
		sub.delete(vol)
		sub.unhold(vol)
		sub.does(sub.explainsApp("robbed", ": claim "+s.name+"/paas-app-robbed-data: its volume "+vol.Name+" was deleted while the claim was bound to it").command())
		sub.explainsApp("robbed", "is Ready: 0 of 0 pods are ready")
	})
	t.Run("an end that waits for who uses a volume that it mounts no more", func(t *testing.T) {
		sub := s.part(t)
		sub.deploys("sheds", s.name, stays, "--wait=false")
		sub.ready(sub.consumer("keeper", s.claimed("sheds").Name, stays))
		mustTool(t, 0, "[app]\nimage = \"busybox:1.36\"\nreplicas = 0\n", "app", "deploy", "sheds", "--namespace", s.name, "--file", "-", "--wait=false")
		mustTool(t, 0, "", "app", "delete", "sheds", "--namespace", s.name, "--yes", "--wait=false")
		e := sub.explainsApp("sheds", "is Terminating: claim "+s.name+"/paas-app-sheds-data: it is used by pod "+s.name+"/keeper")
		for _, l := range e.Links {
			if l.Object.Kind == "Pod" && l.Command != "" {
				sub.does(l.Command)
			}
		}
		sub.gone(&tarn.App{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "sheds"}})
	})
}
