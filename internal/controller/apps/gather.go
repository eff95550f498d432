package apps

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/kube"
)

// View is all that a decision about one App depends on. A nil object does not exist.
type View struct {
	App *tarnv1.App
	// Config and Deployment are the objects with the names of the App's, even if another owner
	// has made them.
	Config     *corev1.ConfigMap
	Deployment *appsv1.Deployment
	// Deployed is what Config says of the volumes.
	Deployed topology
	// Pods are the App's, by name and trimmed as in kube.AllPods; empty without a cache of
	// them.
	Pods []*corev1.Pod
	// Claims are those with the App's label, and those with a name that the App wants or had,
	// by name.
	Claims map[string]*corev1.PersistentVolumeClaim
	// Classes are the classes of the claims, by name.
	Classes map[string]*storagev1.StorageClass
	// Defaults are the default classes of volumes, by access mode.
	Defaults map[appspec.AccessMode]string
	// Refused is the API server's message about the writes that it rejected.
	Refused string
}

// +kubebuilder:rbac:groups=tarn.dev,resources=apps,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=configmaps;persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch

// gather reads the View of one App. It reads claims and classes from the cache, or from the API
// server for a decision that cannot be undone. It always reads the App, its ConfigMap and its
// Deployment from the API server, because the cache has only a part of them.
func (r *reconciler) gather(ctx context.Context, from client.Reader, key client.ObjectKey) (*View, error) {
	v := &View{Defaults: r.classes}
	var err error
	if v.App, err = kube.Get(ctx, r.reader, key, &tarnv1.App{}); err != nil || v.App == nil {
		return v, err
	}
	own := client.ObjectKey{Namespace: key.Namespace, Name: ownName(v.App)}
	if v.Config, err = kube.Get(ctx, r.reader, own, &corev1.ConfigMap{}); err != nil {
		return nil, err
	}
	if v.Deployment, err = kube.Get(ctx, r.reader, own, &appsv1.Deployment{}); err != nil {
		return nil, err
	}
	if ours(v.App, v.Config) {
		v.Deployed = readTopology(v.Config)
	}
	if err := errors.Join(gatherClaims(ctx, from, v), r.gatherPods(ctx, v)); err != nil {
		return nil, err
	}
	if v.Config == nil && v.App.DeletionTimestamp != nil {
		v.Deployed = topologyLeft(v)
	}
	return v, gatherClasses(ctx, from, v)
}

func gatherClaims(ctx context.Context, from client.Reader, v *View) error {
	list := &corev1.PersistentVolumeClaimList{}
	if err := from.List(ctx, list, client.InNamespace(v.App.Namespace), client.MatchingLabels{tarnv1.LabelApp: v.App.Name}); err != nil {
		return fmt.Errorf("listing the claims of App %s/%s: %w", v.App.Namespace, v.App.Name, err)
	}
	v.Claims = map[string]*corev1.PersistentVolumeClaim{}
	for i := range list.Items {
		v.Claims[list.Items[i].Name] = &list.Items[i]
	}
	var names []string
	for _, volume := range v.App.Spec.Volumes {
		names = append(names, appspec.ClaimName(v.App.Name, volume.Name))
	}
	for _, volume := range v.Deployed.Volumes {
		names = append(names, volume.ClaimName)
	}
	for _, name := range names {
		if v.Claims[name] != nil {
			continue
		}
		claim, err := kube.Get(ctx, from, client.ObjectKey{Namespace: v.App.Namespace, Name: name}, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return err
		}
		if claim != nil {
			v.Claims[name] = claim
		}
	}
	return nil
}

func gatherClasses(ctx context.Context, from client.Reader, v *View) error {
	v.Classes = map[string]*storagev1.StorageClass{}
	for _, name := range v.world().ClassNames(nil) {
		class, err := kube.Get(ctx, from, client.ObjectKey{Name: name}, &storagev1.StorageClass{})
		if err != nil {
			return err
		}
		if class != nil {
			v.Classes[name] = class
		}
	}
	return nil
}

// world is the View in the form that app/plan uses.
func (v *View) world() appplan.World {
	return appplan.World{App: v.App, Claims: v.Claims, Classes: v.Classes, Defaults: v.Defaults}
}

// claim returns the claim of a volume; nil if the App has none.
func (v *View) claim(volume string) *corev1.PersistentVolumeClaim {
	claim := v.Claims[appspec.ClaimName(v.App.Name, volume)]
	if claim == nil || !appplan.Owned(claim, v.App.Name, volume) {
		return nil
	}
	return claim
}

// mode is the access mode of a volume: that of its claim, or that of the claim to be created.
func (v *View) mode(volume *tarnv1.AppVolume) corev1.PersistentVolumeAccessMode {
	if claim := v.claim(volume.Name); claim != nil {
		return appplan.ModeOf(claim)
	}
	return volume.AccessMode
}
