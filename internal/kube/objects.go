package kube

import (
	"context"
	"fmt"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// FinalizerExternalProvisioner keeps a PersistentVolume until its provisioner has
// destroyed the storage behind it; the name is Kubernetes' own.
const FinalizerExternalProvisioner = "external-provisioner.volume.kubernetes.io/finalizer"

// Get reads an object into into, nil if there is none.
func Get[T client.Object](ctx context.Context, reader client.Reader, key client.ObjectKey, into T) (T, error) {
	var none T
	switch err := reader.Get(ctx, key, into); {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("reading %T %s: %w", into, key, err)
	}
	return into, nil
}

// RemoveFinalizer takes a finalizer off an object. The patch names the version it
// was computed from, since it replaces the whole list; an object that is gone, or
// has no such finalizer, is no error.
func RemoveFinalizer[T client.Object](ctx context.Context, c client.Client, o T, finalizer string) error {
	base, ok := o.DeepCopyObject().(client.Object)
	if !ok || !controllerutil.RemoveFinalizer(o, finalizer) {
		return nil
	}
	err := c.Patch(ctx, o, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("taking finalizer %s off %T %s: %w", finalizer, o, o.GetName(), err)
	}
	return nil
}

// Note cuts a message to what an Event may hold, 1 KiB.
func Note(message string) string {
	const most = 1000
	if len(message) <= most {
		return message
	}
	end := most
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "..."
}
