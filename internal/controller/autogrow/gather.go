package autogrow

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/kubelet"
	"tarn.dev/tarn/internal/volume"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=list;watch;patch
// +kubebuilder:rbac:groups="",resources=nodes;pods,verbs=list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// View is all that a decision about one claim on one node depends on. Claim and class share memory
// with the cache and must not be changed.
type View struct {
	Claim *corev1.PersistentVolumeClaim
	// Class is the claim's class, nil if it has none or if that does not exist.
	Class *storagev1.StorageClass
	// Unanswered says why the kubelet did not answer the last two questions; empty if it answered
	// one. A kubelet that restarts does not answer for a moment.
	Unanswered string
	// Usage is what the kubelet last said about the claim, nil for nothing.
	Usage *kubelet.Usage
	// Memory is that of the plan before; its zero value if there was none.
	Memory Memory
}

// gather reads the Views of the annotated claims that pods of a node use. It asks the kubelet if
// that is due. next is when that is due again, zero for never.
func (r *reconciler) gather(ctx context.Context, name string, n *node, now time.Time) (views []View, next time.Time, err error) {
	pods := &corev1.PodList{}
	if err := r.pods.List(ctx, pods, client.MatchingFields{podsByNode: name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, next, fmt.Errorf("listing the pods of node %s: %w", name, err)
	}
	seen := map[client.ObjectKey]bool{}
	mounted := false
	for i := range pods.Items {
		pod := &pods.Items[i]
		for _, claimName := range volume.ClaimsOfPod(pod) {
			key := client.ObjectKey{Namespace: pod.Namespace, Name: claimName}
			if seen[key] || volume.Ended(pod) {
				continue
			}
			claim, class, err := r.annotated(ctx, key)
			if err != nil {
				return nil, next, err
			}
			if claim == nil || !volume.Uses(pod, claim) {
				continue
			}
			seen[key] = true
			mounted = mounted || !isBlock(claim)
			views = append(views, View{Claim: claim, Class: class, Memory: r.remembered(n, claim.UID)})
		}
	}
	if !mounted {
		return views, next, nil
	}
	if now.Sub(n.asked) >= r.period {
		if err := r.ask(ctx, name, n, seen, now); err != nil {
			return nil, next, err
		}
	}
	for i := range views {
		v := &views[i]
		if n.failures > 1 {
			v.Unanswered = n.unanswered
		}
		if usage, is := n.usage[client.ObjectKeyFromObject(v.Claim)]; is {
			v.Usage = &usage
		}
	}
	return views, n.asked.Add(r.period), nil
}

// ask asks the kubelet of a node, and keeps its answer about the wanted claims.
func (r *reconciler) ask(ctx context.Context, name string, n *node, wanted map[client.ObjectKey]bool, now time.Time) error {
	object, err := kube.Get(ctx, r.client, client.ObjectKey{Name: name}, &corev1.Node{}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return err
	}
	n.asked = now
	n.failures++
	if object == nil {
		n.unanswered = fmt.Sprintf("node %s does not exist", name)
		return nil
	}
	usage, err := r.kubelets.Node(ctx, object)
	if ctx.Err() != nil {
		return ctx.Err() // the process ends, which says nothing about the kubelet
	}
	if err != nil {
		n.unanswered = err.Error()
		if unverified := (*tls.CertificateVerificationError)(nil); errors.As(err, &unverified) {
			n.unanswered += "; let the cluster's authority sign the certificates of kubelets (serverTLSBootstrap), or start tarn controller with --kubelet-insecure-tls"
		}
		return nil
	}
	n.failures = 0
	n.usage = make(map[client.ObjectKey]kubelet.Usage, len(wanted))
	for key, told := range usage {
		if wanted[key] {
			n.usage[key] = told
		}
	}
	return nil
}

// annotated gives a claim with its class if the two have a setting. The claim is nil if they have
// none, or if it does not exist.
func (r *reconciler) annotated(ctx context.Context, key client.ObjectKey) (*corev1.PersistentVolumeClaim, *storagev1.StorageClass, error) {
	if key.Namespace == r.namespace {
		return nil, nil, nil
	}
	claim, err := kube.Get(ctx, r.client, key, &corev1.PersistentVolumeClaim{}, client.UnsafeDisableDeepCopy)
	if err != nil || claim == nil {
		return nil, nil, err
	}
	var class *storagev1.StorageClass
	if name := volume.ClassOf(claim); name != "" {
		if class, err = kube.Get(ctx, r.client, client.ObjectKey{Name: name}, &storagev1.StorageClass{}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, nil, err
		}
	}
	if grow, wrong := volume.AutoGrowOf(claim, class); grow == nil && wrong == nil {
		return nil, nil, nil
	}
	return claim, class, nil
}

func isBlock(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
}
