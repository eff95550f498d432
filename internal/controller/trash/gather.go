package trash

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumes;persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=volumeattachments,verbs=list
// +kubebuilder:rbac:groups=tarn.dev,resources=persistentvolumesets,verbs=get;list;watch

// View is all that is known about one volume. What does not exist is nil.
type View struct {
	// Namespace is Tarn's own: what its claims have is on its way into a pool or out.
	Namespace string
	Volume    *corev1.PersistentVolume
	// Claim is the one the volume belongs to, by uid.
	Claim *corev1.PersistentVolumeClaim
	Class *storagev1.StorageClass
	// Sets are those that select the volume.
	Sets []tarnv1.PersistentVolumeSet
}

// gather reads the View of one volume from the cache. The claim is left out where there
// is nothing to keep, as with most volumes: each bound volume comes by several times.
func (r *reconciler) gather(ctx context.Context, name string) (*View, error) {
	v := &View{Namespace: r.namespace}
	var err error
	if v.Volume, err = kube.Get(ctx, r.client, client.ObjectKey{Name: name}, &corev1.PersistentVolume{}); err != nil || v.Volume == nil {
		return v, err
	}
	if class := volume.ClassOfVolume(v.Volume); class != "" {
		if v.Class, err = kube.Get(ctx, r.client, client.ObjectKey{Name: class}, &storagev1.StorageClass{}); err != nil {
			return nil, err
		}
	}
	sets := &tarnv1.PersistentVolumeSetList{}
	if err := r.client.List(ctx, sets, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing PersistentVolumeSets: %w", err)
	}
	for i := range sets.Items {
		if selects(&sets.Items[i], v.Volume) {
			v.Sets = append(v.Sets, sets.Items[i])
		}
	}
	ref := v.Volume.Spec.ClaimRef
	if ref == nil || ref.UID == "" || !volume.Held(v.Volume) && !retentionOf(v).wanted() {
		return v, nil
	}
	claim, err := kube.Get(ctx, r.client, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.PersistentVolumeClaim{})
	if claim != nil && claim.UID == ref.UID {
		v.Claim = claim
	}
	return v, err
}

func selects(set *tarnv1.PersistentVolumeSet, vol *corev1.PersistentVolume) bool {
	return labels.SelectorFromSet(set.Spec.Selector).Matches(labels.Set(vol.Labels))
}

// retention is how long a volume is to be kept, as its texts say it.
type retention struct {
	// text is what was said; empty where nobody says anything.
	text string
	time time.Duration
	// unknown says that nobody says anything and that the class, which may have, is gone.
	unknown bool
	// wrong is why the text cannot be understood, with where it stands.
	wrong string
}

func (w retention) wanted() bool { return w.wrong != "" || w.time > 0 }

// retentionOf asks the volume, the sets that select it, and its class, in this order.
// Of several sets the longest counts.
func retentionOf(v *View) retention {
	if text := v.Volume.Annotations[tarnv1.AnnotationRetention]; text != "" {
		return readRetention("annotation of the PersistentVolume", text)
	}
	var longest retention
	for i := range v.Sets {
		text := v.Sets[i].Annotations[tarnv1.AnnotationRetention]
		if text == "" {
			continue
		}
		said := readRetention("annotation of PersistentVolumeSet "+v.Sets[i].Name, text)
		if said.wrong != "" {
			return said
		}
		if longest.text == "" || said.time > longest.time {
			longest = said
		}
	}
	if longest.text != "" {
		return longest
	}
	if v.Class == nil {
		return retention{unknown: true}
	}
	if text := volume.RetentionOfClass(v.Class.Annotations, v.Class.Parameters); text != "" {
		return readRetention("annotation or parameter of StorageClass "+v.Class.Name, text)
	}
	return retention{}
}

func readRetention(where, text string) retention {
	d, err := volume.ParseRetention(text)
	if err != nil {
		return retention{text: text, wrong: fmt.Sprintf("%s %s: %v; until then the volume is kept", tarnv1.AnnotationRetention, where, err)}
	}
	return retention{text: text, time: d}
}
