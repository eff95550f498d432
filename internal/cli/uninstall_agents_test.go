package cli

import (
	"context"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// What such a pod has mounted of Tarn, nobody but the node agent unmounts.
func TestTheNodeAgentsGoAfterTheLastPodOfAProvisioner(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pav-deletion-1", Labels: map[string]string{tarnv1.LabelStep: string(tarnv1.StepDeletion)}}}
	agents := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "tarn-node"}}
	var story []string
	looks := 0
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(pod, agents).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if looks++; looks == 3 { // the kubelet lets it go at last
				story = append(story, "the pod goes")
				if err := c.Delete(ctx, pod.DeepCopy()); err != nil {
					t.Error(err)
				}
			}
			return c.List(ctx, list, options...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			if o.GetName() == agents.Name {
				story = append(story, "the agents go")
			}
			return c.Delete(ctx, o, options...)
		},
	}).Build()
	if err := (&uninstaller{client: c}).endAgents(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"the pod goes", "the agents go"}; !slices.Equal(story, want) {
		t.Errorf("%q, want %q", story, want)
	}
}
