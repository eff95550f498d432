package protect

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// Namespace is all that is known about the unsettled claims of a namespace.
type Namespace struct {
	Claims []Claim
	// Listed says that Live was read: the namespace's pods in the API server, read after each claim
	// was seen to be unused.
	Listed bool
	Live   []corev1.Pod
	// ListError is why Live could not be read.
	ListError error
	// ListAt is the earliest time for the list; zero if none is needed.
	ListAt time.Time
}

// Claim is a claim that lacks its finalizer, or is being deleted and has it.
type Claim struct {
	Claim *corev1.PersistentVolumeClaim
	// Pods are the pods that name the claim, as far as the cache knows.
	Pods []corev1.Pod
	// Volume is the volume that the claim is bound to. It is nil if there is none, and also if no
	// pod that uses the claim has ended.
	Volume *corev1.PersistentVolume
	// Staged says that pods mount Volume through PavStages: it is a PavProvisioner's.
	Staged bool
	// Stages are the stages of Volume in the API server, read with Namespace.Live.
	Stages []tarnv1.PavStage
}

// Volume is all that is known about one volume.
type Volume struct {
	Volume *corev1.PersistentVolume
	// Claim is the claim whose UID the volume points at, from the API server. It is read only if
	// the volume may be released; nil if the claim is gone.
	Claim *corev1.PersistentVolumeClaim
}

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumes;pods,verbs=list;watch
// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages,verbs=list;watch
// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners,verbs=list;watch

// gather reads the claims of a namespace from the cache. It reads the pods live if the cache shows
// none that uses one of those claims, because the cache may be behind.
func (r *claims) gather(ctx context.Context, namespace string, now time.Time) (*Namespace, error) {
	v := &Namespace{}
	list := &corev1.PersistentVolumeClaimList{}
	if err := r.client.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{indexUnsettled: unsettled}); err != nil {
		return nil, fmt.Errorf("listing the claims of namespace %s: %w", namespace, err)
	}
	for i := range list.Items {
		claim := Claim{Claim: &list.Items[i]}
		if claim.Claim.DeletionTimestamp != nil {
			pods := &corev1.PodList{}
			if err := r.pods.List(ctx, pods, client.InNamespace(namespace), client.MatchingFields{kube.PodsByClaim: claim.Claim.Name}); err != nil {
				return nil, fmt.Errorf("listing the pods of claim %s/%s: %w", namespace, claim.Claim.Name, err)
			}
			claim.Pods = pods.Items
			if err := r.gatherVolume(ctx, &claim); err != nil {
				return nil, err
			}
		}
		v.Claims = append(v.Claims, claim)
	}
	if !mustList(v) {
		return v, nil
	}
	if v.ListAt = r.pace.earliest(namespace, now); v.ListAt.After(now) {
		return v, nil
	}
	r.pace.listed(namespace, now)
	pods := &corev1.PodList{}
	if err := r.live.List(ctx, pods, client.InNamespace(namespace)); err != nil {
		v.ListError = fmt.Errorf("listing the pods of namespace %s: %w", namespace, err)
		return v, nil //nolint:nilerr // claims that need no list are planned for before it is told
	}
	for i := range v.Claims {
		if v.ListError = r.gatherStages(ctx, &v.Claims[i], pods.Items); v.ListError != nil {
			return v, nil
		}
	}
	v.Listed, v.Live = true, pods.Items
	return v, nil
}

// gatherVolume reads from the cache what is needed to tell whether ended pods still have the
// claim's volume mounted.
func (r *claims) gatherVolume(ctx context.Context, c *Claim) error {
	used := slices.ContainsFunc(c.Pods, func(p corev1.Pod) bool { return volume.Uses(&p, c.Claim) && terminal(&p) })
	if !used || c.Claim.Spec.VolumeName == "" {
		return nil
	}
	vol, err := kube.Get(ctx, r.client, client.ObjectKey{Name: c.Claim.Spec.VolumeName}, &corev1.PersistentVolume{})
	if err != nil || vol == nil || vol.Spec.ClaimRef == nil || vol.Spec.ClaimRef.UID != c.Claim.UID {
		return err
	}
	c.Volume = vol
	if vol.Spec.CSI == nil {
		return nil
	}
	p, err := kube.Get(ctx, r.client, client.ObjectKey{Name: vol.Spec.CSI.Driver}, &pavv1.PavProvisioner{})
	c.Staged = p != nil
	return err
}

// gatherStages reads live the stages that decide whether a claim is released. It runs after the
// list of pods: once a pod has ended, the kubelet mounts nothing for it.
func (r *claims) gatherStages(ctx context.Context, c *Claim, pods []corev1.Pod) error {
	if !doomed(c) || !c.Staged || !usedByAny(pods, c.Claim) {
		return nil
	}
	stages := &tarnv1.PavStageList{}
	if err := r.live.List(ctx, stages, client.MatchingFields{"spec.volumeName": c.Volume.Name}); err != nil {
		return fmt.Errorf("listing the stages of volume %s: %w", c.Volume.Name, err)
	}
	c.Stages = slices.DeleteFunc(stages.Items, func(s tarnv1.PavStage) bool { return s.Void() })
	return nil
}

// gather reads a volume from the cache, nil if it does not exist. It reads the volume's claim live
// if the claim decides whether the volume is released.
func (r *volumes) gather(ctx context.Context, key client.ObjectKey) (*Volume, error) {
	vol, err := kube.Get(ctx, r.client, key, &corev1.PersistentVolume{})
	if err != nil || vol == nil {
		return nil, err
	}
	v := &Volume{Volume: vol}
	if !mustRead(v) {
		return v, nil
	}
	ref := vol.Spec.ClaimRef
	claim, err := kube.Get(ctx, r.live, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.PersistentVolumeClaim{})
	if err != nil || claim == nil || claim.UID != ref.UID {
		return v, err
	}
	v.Claim = claim
	return v, nil
}
