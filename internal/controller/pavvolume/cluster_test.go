//go:build integration

package pavvolume

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/steppod/steppodtest"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// The nodes that the scheduler selects, in this order.
const firstNode, secondNode = "node-a", "node-b"

func TestMain(m *testing.M) { testkit.QuietMain(m) }

// cluster is one claim, and a fake of everything around it but the controller: binder, scheduler,
// protection, the garbage collector and the kubelet.
type cluster struct {
	testkit.World
	life  life
	name  string
	claim *corev1.PersistentVolumeClaim
	// holder is the record that has the handle at first, if there is one, and source the claim that
	// is to be copied.
	holder  string
	source  *corev1.PersistentVolumeClaim
	kubelet *steppodtest.Kubelet
	clock   testkit.PushedClock
	starts  atomic.Int32

	mu sync.Mutex
	// failures and resists are how many pods of creation and deletion will still fail. stored says
	// that storage exists; wrong lists the problems seen.
	failures, resists int
	stored            bool
	wrong             []string
	// made are the UIDs of the claims that were made for the volume.
	made []types.UID
	// heldAtCreated says that the claim was deleted while no controller ran and the record was
	// Created without a volume. written says that a volume ever existed.
	heldAtCreated, written bool
}

func newCluster(t *testing.T, config *rest.Config, name string, l life) *cluster {
	t.Helper()
	c := &cluster{World: testkit.NewWorld(t, config), life: l, name: name, failures: l.failures, resists: l.resists}
	c.PodsMayRun("default")
	for _, node := range []string{firstNode, secondNode} { // all cases share them
		c.Must(client.IgnoreAlreadyExists(c.Client.Create(c.Ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{corev1.LabelHostname: node}}})))
	}
	p := l.provisioner(name)
	status := p.Status
	c.Must(c.Client.Create(c.Ctx, p))
	p.Status = status
	p.Status.Conditions[0].ObservedGeneration, p.Status.Conditions[0].LastTransitionTime = p.Generation, metav1.Now()
	c.Must(c.Client.Status().Update(c.Ctx, p))
	c.Must(c.Client.Create(c.Ctx, testkit.Class(name, func(class *storagev1.StorageClass) {
		if l.waits {
			class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
		}
		if l.kept != "" {
			class.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimRetain)
		}
	})))
	c.claim = testkit.Claim("default", name, "", name, func(claim *corev1.PersistentVolumeClaim) {
		if l.waits {
			claim.Annotations[volume.AnnSelectedNode] = firstNode
		}
	})
	if l.again {
		holder := testkit.Record(testkit.Claim("default", name, types.UID("old-"+name), name), name, tarnv1.VolumeDeleting, func(r *tarnv1.PavVolume) {
			r.UID, r.Spec.Provisioner.UID, r.Status.Handle = "", p.UID, "shared"
		})
		status := holder.Status
		c.Must(c.Client.Create(c.Ctx, holder))
		holder.Status = status
		c.Must(c.Client.Status().Update(c.Ctx, holder))
		c.holder, c.stored = holder.Name, true
	}
	if l.copied {
		c.addSource(p.UID)
	}
	c.Must(c.Client.Create(c.Ctx, c.claim))
	c.kubelet = &steppodtest.Kubelet{Provisioner: name, Client: c.Client, Ends: c.ends, Node: nodeOf}
	c.kubelet.Start(c.Ctx, t) // Play ends the context
	c.Play(c.round)
	return c
}

// Run starts the controller with the account it has in a cluster. Before a restart, it waits for
// the deletion of a claim that must be deleted while its record is Created.
func (c *cluster) Run(restConfig *rest.Config) (stop func()) {
	c.T.Helper()
	if c.starts.Add(1) > 1 && c.life.deleted == onceCreated {
		c.holdAtCreated()
	}
	return testkit.Run(c.Ctx, c.T, restConfig, func(mgr ctrl.Manager) error {
		return Register(mgr, Options{
			Steps: &steppod.Steps{Namespaces: steppod.Namespaces{"default"}, Client: mgr.GetClient(), Reader: mgr.GetAPIReader()}, Clock: &c.clock,
			Namespace: "tarn-system", OwnBinder: true,
		})
	})
}

func (c *cluster) holdAtCreated() {
	s, err := c.see()
	if err != nil || s.record == nil || s.record.Status.Phase != tarnv1.VolumeCreated || s.volume != nil {
		return
	}
	gone := c.Mirror.Until(c.Ctx, func() bool { s, err := c.see(); return err == nil && s.claim == nil })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heldAtCreated = gone
}

