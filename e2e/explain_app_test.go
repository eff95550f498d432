//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
