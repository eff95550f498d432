package pool

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes;pods;nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups=tarn.dev,resources=persistentvolumesets;pavvolumes,verbs=get;list;watch
// +kubebuilder:rbac:groups=tarn.dev,resources=persistentvolumesetscalers,verbs=list;watch
// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners,verbs=get;list;watch

// View is all that a decision about one pool depends on. A nil object does not exist.
type View struct {
	Set *tarnv1.PersistentVolumeSet
	// Namespace and PauseImage are those of fillers.
	Namespace, PauseImage string
	// Burst is how many volumes drawn at once delay orders.
	Burst int
	// Class is the template's class, Filler the set's own copy of it.
	Class, Filler *storagev1.StorageClass
	// Provisioner is the PavProvisioner of the class; nil also if the class uses another
	// driver.
	Provisioner *pavv1.PavProvisioner
	// Claims are the filler claims, Pods the filler pods.
	Claims []corev1.PersistentVolumeClaim
	Pods   []corev1.Pod
	// Volumes are the volumes that the selector selects. Fresh are the volumes of filler claims
	// that it does not select yet, by name.
	Volumes []corev1.PersistentVolume
	Fresh   map[string]*corev1.PersistentVolume
	// Claimed are the names of volumes that a claim uses although the volume does not show it.
	// Without claimRef: a claim names the volume, because the volume has lost its claimRef or
	// the claim wants it. Released on the way into the pool: the claim in its claimRef exists.
	Claimed map[string]bool
	// Sets are the UIDs of all sets.
	Sets       map[string]bool
	Neighbours Neighbours
	// Failures are the last errors of the records of filler claims, by claim name.
	Failures map[string]string
	// Domains are the values of the template's topologyKey by node name. Open are the domains
	// over which spares are spread, Closed those that will be open again.
	Domains      map[string]string
	Open, Closed []string
	// Lost are the names of volumes whose node affinity no Node matches.
	Lost map[string]bool
	// Scalers are those that name the set, or that the set names.
	Scalers []tarnv1.PersistentVolumeSetScaler
	// Refused is the API server's message about a filler that it rejected.
	Refused string
}

// gather reads the View of one set from the cache, or from the API server for a decision that
// cannot be undone. It reads claims before volumes: if a claim disappears in between, its
// volume is marked already.
func (r *reconciler) gather(ctx context.Context, from client.Reader, name string) (*View, error) {
	v := &View{Namespace: r.namespace, PauseImage: r.pauseImage, Burst: burstSize}
	var err error
	if v.Set, err = kube.Get(ctx, from, client.ObjectKey{Name: name}, &tarnv1.PersistentVolumeSet{}); err != nil || v.Set == nil {
		return v, err
	}
	if err := r.gatherScalers(ctx, v); err != nil {
		return nil, err
	}
	if err := r.gatherClasses(ctx, from, v); err != nil {
		return nil, err
	}
	claims, err := r.gatherFillers(ctx, from, v)
	if err != nil {
		return nil, err
	}
	if err := gatherVolumes(ctx, from, v); err != nil {
		return nil, err
	}
	if err := r.gatherHolders(ctx, from, v); err != nil {
		return nil, err
	}
	if err := gatherNeighbours(ctx, from, v, claims); err != nil {
		return nil, err
	}
	return v, r.gatherNodes(ctx, from, v)
}

func (r *reconciler) gatherScalers(ctx context.Context, v *View) error {
	list := &tarnv1.PersistentVolumeSetScalerList{}
	if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing PersistentVolumeSetScalers: %w", err)
	}
	for i := range list.Items {
		if concernsScaler(v.Set, &list.Items[i]) {
			v.Scalers = append(v.Scalers, *list.Items[i].DeepCopy())
		}
	}
	return nil
}

func (r *reconciler) gatherClasses(ctx context.Context, from client.Reader, v *View) (err error) {
	get := func(name string) (*storagev1.StorageClass, error) {
		return kube.Get(ctx, from, client.ObjectKey{Name: name}, &storagev1.StorageClass{})
	}
	if v.Class, err = get(v.Set.Spec.Template.Spec.StorageClassName); err != nil {
		return err
	}
	if v.Filler, err = get(fillerClassName(v.Set)); err != nil || v.Class == nil {
		return err
	}
	v.Provisioner, err = kube.Get(ctx, r.client, client.ObjectKey{Name: v.Class.Provisioner}, &pavv1.PavProvisioner{})
	return err
}

// gatherFillers reads the filler objects of the set, and returns the filler claims of all sets.
func (r *reconciler) gatherFillers(ctx context.Context, from client.Reader, v *View) ([]corev1.PersistentVolumeClaim, error) {
	claims, pods := &corev1.PersistentVolumeClaimList{}, &corev1.PodList{}
	if err := from.List(ctx, claims, client.InNamespace(v.Namespace)); err != nil {
		return nil, fmt.Errorf("listing the filler claims of PersistentVolumeSet %s: %w", v.Set.Name, err)
	}
	if err := from.List(ctx, pods, client.InNamespace(v.Namespace), client.MatchingLabels{tarnv1.LabelPoolUID: string(v.Set.UID)}); err != nil {
		return nil, fmt.Errorf("listing the filler pods of PersistentVolumeSet %s: %w", v.Set.Name, err)
	}
	prefix := fillerPrefix(v.Set.UID) // by name, which no user can change
	for i := range claims.Items {
		if strings.HasPrefix(claims.Items[i].Name, prefix) {
			v.Claims = append(v.Claims, claims.Items[i])
		}
	}
	v.Pods, v.Failures = pods.Items, map[string]string{}
	for i := range v.Claims {
		c := &v.Claims[i]
		if c.Spec.VolumeName != "" {
			continue
		}
		record, err := kube.Get(ctx, r.client, client.ObjectKey{Name: "pvc-" + string(c.UID)}, &tarnv1.PavVolume{})
		if err != nil {
			return nil, err
		}
		if record != nil && record.Status.LastError != nil {
			v.Failures[c.Name] = record.Status.LastError.Message
		}
	}
	return claims.Items, nil
}

