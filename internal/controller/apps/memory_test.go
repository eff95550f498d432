//go:build integration

package apps

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

func TestLargeObjectsOfATenantLeaveTheHeapAsItIs(t *testing.T) {
	const each, most = 16, 8 << 20
	w := newWorld(t, testkit.APIServer(t), "hoard")
	large := map[string]string{"example.com/large": strings.Repeat("x", 200<<10)}
	for i := range each {
		of := func(name string) metav1.ObjectMeta {
			return metav1.ObjectMeta{Namespace: w.namespace, Name: fmt.Sprintf("%s-%d", name, i), Annotations: large, Labels: map[string]string{tarnv1.LabelApp: fmt.Sprintf("none-%d", i)}}
		}
		container := corev1.Container{Name: "c", Image: "i", Args: []string{strings.Repeat("x", 800<<10)}}
		labels := map[string]string{"of": "hoard"}
		w.Must(w.Client.Create(w.Ctx, &corev1.ConfigMap{ObjectMeta: of("config"), Data: map[string]string{"x": strings.Repeat("x", 1<<20-1)}}))
		w.Must(w.Client.Create(w.Ctx, &appsv1.Deployment{ObjectMeta: of("workload"), Spec: appsv1.DeploymentSpec{
			Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{container}}},
		}}))
		w.Must(w.Client.Create(w.Ctx, &tarnv1.App{ObjectMeta: of("app"), Spec: tarnv1.AppSpec{Args: []string{strings.Repeat("x", 200<<10)}}}))
	}
	w.Eventually("following what is there", func() string { // the mirror is in the same heap
		apps, workloads := &tarnv1.AppList{}, &appsv1.DeploymentList{}
		w.Must(w.Mirror.List(w.Ctx, apps, client.InNamespace(w.namespace)))
		w.Must(w.Mirror.List(w.Ctx, workloads, client.InNamespace(w.namespace)))
		return map[bool]string{false: "not all are there"}[len(apps.Items) == each && len(workloads.Items) == each]
	})
	before := heap()
	defer w.runAsInACluster()()
	app := w.app("shop", volumeOf("data", 1))
	w.ready(app)
	if grown := heap() - before; grown > most {
		t.Errorf("the heap has grown by %d MiB for %d MiB of a tenant's objects, want %d at most", grown>>20, each*2, most>>20)
	}
}

// heap is the size of the live heap, in bytes.
func heap() int64 {
	runtime.GC()
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	return int64(now.HeapAlloc)
}
