package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/plugintest"
	"tarn.dev/tarn/internal/volume"
)

// deletions records in which order the parts of a volume are deleted.
type deletions struct {
	plugin.Deleter
	gone []string
}

func (d *deletions) Delete(ctx context.Context, v plugin.Volume) error {
	err := d.Deleter.Delete(ctx, v)
	if err == nil {
		d.gone = append(d.gone, "storage")
	}
	return err
}

// of makes a controller record the deletion of the volume and the removal of its finalizer.
func (d *deletions) of(t *testing.T, r *reconciler) {
	t.Helper()
	p := r.plugins[fakeName]
	d.Deleter, p.Deleter = p.Deleter, d
	r.plugins[fakeName] = p
	store, ok := r.client.(client.WithWatch)
	if !ok {
		t.Fatalf("the client is %T", r.client)
	}
	r.client = interceptor.NewClient(store, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			d.gone = append(d.gone, fmt.Sprintf("%T", o))
			return c.Delete(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if !slices.Contains(o.GetFinalizers(), volume.FinalizerExternal) {
				d.gone = append(d.gone, "finalizer")
			}
			return c.Patch(ctx, o, patch, opts...)
		},
	})
}

func TestCase122TheStorageGoesThenTheVolumeThenItsFinalizer(t *testing.T) {
	all := []string{"storage", "*v1.PersistentVolume", "finalizer"}
	for name, c := range map[string]struct {
		edit func(*corev1.PersistentVolume)
		want []string
	}{
		"one that is released":          {leftBehind, all},
		"one that somebody has deleted": {func(vol *corev1.PersistentVolume) { vol.Status.Phase = corev1.VolumeAvailable }, []string{"storage", "finalizer"}},
		"none of one that is bound":     {func(vol *corev1.PersistentVolume) { leftBehind(vol); vol.Status.Phase = corev1.VolumeBound }, nil},
		"none of one that others fail":  {func(vol *corev1.PersistentVolume) { leftBehind(vol); vol.Status.Phase = corev1.VolumeFailed }, nil},
		"one finalizer of one kept": {func(vol *corev1.PersistentVolume) {
			leftBehind(vol)
			vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}, []string{"finalizer"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, f, _ := toGo(t, c.edit)
			d := &deletions{}
			d.of(t, r)
			f.Break(plugintest.Delete, fmt.Errorf("%w: it is attached", plugin.ErrInUse))
			attached := slices.Contains(c.want, "storage")
			if _, err := look(t, r); attached != errors.Is(err, plugin.ErrInUse) {
				t.Errorf("while it is attached: %v, want to be asked again: %t", err, attached)
			}
			if attached && len(d.gone) > 0 {
				t.Errorf("while it is attached %q has gone", d.gone)
			}
			f.Break(plugintest.Delete, nil)
			if _, err := look(t, r); err != nil || !slices.Equal(d.gone, c.want) {
				t.Errorf("gone are %q, %v; want %q", d.gone, err, c.want)
			}
		})
	}
}