// sight is what exists of a life; what does not exist is nil.
type sight struct {
	claim  *corev1.PersistentVolumeClaim
	record *tarnv1.PavVolume
	volume *corev1.PersistentVolume
	pods   []corev1.Pod
	// made are the claims that were made for the volume.
	made []corev1.PersistentVolumeClaim
	// source is the record of the volume that is copied.
	source *tarnv1.PavVolume
}

// see reads live.
func (c *cluster) see() (sight, error) {
	key := client.ObjectKey{Name: volumeName(c.claim.UID)}
	// Pods come first: the record of a pod existed when the pod was seen. If it is missing
	// afterwards, it is gone.
	pods := &corev1.PodList{}
	podsErr := c.Client.List(c.Ctx, pods, client.InNamespace(c.claim.Namespace), client.MatchingLabels{tarnv1.LabelProvisioner: c.name})
	claim, err := kube.Get(c.Ctx, c.Client, client.ObjectKeyFromObject(c.claim), &corev1.PersistentVolumeClaim{})
	record, recordErr := kube.Get(c.Ctx, c.Client, key, &tarnv1.PavVolume{})
	vol, volumeErr := kube.Get(c.Ctx, c.Client, key, &corev1.PersistentVolume{})
	made := &corev1.PersistentVolumeClaimList{}
	madeErr := c.Client.List(c.Ctx, made, client.InNamespace(c.claim.Namespace), client.MatchingLabels{tarnv1.LabelProvisioner: c.name})
	var source *tarnv1.PavVolume
	var sourceErr error
	if c.source != nil {
		source, sourceErr = kube.Get(c.Ctx, c.Client, client.ObjectKey{Name: volumeName(c.source.UID)}, &tarnv1.PavVolume{})
	}
	return sight{claim, record, vol, pods.Items, made.Items, source}, errors.Join(err, recordErr, volumeErr, podsErr, madeErr, sourceErr)
}

// nodeOf is the node that a pod requests.
func nodeOf(pod *corev1.Pod) string {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, field := range term.MatchFields {
				return field.Values[0]
			}
		}
	}
	return firstNode
}

// ends is the result of a pod. If the claim is to be deleted during the pod, it holds the pod until
// the claim is gone. It holds the deletion of another volume with the handle until the creation
// waits for that.
func (c *cluster) ends(pod *corev1.Pod) steppodtest.End {
	step := tarnv1.Step(pod.Labels[tarnv1.LabelStep])
	if step == tarnv1.StepDeletion {
		return c.deletes(pod)
	}
	if c.life.backed { // its kubelet mounts the claim
		c.Mirror.Until(c.Ctx, func() bool {
			s, err := c.see()
			return err == nil && len(s.made) == 1 && s.made[0].Status.Phase == corev1.ClaimBound
		})
	}
	if c.life.copied {
		c.endSource()
	}
	c.mu.Lock()
	if step == tarnv1.StepCreation && c.stored {
		c.wrong = append(c.wrong, "pod "+pod.Name+" ran where there was storage already")
	}
	c.stored = c.stored || step == tarnv1.StepCreation
	c.mu.Unlock()
	if step == tarnv1.StepValidation && c.life.deleted == whileValidating || step == tarnv1.StepCreation && c.life.deleted == whileCreating {
		c.Mirror.Until(c.Ctx, func() bool {
			_ = c.Client.Delete(c.Ctx, c.claim.DeepCopy())
			s, err := c.see()
			return err == nil && s.claim == nil
		})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case step == tarnv1.StepCreation && c.failures > 0:
		c.failures--
		return steppodtest.End{Fails: true, Result: tarnv1.PodResult{Error: "the array is busy"}}
	case step == tarnv1.StepCreation && c.life.waits && pod.Spec.NodeName == firstNode:
		return steppodtest.End{Fails: true, Result: tarnv1.PodResult{Error: "no room on this node"}}
	}
	return steppodtest.End{Result: tarnv1.PodResult{Capacity: ptr.To("1Gi")}}
}

// deletes is the result of a deletion pod, which deletes the storage unless it fails.
func (c *cluster) deletes(pod *corev1.Pod) steppodtest.End {
	if c.holder != "" && pod.OwnerReferences[0].Name == c.holder {
		c.Mirror.Until(c.Ctx, func() bool {
			s, err := c.see()
			return err == nil && s.record != nil && waitsForHandle(s.record)
		})
	}
	s, err := c.see()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.source != nil && pod.OwnerReferences[0].Name == volumeName(c.source.UID) {
		if err != nil || s.record == nil || s.record.Status.Phase != tarnv1.VolumeCreated {
			c.wrong = append(c.wrong, fmt.Sprintf("deletion pod %s ran while its volume was being copied: %+v", pod.Name, s.record))
		}
		return steppodtest.End{}
	}
	if err != nil || s.claim != nil && s.record != nil && s.record.Status.Phase == tarnv1.VolumeDeleting {
		c.wrong = append(c.wrong, "deletion pod "+pod.Name+" ran while the claim was there")
	}
	if c.life.backed && (len(s.made) != 1 || s.made[0].DeletionTimestamp != nil) {
		c.wrong = append(c.wrong, "deletion pod "+pod.Name+" ran without the claim that it mounts")
	}
	if c.resists > 0 {
		c.resists--
		return steppodtest.End{Fails: true, Result: tarnv1.PodResult{Error: "the array is busy"}}
	}
	c.stored = false
	return steppodtest.End{}
}