func gatherVolumes(ctx context.Context, from client.Reader, v *View) error {
	volumes := &corev1.PersistentVolumeList{}
	if err := from.List(ctx, volumes, client.MatchingLabels(v.Set.Spec.Selector)); err != nil {
		return fmt.Errorf("listing the volumes of PersistentVolumeSet %s: %w", v.Set.Name, err)
	}
	v.Volumes, v.Fresh = volumes.Items, map[string]*corev1.PersistentVolume{}
	for i := range v.Claims {
		name := v.Claims[i].Spec.VolumeName
		if name == "" || v.volume(name) != nil {
			continue
		}
		vol, err := kube.Get(ctx, from, client.ObjectKey{Name: name}, &corev1.PersistentVolume{})
		if err != nil {
			return err
		}
		if vol != nil {
			v.Fresh[name] = vol
		}
	}
	return nil
}

// gatherHolders finds the claims of volumes that seem to have none. Claims that name a volume
// always come from the cache. A claim that has only just named such a volume does not own it:
// the first writer of the volume wins.
func (r *reconciler) gatherHolders(ctx context.Context, from client.Reader, v *View) error {
	v.Claimed = map[string]bool{}
	for i := range v.Volumes {
		vol := &v.Volumes[i]
		if ref := vol.Spec.ClaimRef; ref != nil {
			if !passed(vol) {
				continue
			}
			claim, err := kube.Get(ctx, from, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.PersistentVolumeClaim{})
			if err != nil {
				return err
			}
			v.Claimed[vol.Name] = claim != nil && claim.UID == ref.UID
			continue
		}
		claims, err := kube.ClaimsNaming(ctx, r.client, vol.Name)
		if err != nil {
			return err
		}
		if len(claims) > 0 {
			v.Claimed[vol.Name] = true
		}
	}
	return nil
}

// gatherNeighbours reads sets after volumes. So the set for which a volume was made is among
// them, unless it is gone.
func gatherNeighbours(ctx context.Context, from client.Reader, v *View, claims []corev1.PersistentVolumeClaim) error {
	sets := &tarnv1.PersistentVolumeSetList{}
	if err := from.List(ctx, sets); err != nil {
		return fmt.Errorf("listing PersistentVolumeSets: %w", err)
	}
	return v.meet(sets.Items, claims, func(selector map[string]string) ([]corev1.PersistentVolume, error) {
		volumes := &corev1.PersistentVolumeList{}
		if err := from.List(ctx, volumes, client.MatchingLabels(selector)); err != nil {
			return nil, fmt.Errorf("listing the volumes of a set that shares volumes with PersistentVolumeSet %s: %w", v.Set.Name, err)
		}
		return volumes.Items, nil
	})
}

// gatherNodes reads what depends on nodes. A volume counts as lost only if the Node is missing in
// `from` too.
func (r *reconciler) gatherNodes(ctx context.Context, from client.Reader, v *View) error {
	t := &v.Set.Spec.Template
	if t.TopologyKey == "" && !slices.ContainsFunc(v.Volumes, func(vol corev1.PersistentVolume) bool { return vol.Spec.NodeAffinity != nil }) {
		return nil
	}
	nodes := &corev1.NodeList{}
	for _, reader := range []client.Reader{r.client, from} {
		if err := reader.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("listing nodes: %w", err)
		}
		if v.Lost = lostVolumes(v.Volumes, nodes.Items); len(v.Lost) == 0 {
			break
		}
	}
	if t.TopologyKey == "" {
		return nil
	}
	v.Domains = map[string]string{}
	for i := range nodes.Items {
		if domain, has := nodes.Items[i].Labels[t.TopologyKey]; has {
			v.Domains[nodes.Items[i].Name] = domain
		}
	}
	v.Open, v.Closed = openDomains(t, v.Class, nodes.Items)
	return nil
}

// volume returns a volume of the view by name; nil if it does not exist.
func (v *View) volume(name string) *corev1.PersistentVolume {
	for i := range v.Volumes {
		if v.Volumes[i].Name == name {
			return &v.Volumes[i]
		}
	}
	return v.Fresh[name]
}

// pod returns the pod of a filler claim.
func (v *View) pod(claim string) *corev1.Pod {
	for i := range v.Pods {
		if v.Pods[i].Name == claim {
			return &v.Pods[i]
		}
	}
	return nil
}

// holder returns the filler claim of a marked volume.
func (v *View) holder(vol *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	for i := range v.Claims {
		if string(v.Claims[i].UID) == vol.Annotations[tarnv1.AnnotationPoolFilling] {
			return &v.Claims[i]
		}
	}
	return nil
}

// domainOf is the value of topologyKey on the node chosen for a claim.
func (v *View) domainOf(claim *corev1.PersistentVolumeClaim) string {
	return v.Domains[claim.Annotations[volume.AnnSelectedNode]]
}
