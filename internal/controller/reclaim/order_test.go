package reclaim

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// goesInOrder reconciles until the volume is gone. It checks the order: the deletion pod ends, the
// volume is deleted, its finalizer is removed, the record is deleted.
func (e *ending) goesInOrder(number string) {
	e.t.Helper()
	var gone []string // without pods
	store, ok := e.store.(client.WithWatch)
	if !ok {
		e.t.Fatalf("the client is %T", e.store)
	}
	e.client = interceptor.NewClient(store, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			o.SetCreationTimestamp(metav1.NewTime(now)) // there is no API server to set it
			return c.Create(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if _, pod := o.(*corev1.Pod); !pod {
				gone = append(gone, fmt.Sprintf("%T", o))
			}
			return c.Delete(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if _, vol := o.(*corev1.PersistentVolume); vol && !slices.Contains(o.GetFinalizers(), kube.FinalizerExternalProvisioner) {
				gone = append(gone, "finalizer")
			}
			return c.Patch(ctx, o, patch, opts...)
		},
	})
	e.steps = &steppod.Steps{Client: e.client, Reader: e.store}
	for range 4 {
		if err := e.look(); err != nil {
			e.t.Fatal(err)
		}
	}
	if e.status().Phase != tarnv1.VolumeDeleting || e.pods() != 1 || len(gone) > 0 {
		e.t.Fatalf("%s: the record is %s, %d pods, and %q has gone; want its deletion pod alone", number, e.status().Phase, e.pods(), gone)
	}
	pods := &corev1.PodList{}
	if err := e.store.List(e.t.Context(), pods); err != nil {
		e.t.Fatal(err)
	}
	pod := &pods.Items[0]
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, tarnv1.AnnotationResult, `{"succeeded": true}`)
	if err := e.store.Update(e.t.Context(), pod); err != nil {
		e.t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodSucceeded // the kubelet's status alone says that a deletion is done
	if err := e.store.Status().Update(e.t.Context(), pod); err != nil {
		e.t.Fatal(err)
	}
	if err := e.look(); err != nil {
		e.t.Fatal(err)
	}
	if want := []string{"*v1.PersistentVolume", "finalizer", "*v1alpha1.PavVolume"}; !slices.Equal(gone, want) {
		e.t.Errorf("%s: after the storage has gone %q, want %q", number, gone, want)
	}
	for _, o := range []client.Object{&corev1.PersistentVolume{}, &tarnv1.PavVolume{}} {
		if there, err := kube.Get(e.t.Context(), e.store, types.NamespacedName{Name: "pvc-u1"}, o); err != nil || there != nil {
			e.t.Errorf("%s: %T is there, %v", number, o, err)
		}
	}
}

func TestAReleasedVolumeGoesWhateverClaimHasTheName(t *testing.T) {
	for _, c := range []struct {
		name string
		uid  types.UID
		has  string
	}{
		{"cases 122 and 129: one that is made anew, and has another volume", "u2", "pvc-u2"},
		{"case 46: one that names the volume, which has the uid of another cluster", "u2", "pvc-u1"},
		{"case 46: one that waits", "u2", ""},
		{"cases 76 and 115: the very claim, with another volume", "u1", "other"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := releasedWith(t, c.uid, func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = c.has })
			e.goesInOrder(c.name)
			claim := &corev1.PersistentVolumeClaim{}
			if err := e.store.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "data"}, claim); err != nil || claim.Spec.VolumeName != c.has {
				t.Errorf("the claim is %+v, %v, want it left alone", claim, err)
			}
		})
	}
}
