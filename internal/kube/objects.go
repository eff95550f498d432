package kube

import (
	"context"
	"fmt"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// Get reads an object into into. The result is nil if the object does not exist.
func Get[T client.Object](ctx context.Context, reader client.Reader, key client.ObjectKey, into T, options ...client.GetOption) (T, error) {
	var none T
	switch err := reader.Get(ctx, key, into, options...); {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("reading %T %s: %w", into, key, err)
	}
	return into, nil
}

// IsRefusal says whether the API server rejected a write for its content: a quota, a policy or a
// field. A retry alone does not help.
func IsRefusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// AddFinalizer adds a finalizer to an object, unless it is there. The patch replaces the whole
// list, so it names the version it was computed from. An object that no longer exists is no error.
func AddFinalizer[T client.Object](ctx context.Context, c client.Client, o T, finalizer string) error {
	if err := patchFinalizers(ctx, c, o, finalizer, controllerutil.AddFinalizer); err != nil {
		return fmt.Errorf("adding finalizer %s to %T %s: %w", finalizer, o, o.GetName(), err)
	}
	return nil
}

// RemoveFinalizer removes a finalizer from an object. The patch replaces the whole list, so it
// names the version it was computed from. An object that no longer exists, or has no such
// finalizer, is no error.
func RemoveFinalizer[T client.Object](ctx context.Context, c client.Client, o T, finalizer string) error {
	if err := patchFinalizers(ctx, c, o, finalizer, controllerutil.RemoveFinalizer); err != nil {
		return fmt.Errorf("removing finalizer %s from %T %s: %w", finalizer, o, o.GetName(), err)
	}
	return nil
}

func patchFinalizers(ctx context.Context, c client.Client, o client.Object, finalizer string, change func(client.Object, string) bool) error {
	base, ok := o.DeepCopyObject().(client.Object)
	if !ok || !change(o, finalizer) {
		return nil
	}
	return client.IgnoreNotFound(c.Patch(ctx, o, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})))
}

const (
	// noteBytes is the longest note of an Event, in bytes.
	noteBytes = 1024
	// messageBytes limits a message in a status, so that no text of a template or a pod makes an
	// object too large to be written.
	messageBytes = 4096
)

// RefusedWrite begins the Events in which the binder says that it may not write what a claim needs.
// Readers of Events recognise them by it.
const RefusedWrite = "the API server rejects a write: "

// Note cuts a message to the length limit of an Event.
func Note(message string) string { return Cut(message, noteBytes) }

// Message cuts a message to the length limit of a status.
func Message(message string) string { return Cut(message, messageBytes) }

// Cut shortens a text to at most most bytes, between two characters.
func Cut(text string, most int) string {
	const ellipsis = "..."
	if len(text) <= most {
		return text
	}
	end := most - len(ellipsis)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}
