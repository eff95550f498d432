package plugin

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// The indexes hold only claims of the plugins, which are few in a cluster. The exception is the
// index by volume, because any claim may have drawn a volume from a pool. The index of missing
// volumes is empty while all is well.
const (
	indexClaimUID   = "inprocess.uid"
	indexClaimClass = "inprocess.class"   // those that wait for a volume
	indexMissing    = "inprocess.missing" // volumes, by the plugin that misses them
)

func (r *reconciler) addIndexes(indexer client.FieldIndexer) error {
	for name, key := range map[string]func(*corev1.PersistentVolumeClaim) []string{
		indexClaimUID: func(c *corev1.PersistentVolumeClaim) []string { return kube.UIDOf(c) },
		indexClaimClass: func(c *corev1.PersistentVolumeClaim) []string {
			if class := volume.ClassOf(c); class != "" && c.Spec.VolumeName == "" {
				return []string{class}
			}
			return nil
		},
	} {
		err := indexer.IndexField(context.Background(), &corev1.PersistentVolumeClaim{}, name, func(o client.Object) []string {
			if claim, ok := o.(*corev1.PersistentVolumeClaim); ok && r.ourClaim(claim) {
				return key(claim)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("indexing claims: %w", err)
		}
	}
	if err := indexer.IndexField(context.Background(), &corev1.PersistentVolume{}, indexMissing, r.missedBy); err != nil {
		return fmt.Errorf("indexing volumes: %w", err)
	}
	return nil
}

// missedBy is the key of a volume in the index of missing volumes. A plugin's place is fixed
// when the process starts, so the index need not change with it.
func (r *reconciler) missedBy(o client.Object) []string {
	vol, ok := o.(*corev1.PersistentVolume)
	if !ok {
		return nil
	}
	p, ours := r.plugins[vol.Annotations[volume.AnnProvisionedBy]]
	if !ours || vol.Annotations[tarnv1.AnnotationNode] != p.Node || p.Creator.Misses(madeVolume(vol)) == nil {
		return nil
	}
	return []string{p.Name}
}

// ourVolume reports whether one of the plugins has made a volume.
func (r *reconciler) ourVolume(o client.Object) bool {
	_, ours := r.plugins[o.GetAnnotations()[volume.AnnProvisionedBy]]
	return ours
}

// ofOthers leaves out the updates by which this controller set the phase Failed. The queue
// retries after its pause, and a message that varies each time would undo that pause.
var ofOthers = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	old, ok := e.ObjectOld.(*corev1.PersistentVolume)
	now, ok2 := e.ObjectNew.(*corev1.PersistentVolume)
	if !ok || !ok2 || !calledFailed(now) {
		return true
	}
	was := old.DeepCopy()
	was.Status, was.ResourceVersion, was.ManagedFields = now.Status, now.ResourceVersion, now.ManagedFields
	return !equality.Semantic.DeepEqual(was, now)
}}

// ourClaim reports whether a claim was assigned to one of the plugins, or has a promise.
func (r *reconciler) ourClaim(o client.Object) bool {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok {
		return false
	}
	_, ours := r.plugins[volume.ProvisionerOf(claim)]
	return ours || promised(claim)
}

// volumeName is the name of the volume made for a claim.
func volumeName(uid types.UID) string { return "pvc-" + string(uid) }

func claimUID(volumeName string) (types.UID, bool) {
	uid, ok := strings.CutPrefix(volumeName, "pvc-")
	return types.UID(uid), ok && uid != ""
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

func mapClaim(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{request(volumeName(o.GetUID()))}
}

// mapClass enqueues the claims that wait for a volume of a class.
func (r *reconciler) mapClass(ctx context.Context, o client.Object) []reconcile.Request {
	claims := &corev1.PersistentVolumeClaimList{}
	if err := r.client.List(ctx, claims, client.MatchingFields{indexClaimClass: o.GetName()}); err != nil {
		log.FromContext(ctx).Error(err, "listing the claims of a class", "class", o.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range claims.Items {
		requests = append(requests, request(volumeName(claims.Items[i].UID)))
	}
	return requests
}
