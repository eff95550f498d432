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

// View is all that is known about one App. What does not exist is nil.
type View struct {
	App *tarnv1.App
	// Config and Deployment have the names that the App's are to have, whosever they are.
	Config     *corev1.ConfigMap
	Deployment *appsv1.Deployment
	// Deployed is what Config says of the volumes.
	Deployed topology
	// Pods are the App's, trimmed as kube.AllPods has them, by name; empty where no cache
	// of them is kept.
	Pods []*corev1.Pod
	// Claims are those with the App's label, and those of a name that it wants or had,
	// by name.
	Claims map[string]*corev1.PersistentVolumeClaim
	// Classes are those of the claims, by name.
	Classes map[string]*storagev1.StorageClass
	// Defaults are the classes of volumes that name none, by access mode.
	Defaults map[appspec.AccessMode]string
	// Refused is what the API server said to the writes that it did not take.
	Refused string
}

// +kubebuilder:rbac:groups=tarn.dev,resources=apps,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=configmaps;persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch

// gather reads the View of one App: its claims and classes from the cache, or from the API
// server where what is decided cannot be taken back. Of the App, its ConfigMap and its
// Deployment the cache has but a little, so they are read from the API server always.
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

// world is the View as app/plan has it.
func (v *View) world() appplan.World {
	return appplan.World{App: v.App, Claims: v.Claims, Classes: v.Classes, Defaults: v.Defaults}
}

// claim gives the claim of a volume, nil if there is none that is the App's.
func (v *View) claim(volume string) *corev1.PersistentVolumeClaim {
	claim := v.Claims[appspec.ClaimName(v.App.Name, volume)]
	if claim == nil || !appplan.Owned(claim, v.App.Name, volume) {
		return nil
	}
	return claim
}

// mode is the access mode of a volume: that of its claim, or what it is to be.
func (v *View) mode(volume *tarnv1.AppVolume) corev1.PersistentVolumeAccessMode {
	if claim := v.claim(volume.Name); claim != nil {
		return appplan.ModeOf(claim)
	}
	return volume.AccessMode
}
