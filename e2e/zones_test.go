//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// playedTaint is on nodes that a case simulates.
const playedTaint = "e2e.tarn.dev/played"

// heartbeat is how often a simulated node reports that it is alive. Kubernetes gives a node up
// after 25 s.
const heartbeat = 5 * time.Second

// zones are nodes without kubelets, one in each zone, and an external provisioner with the case's
// name whose volumes belong to a zone. The case simulates them, because the scheduler needs only
// the node objects.
type zones struct {
	s *scenario
	// of is the zone of each node.
	of map[string]string

	mu    sync.Mutex
	ended bool
	// chosen are the zones that the scheduler has chosen for filler claims, by uid.
	chosen map[types.UID]string
}

// zones starts the simulation and registers its cleanup. The nodes are tainted with the value given
// for their zone.
func (s *scenario) zones(taints map[string]string) *zones {
	s.t.Helper()
	z := &zones{s: s, of: map[string]string{}, chosen: map[types.UID]string{}}
	s.create(&storagev1.CSIDriver{ObjectMeta: named(s.name), Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}})
	s.t.Cleanup(func() { s.deleteIfThere(&storagev1.CSIDriver{ObjectMeta: named(s.name)}) })
	for zone, taint := range taints {
		z.node(zone, taint)
	}
	z.live()
	for name := range z.of { // Kubernetes keeps pods off until it has seen that a node is ready
		s.nodeBecomes(name, "open", func(node *corev1.Node) bool { return isReadyNode(node) && len(node.Spec.Taints) == 1 })
	}
	z.follow(&corev1.Pod{}, func(o any) { z.pod(o.(*corev1.Pod)) })
	z.follow(&corev1.PersistentVolumeClaim{}, func(o any) { z.claim(o.(*corev1.PersistentVolumeClaim)) })
	z.follow(&corev1.PersistentVolume{}, func(o any) { z.volume(o.(*corev1.PersistentVolume)) })
	return z
}

// node makes the node of a zone. Its name sorts after those of real nodes, because other cases take
// the first node.
func (z *zones) node(zone, taint string) {
	z.s.t.Helper()
	name := "zz-" + z.s.name + "-" + zone
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zone}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: playedTaint, Value: taint, Effect: corev1.TaintEffectNoSchedule}}},
		Status:     corev1.NodeStatus{Capacity: room, Allocatable: room},
	}
	guard := z.guard(name)
	z.s.create(guard)
	z.s.t.Cleanup(func() {
		if err := suite.live.Delete(z.s.ctx, guard, client.GracePeriodSeconds(0)); err != nil {
			z.s.t.Errorf("deleting pod %s: %v", guard.Name, err)
		}
	})
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}
	z.s.create(node)
	z.s.t.Cleanup(func() {
		z.s.deleteIfThere(node)
		z.s.deleteIfThere(lease)
	})
	z.s.create(lease)
	z.of[name] = zone
}

// guard gives a pod that keeps all pods off a node except the case's own and its pool's fillers.
// Some pods of other cases tolerate every taint. The guard exists before its node does.
func (z *zones) guard(node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: node},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "none", Image: "busybox:1.36"}},
			Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname,
				NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: []string{z.s.name}},
				}},
				LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: tarn.LabelPool, Operator: metav1.LabelSelectorOpNotIn, Values: []string{z.s.name}},
				}},
			}}}},
		},
	}
}

// live reports the nodes as alive until the case ends.
func (z *zones) live() {
	ctx, stop := context.WithCancel(z.s.ctx)
	var done sync.WaitGroup
	done.Go(func() {
		beats := time.NewTicker(heartbeat)
		defer beats.Stop()
		for {
			for name := range z.of {
				if err := z.beat(ctx, name); err != nil && ctx.Err() == nil {
					z.s.t.Errorf("saying that node %s lives: %v", name, err)
				}
			}
			select {
			case <-beats.C:
			case <-ctx.Done():
				return
			}
		}
	})
	z.s.t.Cleanup(func() {
		stop()
		done.Wait()
	})
}

func (z *zones) beat(ctx context.Context, name string) error {
	now := time.Now()
	lease := fmt.Sprintf(`{"spec":{"holderIdentity":%q,"leaseDurationSeconds":40,"renewTime":%q}}`, name, now.UTC().Format(metav1.RFC3339Micro))
	patch := client.RawPatch("application/merge-patch+json", []byte(lease))
	if err := suite.live.Patch(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}, patch); err != nil {
		return err
	}
	at := now.UTC().Format(time.RFC3339)
	status := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Played","message":"by a test","lastHeartbeatTime":%q,"lastTransitionTime":%q}]}}`, at, at)
	return suite.live.Status().Patch(ctx, &corev1.Node{ObjectMeta: named(name)}, client.RawPatch("application/strategic-merge-patch+json", []byte(status)))
}

// follow passes every state of a kind's objects to a simulated part.
func (z *zones) follow(kind client.Object, play func(any)) {
	z.s.t.Helper()
	informer, err := suite.cached.GetInformer(z.s.ctx, kind)
	if err != nil {
		z.s.t.Fatal(err)
	}
	one := func(o any) {
		z.mu.Lock()
		defer z.mu.Unlock()
		if !z.ended { // an informer may still report after its end
			play(o)
		}
	}
	told, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: one, UpdateFunc: func(_, o any) { one(o) }})
	if err != nil {
		z.s.t.Fatal(err)
	}
	z.s.t.Cleanup(func() {
		z.mu.Lock()
		z.ended = true
		z.mu.Unlock()
		if err := informer.RemoveEventHandler(told); err != nil {
			z.s.t.Error(err)
		}
	})
}

// pod acts as a kubelet: it removes the pods that are in deletion on a node.
func (z *zones) pod(pod *corev1.Pod) {
	if z.of[pod.Spec.NodeName] == "" || pod.DeletionTimestamp == nil {
		return
	}
	err := suite.live.Delete(z.s.ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		z.s.t.Errorf("ending pod %s: %v", pod.Name, err)
	}
}

// claim acts as an external provisioner: it makes the volume of a claim in the zone that the
// scheduler has chosen.
func (z *zones) claim(claim *corev1.PersistentVolumeClaim) {
	zone := z.of[claim.Annotations[selectedNode]]
	if zone == "" || claim.Annotations["volume.kubernetes.io/storage-provisioner"] != z.s.name || claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
		return
	}
	if claim.Labels[tarn.LabelPool] == z.s.name {
		z.chosen[claim.UID] = zone
	}
	err := suite.live.Create(z.s.ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(claim.UID), Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": z.s.name}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: *claim.Spec.StorageClassName, Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: z.s.name, VolumeHandle: string(claim.UID)}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
			}}}},
		},
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		z.s.t.Errorf("making the volume of claim %s: %v", claim.Name, err)
	}
}

// volume deletes volumes by phase and policy, as external provisioners do.
func (z *zones) volume(vol *corev1.PersistentVolume) {
	ours := vol.Annotations["pv.kubernetes.io/provisioned-by"] == z.s.name
	if ours && vol.Status.Phase == corev1.VolumeReleased && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete && vol.DeletionTimestamp == nil {
		z.s.deleteIfThere(vol)
	}
}

// fillersPlaced gives the zones in which the scheduler has placed the case's filler pods. They may
// be deleted before they have been reported.
func (z *zones) fillersPlaced() []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	return slices.Sorted(maps.Values(z.chosen))
}
