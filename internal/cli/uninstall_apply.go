package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/deploy"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// lookAgain is how often the uninstaller checks objects that it waits for.
const lookAgain = 250 * time.Millisecond

// podsGo is how long the uninstaller waits for the last pods of provisioners.
const podsGo = 20 * time.Second

// do executes one step. in is what was gathered before the step.
func (u *uninstaller) do(ctx context.Context, step uninstallStep, in *installed) error {
	switch step {
	case stepPools:
		return u.emptyPools(ctx, in)
	case stepDestruction:
		if u.keep {
			return u.until(ctx, (*installed).underWay)
		}
		return u.until(ctx, (*installed).destroyed)
	case stepControllers:
		return u.endControllers(ctx)
	case stepVolumes:
		return u.letVolumesGo(ctx, in)
	case stepProvisioners:
		return u.deleteProvisioners(ctx, in)
	}
	return u.deleteRest(ctx)
}

// until waits until left returns no more names. On a timeout its error lists the names that are
// left.
func (u *uninstaller) until(ctx context.Context, left func(*installed) []string) error {
	var last []string
	err := wait.PollUntilContextCancel(ctx, lookAgain, true, func(ctx context.Context) (bool, error) {
		in, err := u.gather(ctx)
		if err != nil {
			return false, err
		}
		last = left(in)
		return len(last) == 0, nil
	})
	if err != nil && len(last) > 0 {
		return fmt.Errorf("%w: %s are left; run tarn explain to see why", err, strings.Join(last, ", "))
	}
	return err
}

func (u *uninstaller) emptyPools(ctx context.Context, in *installed) error {
	for i := range in.pools {
		if err := u.remove(ctx, &in.pools[i]); err != nil {
			return err
		}
	}
	given := in.surrendered()
	for i := range in.volumes {
		if v := &in.volumes[i]; in.spare(v) {
			given = append(given, v.Name)
		}
	}
	return u.until(ctx, func(now *installed) []string {
		names := now.surrendered()
		for i := range now.pools {
			names = append(names, now.pools[i].Name)
		}
		for i := range now.records { // records are deleted after their volumes
			r := &now.records[i]
			if r.Status.Phase == tarnv1.VolumeDeleting && slices.Contains(given, r.Name) && !slices.Contains(names, r.Name) {
				names = append(names, r.Name)
			}
		}
		return names
	})
}

// endControllers deletes the processes that write to volumes, and waits until they have ended. From
// then on only this command changes Tarn's objects.
func (u *uninstaller) endControllers(ctx context.Context) error {
	for _, name := range []string{"tarn-api", kube.ControllerName} {
		if err := u.remove(ctx, workload("Deployment", name)); err != nil {
			return err
		}
	}
	if err := u.untilNoPods(ctx, "api", "controller"); err != nil {
		return err
	}
	holder, err := u.leader(ctx)
	if err == nil && holder != "" {
		err = fmt.Errorf("controller %s still runs outside the cluster; stop it, then run the command again", holder)
	}
	return err
}

// untilNoPods waits until the given parts of Tarn have no pods.
func (u *uninstaller) untilNoPods(ctx context.Context, parts ...string) error {
	return wait.PollUntilContextCancel(ctx, lookAgain, true, func(ctx context.Context) (bool, error) {
		pods := &corev1.PodList{}
		if err := u.client.List(ctx, pods, client.InNamespace(Namespace), client.MatchingLabels{"app.kubernetes.io/name": "tarn"}); err != nil {
			return false, fmt.Errorf("listing Tarn's pods: %w", err)
		}
		return !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
			return slices.Contains(parts, p.Labels["app.kubernetes.io/component"])
		}), nil
	})
}

