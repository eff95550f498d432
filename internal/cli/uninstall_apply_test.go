package cli

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

// Only the node agent unmounts what such a pod has mounted of Tarn's.
func TestTheNodeAgentsGoAfterTheLastPodOfAProvisioner(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pav-deletion-1", Labels: map[string]string{tarnv1.LabelStep: string(tarnv1.StepDeletion)}}}
	agents := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "tarn-node"}}
	var story []string
	looks := 0
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(pod, agents).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if looks++; looks == 3 { // the kubelet releases it at last
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

// A partly destroyed volume is useless, while a complete one needs no controller.
func TestWhereVolumesAreKeptTheControllersEndWhatTheyAreDestroying(t *testing.T) {
	whole := testkit.Record(testkit.Claim("shop", "data", "whole", "shelf"), "shelf", tarnv1.VolumeCreated)
	half := testkit.Record(testkit.Claim("shop", "old", "half", "shelf"), "shelf", tarnv1.VolumeDeleting)
	looks := 0
	c := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(whole, half, testkit.Volume(whole), testkit.Volume(half, wasReleased, provisioned)).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, ok := list.(*tarnv1.PavVolumeList); ok {
				if looks++; looks == 3 { // its destruction ends at last
					half.Finalizers = nil
					if err := errors.Join(c.Update(ctx, half.DeepCopy()), c.Delete(ctx, half.DeepCopy())); err != nil {
						t.Error(err)
					}
				}
			}
			return c.List(ctx, list, options...)
		},
	}).Build()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := (&uninstaller{client: c, keep: true}).do(ctx, stepDestruction, nil); err != nil || looks != 3 {
		t.Errorf("after %d looks: %v, want none but the volume under destruction to be waited for", looks, err)
	}
}

// A pool counts as not empty while the record of a deleted spare volume exists.
func TestPoolsAreEmptyWhenTheRecordsOfTheirSparesAreGone(t *testing.T) {
	record := testkit.Record(testkit.Claim(Namespace, "pool-set-uid-1", "u", "shelf"), "shelf", tarnv1.VolumeDeleting)
	in := whatIs(pooled)
	in.volumes = append(in.volumes, *testkit.Volume(record, spare))
	looks := 0
	c := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(record).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, ok := list.(*tarnv1.PavVolumeList); ok {
				if looks++; looks == 2 {
					record.Finalizers = nil
					if err := errors.Join(c.Update(ctx, record.DeepCopy()), c.Delete(ctx, record.DeepCopy())); err != nil {
						t.Error(err)
					}
				}
			}
			return c.List(ctx, list, options...)
		},
	}).Build()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := (&uninstaller{client: c, keep: true}).do(ctx, stepPools, in); err != nil || looks != 2 {
		t.Errorf("after %d looks: %v, want the record to be waited for", looks, err)
	}
}

func TestAVolumeWhoseRecordGoesSaysThatItWasMade(t *testing.T) {
	saysRecord := func(uid string) testkit.With[*corev1.PersistentVolume] {
		return func(v *corev1.PersistentVolume) {
			v.Annotations = map[string]string{tarnv1.AnnotationRecord: uid}
		}
	}
	gone := func(in *installed) { in.records = nil }
	for _, c := range []struct {
		name string
		in   *installed
		want string
	}{
		{"its record is there", whatIs(made(saysRecord("record-u"))), "volume-pvc-u"},
		{"its record went, and it has said so since", whatIs(made(saysRecord("record-u"), func(v *corev1.PersistentVolume) {
			v.Annotations[tarnv1.AnnotationKept] = "volume-pvc-u"
		}), gone), "volume-pvc-u"},
		{"it was restored from a backup, without its record", whatIs(made(saysRecord("record-u")), gone), ""},
		{"it was restored from a backup, beside another record", whatIs(made(saysRecord("another"))), ""},
		{"it was written by hand", whatIs(made(), gone), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := fake.NewClientBuilder().WithScheme(kube.Scheme())
			for i := range c.in.volumes {
				b = b.WithObjects(c.in.volumes[i].DeepCopy())
			}
			for i := range c.in.records {
				b = b.WithObjects(c.in.records[i].DeepCopy())
			}
			u := &uninstaller{client: b.Build(), keep: true}
			vol := &c.in.volumes[0]
			if err := u.client.Get(t.Context(), client.ObjectKeyFromObject(vol), vol); err != nil {
				t.Fatal(err)
			}
			if err := u.letVolumesGo(t.Context(), c.in); err != nil {
				t.Fatal(err)
			}
			left := &corev1.PersistentVolume{}
			if err := u.client.Get(t.Context(), client.ObjectKeyFromObject(vol), left); err != nil {
				t.Fatal(err)
			}
			if got := left.Annotations[tarnv1.AnnotationKept]; got != c.want {
				t.Errorf("%s is %q, want %q", tarnv1.AnnotationKept, got, c.want)
			}
		})
	}
}