// round does one round of the fake's work. The next round retries what the API server rejects.
func (c *cluster) round() error {
	s, err := c.see()
	if err != nil {
		return err
	}
	for i := range s.pods {
		pod := &s.pods[i]
		owner, err := kube.Get(c.Ctx, c.Client, client.ObjectKey{Name: pod.OwnerReferences[0].Name}, &tarnv1.PavVolume{})
		if err == nil && owner == nil || pod.DeletionTimestamp != nil && steppod.Ended(pod) {
			_ = c.Client.Delete(c.Ctx, pod, client.GracePeriodSeconds(0))
		}
	}
	if s.claim != nil {
		c.serve(s)
	}
	if c.source != nil {
		c.releaseSource()
	}
	for i := range s.made {
		c.back(&s.made[i])
	}
	c.watchStorage(s)
	if s.volume != nil {
		c.settlePhase(s)
	}
	if s.record != nil {
		c.release(s)
		c.push(s.record)
	}
	return nil
}

// watchStorage checks that the storage is deleted before the volume, unless it must be kept.
func (c *cluster) watchStorage(s sight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written && s.volume == nil && c.stored != (c.life.kept != "") && len(c.wrong) == 0 {
		c.wrong = append(c.wrong, "the volume went before its storage, or its storage was to be kept")
	}
	c.written = c.written || s.volume != nil
}

// serve acts as scheduler, protection and binder of a claim, and as the user who deletes it.
func (c *cluster) serve(s sight) {
	switch {
	case s.claim.DeletionTimestamp != nil:
		c.unprotect(s.claim)
	case c.life.deleted == onceCreated && s.record != nil && s.record.Status.Phase == tarnv1.VolumeCreated,
		c.life.deleted == onceWritten && s.volume != nil:
		_ = c.Client.Delete(c.Ctx, s.claim)
	case c.life.waits && s.claim.Annotations[volume.AnnSelectedNode] == "":
		metav1.SetMetaDataAnnotation(&s.claim.ObjectMeta, volume.AnnSelectedNode, secondNode)
		_ = c.Client.Update(c.Ctx, s.claim)
	case c.life.deleted == "" && s.volume != nil && s.claim.Spec.VolumeName == "":
		s.claim.Spec.VolumeName = s.volume.Name
		_ = c.Client.Update(c.Ctx, s.claim)
	case s.claim.Spec.VolumeName != "" && s.claim.Status.Phase != corev1.ClaimBound:
		s.claim.Status.Phase = corev1.ClaimBound
		_ = c.Client.Status().Update(c.Ctx, s.claim)
	}
}

// back acts as binder and protection of a claim that was made for the volume.
func (c *cluster) back(made *corev1.PersistentVolumeClaim) {
	c.mu.Lock()
	if !slices.Contains(c.made, made.UID) {
		c.made = append(c.made, made.UID)
	}
	c.mu.Unlock()
	switch {
	case made.DeletionTimestamp != nil:
		c.unprotect(made)
	case made.Spec.VolumeName == "":
		vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "backing-" + string(made.UID)}, Spec: corev1.PersistentVolumeSpec{
			Capacity: made.Spec.Resources.Requests, AccessModes: made.Spec.AccessModes, NodeAffinity: affinityTo(secondNode),
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/none"}},
		}}
		if client.IgnoreAlreadyExists(c.Client.Create(c.Ctx, vol)) == nil {
			made.Spec.VolumeName = vol.Name
			_ = c.Client.Update(c.Ctx, made)
		}
	case made.Status.Phase != corev1.ClaimBound:
		made.Status.Phase = corev1.ClaimBound
		_ = c.Client.Status().Update(c.Ctx, made)
	}
}

// settlePhase acts as binder and protection of a volume.
func (c *cluster) settlePhase(s sight) {
	want := corev1.VolumeReleased
	if s.claim != nil {
		want = corev1.VolumeBound
	}
	if s.volume.Status.Phase != want {
		s.volume.Status.Phase = want
		_ = c.Client.Status().Update(c.Ctx, s.volume)
	} else if s.volume.DeletionTimestamp != nil && want == corev1.VolumeReleased {
		c.unprotect(s.volume)
	}
}