// letVolumesGo removes Tarn's finalizers from volumes and records. With --keep-volumes, the volumes
// get policy Retain, so nothing destroys them later. Otherwise only other drivers' volumes are
// left; they get back the policy that they had.
func (u *uninstaller) letVolumesGo(ctx context.Context, in *installed) error {
	for i := range in.volumes {
		v := &in.volumes[i]
		base := v.DeepCopy()
		ours := ofTarn(v, in.drivers())
		switch {
		case ours || volume.ReleasedFrom(v): // every volume still here is to be kept
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			delete(v.Annotations, tarnv1.AnnotationReclaimPolicy)
			volume.Untrash(v)
		}
		volume.LetGo(v)
		if in.recorded(v) {
			metav1.SetMetaDataAnnotation(&v.ObjectMeta, tarnv1.AnnotationKept, string(v.UID))
		}
		if ours {
			controllerutil.RemoveFinalizer(v, volume.FinalizerExternal)
		}
		if err := u.client.Patch(ctx, v, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("releasing PersistentVolume %s: %w", v.Name, err)
		}
	}
	for i := range in.records {
		if err := u.release(ctx, &in.records[i], tarnv1.FinalizerRecord); err != nil {
			return err
		}
	}
	if !in.abandoned {
		return nil
	}
	for i := range in.pools {
		if err := u.release(ctx, &in.pools[i], tarnv1.FinalizerPool); err != nil {
			return err
		}
	}
	for i := range in.apps { // their claims have no owner, and stay
		if err := u.release(ctx, &in.apps[i], tarnv1.FinalizerApp); err != nil {
			return err
		}
	}
	for i := range in.claims {
		if err := u.letGo(ctx, &in.claims[i], tarnv1.FinalizerInProcess); err != nil {
			return err
		}
	}
	return nil
}

// recorded says whether the volume's record exists. A volume that is released no longer names its
// record.
func (in *installed) recorded(v *corev1.PersistentVolume) bool {
	return slices.ContainsFunc(in.records, func(r tarnv1.PavVolume) bool {
		return r.Name == v.Name && string(r.UID) == v.Annotations[tarnv1.AnnotationRecord]
	})
}

func (u *uninstaller) deleteProvisioners(ctx context.Context, in *installed) error {
	drivers := in.drivers()
	for i := range in.provisioners {
		if err := u.release(ctx, &in.provisioners[i], tarnv1.FinalizerProvisioner); err != nil {
			return err
		}
		driver := &storagev1.CSIDriver{}
		err := u.client.Get(ctx, client.ObjectKey{Name: in.provisioners[i].Name}, driver)
		if err == nil && driver.Labels[tarnv1.LabelProvisioner] == driver.Name {
			err = u.remove(ctx, driver)
		}
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting CSIDriver %s: %w", in.provisioners[i].Name, err)
		}
	}
	return u.untilForgotten(ctx, drivers)
}

// untilForgotten waits until the node agents have removed the drivers from all kubelets. Without
// agents it stops waiting: a driver left in a kubelet's list does no harm.
func (u *uninstaller) untilForgotten(ctx context.Context, drivers map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	err := wait.PollUntilContextCancel(ctx, lookAgain, true, func(ctx context.Context) (bool, error) {
		nodes := &storagev1.CSINodeList{}
		if err := u.client.List(ctx, nodes); err != nil {
			return false, fmt.Errorf("listing the drivers of the nodes: %w", err)
		}
		return !slices.ContainsFunc(nodes.Items, func(n storagev1.CSINode) bool {
			return slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return drivers[d.Name] })
		}), nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		fmt.Fprintln(u.out, "  some kubelets still list their drivers, until they restart")
		return nil
	}
	return err
}

// endAgents deletes the node agents after the last pods of provisioners are gone. A pod can end
// only after its agent has unmounted Tarn's volumes. A pod that does not end, as on an unreachable
// node, delays this only until a timeout.
func (u *uninstaller) endAgents(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, podsGo)
	defer cancel()
	var left int
	err := wait.PollUntilContextCancel(within, lookAgain, true, func(ctx context.Context) (bool, error) {
		pods := &corev1.PodList{}
		if err := u.client.List(ctx, pods, client.HasLabels{tarnv1.LabelStep}); err != nil {
			return false, fmt.Errorf("listing pods of provisioners: %w", err)
		}
		left = len(pods.Items)
		return left == 0, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		fmt.Fprintf(u.out, "  %d pods of provisioners are not deleted; their kubelets can no longer unmount Tarn's volumes\n", left)
		err = nil
	}
	if err == nil {
		err = u.remove(ctx, workload("DaemonSet", "tarn-node"))
	}
	if err != nil {
		return err
	}
	return u.untilNoPods(ctx, "node")
}

