package provisioner

import (
	"cmp"
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

// +kubebuilder:rbac:groups=storage.k8s.io,resources=csistoragecapacities,verbs=list;watch;create;patch;delete,namespace=tarn-system
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch

// gatherCapacity reads the CSIStorageCapacity objects of the provisioner, and evaluates which there
// should be.
func (r *Reconciler) gatherCapacity(ctx context.Context, v *View) error {
	p := v.Provisioner
	var capacities storagev1.CSIStorageCapacityList
	if err := r.client.List(ctx, &capacities, client.InNamespace(tarnv1.SystemNamespace), client.MatchingLabels{tarnv1.LabelProvisioner: p.Name}); err != nil {
		return fmt.Errorf("listing CSIStorageCapacities of %s: %w", p.Name, err)
	}
	v.Capacities = capacities.Items
	if p.Spec.NodeCapacity == nil && len(v.Problems) == 0 {
		return nil
	}
	var classes storagev1.StorageClassList
	if err := r.client.List(ctx, &classes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing StorageClasses: %w", err)
	}
	var nodes corev1.NodeList
	if err := r.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing Nodes: %w", err)
	}
	for i := range classes.Items {
		class := &classes.Items[i]
		if class.Provisioner != p.Name || ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) != storagev1.VolumeBindingWaitForFirstConsumer {
			continue // the scheduler does not ask
		}
		v.Classes = append(v.Classes, class.Name)
		if len(v.Problems) > 0 {
			continue
		}
		one := room{class: class.Name}
		var err error
		if one.path, one.reserve, err = steppod.RoomFor(ctx, p, class); err != nil {
			one.problem = err.Error()
		}
		for j := range nodes.Items {
			one.node = nodes.Items[j].Name
			one.hostname = cmp.Or(nodes.Items[j].Labels[corev1.LabelHostname], one.node)
			v.Rooms = append(v.Rooms, one)
		}
	}
	return nil
}

// measured names the provisioners that a node which came, went or was renamed concerns.
func (r *Reconciler) measured(ctx context.Context, old, current client.Object) []string {
	if old != nil && current != nil && old.GetLabels()[corev1.LabelHostname] == current.GetLabels()[corev1.LabelHostname] {
		return nil
	}
	var provisioners pavv1.PavProvisionerList
	if err := r.client.List(ctx, &provisioners, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache has stopped
	}
	var names []string
	for i := range provisioners.Items {
		if provisioners.Items[i].Spec.NodeCapacity != nil {
			names = append(names, provisioners.Items[i].Name)
		}
	}
	return names
}

// ofCapacity names the provisioner of an object. What a node agent has measured is ignored.
func ofCapacity(c change) []string {
	if c.old != nil && c.current != nil && maps.Equal(c.old.GetAnnotations(), c.current.GetAnnotations()) {
		return nil
	}
	if name := c.either().GetLabels()[tarnv1.LabelProvisioner]; name != "" {
		return []string{name}
	}
	return nil
}

// ofClass enqueues the provisioner of a class at once: until the class has its objects, the
// scheduler finds no node for it.
func ofClass(_ context.Context, o client.Object) []reconcile.Request {
	class, ok := o.(*storagev1.StorageClass)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: class.Provisioner}}}
}