// release ends a released volume of policy Retain as its user.
func (c *cluster) release(s sight) {
	if c.life.kept == "" || s.volume == nil || s.volume.Status.Phase != corev1.VolumeReleased || !handedOver(s.record) {
		return
	}
	if c.life.kept == byItsVolume {
		_ = c.Client.Delete(c.Ctx, s.volume.DeepCopy())
		return
	}
	forget := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}}`, tarnv1.AnnotationForget, s.record.UID)
	_ = c.Client.Patch(c.Ctx, s.record, client.RawPatch(types.MergePatchType, forget))
	_ = c.Client.Delete(c.Ctx, s.record.DeepCopy())
}

// push sets the clock to a record's next attempt, and makes the controller reconcile it.
func (c *cluster) push(record *tarnv1.PavVolume) {
	at := record.Status.NextAttemptTime
	if destroying(record) {
		at = record.Status.NextDeletionTime
	} else if record.Status.Phase != tarnv1.VolumePending {
		return
	}
	if at == nil || !c.clock.PushTo(at.Time) {
		return
	}
	_ = c.Client.Patch(c.Ctx, record, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": {"looked": "`+at.Format(time.RFC3339)+`"}}}`)))
}

// unprotect removes Kubernetes' own finalizers.
func (c *cluster) unprotect(o client.Object) {
	kept := slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f != volume.FinalizerExternal })
	if len(kept) != len(o.GetFinalizers()) {
		o.SetFinalizers(kept)
		_ = c.Client.Update(c.Ctx, o)
	}
}

// addSource makes a claim with a volume, and has the claim of the life copied from it.
func (c *cluster) addSource(provisioner types.UID) {
	c.T.Helper()
	c.source = testkit.Claim("default", c.name+"-source", "", c.name)
	c.Must(c.Client.Create(c.Ctx, c.source))
	record := testkit.Record(c.source, c.name, tarnv1.VolumeCreated, func(r *tarnv1.PavVolume) {
		r.UID, r.Spec.Provisioner.UID, r.Status.Handle, r.Status.Capacity = "", provisioner, "source", 1<<30
		sayProvisioned(&r.Status, r, reasonProvisioned, "made")
	})
	status := record.Status
	c.Must(c.Client.Create(c.Ctx, record))
	record.Status = status
	c.Must(c.Client.Status().Update(c.Ctx, record))
	vol := testkit.Volume(record, func(v *corev1.PersistentVolume) {
		v.UID, v.Finalizers, v.Annotations = "", []string{volume.FinalizerExternal}, map[string]string{tarnv1.AnnotationRecord: string(record.UID)}
		v.Spec.StorageClassName, v.Spec.CSI.VolumeHandle = c.name, "source"
	})
	c.Must(c.Client.Create(c.Ctx, vol))
	vol.Status.Phase = corev1.VolumeBound
	c.Must(c.Client.Status().Update(c.Ctx, vol))
	c.source.Spec.VolumeName = vol.Name
	c.Must(c.Client.Update(c.Ctx, c.source))
	c.source.Status.Phase = corev1.ClaimBound
	c.Must(c.Client.Status().Update(c.Ctx, c.source))
	c.claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: c.source.Name}
}

// endSource deletes the claim that is being copied, and waits until its volume waits for the copy.
func (c *cluster) endSource() {
	c.Mirror.Until(c.Ctx, func() bool {
		_ = c.Client.Delete(c.Ctx, c.source.DeepCopy())
		s, err := c.see()
		return err == nil && s.source != nil && conditionOf(s.source.Status, tarnv1.ConditionDeletable).Reason == reasonCopied
	})
}

// releaseSource acts as binder and protection of the source.
func (c *cluster) releaseSource() {
	claim, err := kube.Get(c.Ctx, c.Client, client.ObjectKeyFromObject(c.source), &corev1.PersistentVolumeClaim{})
	vol, volumeErr := kube.Get(c.Ctx, c.Client, client.ObjectKey{Name: volumeName(c.source.UID)}, &corev1.PersistentVolume{})
	switch {
	case err != nil || volumeErr != nil:
	case claim != nil && claim.DeletionTimestamp != nil:
		c.unprotect(claim)
	case claim == nil && vol != nil && vol.Status.Phase != corev1.VolumeReleased:
		vol.Status.Phase = corev1.VolumeReleased
		_ = c.Client.Status().Update(c.Ctx, vol)
	case vol != nil && vol.DeletionTimestamp != nil:
		c.unprotect(vol)
	}
}