// deleteRest deletes the node agents and everything that `tarn install` or the chart has created.
// The custom resources have no objects by now. The namespace is deleted last, and stays if it holds
// objects of others.
func (u *uninstaller) deleteRest(ctx context.Context) error {
	if err := u.endAgents(ctx); err != nil {
		return err
	}
	objects, err := deploy.Objects()
	if err != nil {
		return err
	}
	newer, err := u.resources(ctx)
	if err != nil {
		return err
	}
	objects = append(objects, newer...)
	reader := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": "tarn-metrics-reader"}}}
	objects = append(objects, reader)
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		return slices.Index(goLast, a.GetKind()) - slices.Index(goLast, b.GetKind())
	})
	var going []*unstructured.Unstructured
	for _, o := range objects {
		stays := false
		switch {
		case o.GetKind() == "Namespace" && o.GetName() == Namespace:
			stays, err = u.leaveSpace(ctx)
		case o.GetKind() == "Namespace":
			stays, err = u.leaveSteps(ctx)
		}
		if err != nil {
			return err
		}
		if err := u.unprotect(ctx, o, stays); err != nil {
			return err
		}
		if stays {
			continue
		}
		if err := u.remove(ctx, o); err != nil {
			return err
		}
		going = append(going, o)
	}
	for _, o := range going {
		if err := u.untilGone(ctx, o); err != nil {
			return fmt.Errorf("%s %s is not deleted: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// resources returns the custom resource definitions of Tarn's groups, including those of other
// releases.
func (u *uninstaller) resources(ctx context.Context) ([]*unstructured.Unstructured, error) {
	list := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := u.client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing custom resources: %w", err)
	}
	var found []*unstructured.Unstructured
	for i := range list.Items {
		if group := list.Items[i].Spec.Group; group != tarnv1.GroupVersion.Group && group != pavv1.GroupVersion.Group {
			continue
		}
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		o.SetName(list.Items[i].Name)
		found = append(found, o)
	}
	return found, nil
}

// goLast are the kinds to delete last, in this order. They carry a label that protects them from
// deletion, and other controllers may have to finalize them.
var goLast = []string{"CustomResourceDefinition", "Namespace"}

// unprotect lifts the protection of an object. The policy is deleted by now, but may be enforced a
// moment longer, even for a namespace without the label. So the label is set to "false"; it is
// removed from a namespace that stays.
func (u *uninstaller) unprotect(ctx context.Context, o *unstructured.Unstructured, stays bool) error {
	if !slices.Contains(goLast, o.GetKind()) {
		return nil
	}
	value := `"false"`
	if stays {
		value = "null"
	}
	patch := fmt.Sprintf(`{"metadata": {"labels": {%q: %s}}}`, tarnv1.LabelDeletionProtection, value)
	if err := u.client.Patch(ctx, o.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch))); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the protection of %s: %w", o.GetName(), err)
	}
	return nil
}

// untilGone waits until an object is gone, for kinds that other controllers may have to finalize.
func (u *uninstaller) untilGone(ctx context.Context, o *unstructured.Unstructured) error {
	if !slices.Contains(goLast, o.GetKind()) {
		return nil
	}
	return wait.PollUntilContextCancel(ctx, lookAgain, true, func(ctx context.Context) (bool, error) {
		now := &metav1.PartialObjectMetadata{}
		now.SetGroupVersionKind(o.GroupVersionKind())
		err := u.client.Get(ctx, client.ObjectKeyFromObject(o), now)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

// release deletes one of Tarn's objects and removes its finalizer. The controller that would remove
// it has ended.
func (u *uninstaller) release(ctx context.Context, o client.Object, finalizer string) error {
	if err := u.remove(ctx, o); err != nil {
		return err
	}
	return u.letGo(ctx, o, finalizer)
}

// letGo removes a finalizer from an object.
func (u *uninstaller) letGo(ctx context.Context, o client.Object, finalizer string) error {
	base, ok := o.DeepCopyObject().(client.Object)
	if !ok || !controllerutil.RemoveFinalizer(o, finalizer) {
		return nil
	}
	if err := u.client.Patch(ctx, o, client.MergeFrom(base)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing finalizer %s from %s: %w", finalizer, o.GetName(), err)
	}
	return nil
}

// remove deletes an object. It is no error if the object or its kind does not exist.
func (u *uninstaller) remove(ctx context.Context, o client.Object) error {
	err := u.client.Delete(ctx, o)
	if err == nil || apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil
	}
	return fmt.Errorf("deleting %s: %w", o.GetName(), err)
}

func workload(kind, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": kind, "metadata": map[string]any{"namespace": Namespace, "name": name},
	}}
}
