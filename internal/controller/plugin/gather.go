package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/volume"
)

// View is all that a decision about one volume, made or to be made, depends on. A nil object
// does not exist.
type View struct {
	// VolumeName is the name of the volume, for the plugin and in the API.
	VolumeName string
	Volume     *corev1.PersistentVolume
	// Claim is the claim with the UID in the volume's name; nil if the name has no UID.
	Claim *corev1.PersistentVolumeClaim
	Class *storagev1.StorageClass
	// Plugin is the plugin of the volume; nil if this process does not run it.
	Plugin *plugin.Plugin
	// Node is the plugin's node, read if a volume may have to be made there.
	Node *corev1.Node
	// Namespace is Tarn's own. Volumes of claims there hold no user data.
	Namespace string
	// Retention is the retention of an existing volume.
	Retention volume.Retention
	// Missing says that the plugin's present storage does not contain this volume, or another
	// one of its node. The storage may not be mounted.
	Missing error
	// Unserved says why the plugin can never serve the claim.
	Unserved error
}

// gather reads the View of one volume from the cache.
func (r *reconciler) gather(ctx context.Context, name string) (*View, error) {
	v := &View{VolumeName: name, Namespace: r.namespace}
	var err error
	if v.Volume, err = kube.Get(ctx, r.client, client.ObjectKey{Name: name}, &corev1.PersistentVolume{}); err != nil {
		return nil, err
	}
	if uid, ok := claimUID(name); ok {
		if v.Claim, err = kube.ClaimByUID(ctx, r.client, indexClaimUID, uid); err != nil {
			return nil, err
		}
	}
	v.Plugin = r.pluginOf(v)
	if v.Volume != nil && v.Plugin != nil {
		v.Retention, err = kube.RetentionOf(ctx, r.client, v.Volume, nil)
		return v, err
	}
	if v.Volume != nil || v.Claim == nil || v.Plugin == nil {
		return v, nil
	}
	if v.Missing, err = r.missing(ctx, v); err != nil {
		return nil, err
	}
	if class := volume.ClassOf(v.Claim); class != "" {
		if v.Class, err = kube.Get(ctx, r.client, client.ObjectKey{Name: class}, &storagev1.StorageClass{}); err != nil {
			return nil, err
		}
	}
	if v.Class == nil {
		return v, nil
	}
	if !tooLarge(v.Claim) {
		v.Unserved = v.Plugin.Creator.Check(newRequest(v))
	}
	if v.Plugin.Node != "" {
		v.Node, err = kube.Get(ctx, r.client, client.ObjectKey{Name: v.Plugin.Node}, &corev1.Node{})
	}
	return v, err
}

// missing returns which volume the plugin's storage lacks: the one begun for the claim, else
// the first of all its volumes.
func (r *reconciler) missing(ctx context.Context, v *View) (found, failed error) {
	if promised(v.Claim) {
		if found := v.Plugin.Creator.Misses(begunVolume(v)); found != nil {
			return found, nil
		}
	}
	volumes := &corev1.PersistentVolumeList{}
	if err := r.client.List(ctx, volumes, client.MatchingFields{indexMissing: v.Plugin.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the volumes that %s misses: %w", v.Plugin.Name, err)
	}
	if len(volumes.Items) == 0 {
		return nil, nil
	}
	first := slices.MinFunc(volumes.Items, func(a, b corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	return v.Plugin.Creator.Misses(madeVolume(&first)), nil
}

// pluginOf returns the plugin of the volume. The volume's annotation decides, then the claim's
// promise, then the rest of the claim.
func (r *reconciler) pluginOf(v *View) *plugin.Plugin {
	var name string
	switch {
	case v.Volume != nil:
		name = v.Volume.Annotations[volume.AnnProvisionedBy]
	case v.Claim != nil && promised(v.Claim):
		name = v.Claim.Annotations[tarnv1.AnnotationPlugin]
	case v.Claim != nil:
		name = volume.ProvisionerOf(v.Claim)
	}
	if p, runs := r.plugins[name]; runs {
		return &p
	}
	return nil
}
