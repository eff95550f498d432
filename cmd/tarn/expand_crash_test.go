//go:build integration

package main

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod/steppodtest"
	"tarn.dev/tarn/internal/testkit"
)

// growth is one way in which a volume of 1Gi grows to 2Gi.
type growth struct {
	name string
	// section is volumeExpansion's JSON; its pod gets the new size as its argument.
	section string
	// asks are the sizes requested, each after the one before has failed.
	asks []string
	ends func(*corev1.Pod) steppodtest.End
	// wantPods is the number of expansion pods. If the claim reduces its request, one more may have
	// started before that.
	wantPods int
	// wantStatus is the final status of the claim's resize, wantHas the claim's final capacity.
	wantStatus corev1.ClaimResourceStatus
	wantHas    string
}

const (
	growingPod = `"podTemplate": {"spec": {"containers": [{"name": "c", "image": "busybox:1.36", "args": ["{{ newCapacity }}"]}]}}`
	nodePod    = `"nodePodTemplate": {"spec": {"containers": [{"name": "c", "image": "busybox:1.36"}]}}`
)

var growths = []growth{
	{"well", "{" + growingPod + "}", []string{"2Gi"}, wellGrown, 1, "", "2Gi"},
	{"again", "{" + growingPod + "}", []string{"2Gi"}, growsSecond, 2, "", "2Gi"},
	{"less", "{" + growingPod + "}", []string{"4Gi", "2Gi"}, growsLittle, 2, "", "2Gi"},
	{"nodes", "{" + growingPod + "," + nodePod + "}", []string{"2Gi"}, wellGrown, 1, corev1.PersistentVolumeClaimNodeResizePending, "1Gi"},
	{"bare", "{}", []string{"2Gi"}, wellGrown, 0, "", "2Gi"},
}

func isGrowing(pod *corev1.Pod) bool {
	return pod.Labels[tarnv1.LabelStep] == string(tarnv1.StepExpansion)
}

func wellGrown(pod *corev1.Pod) steppodtest.End {
	if isGrowing(pod) {
		return steppodtest.End{}
	}
	return wellBehaved(pod)
}

func growsSecond(pod *corev1.Pod) steppodtest.End {
	end := wellGrown(pod)
	end.Fails = isGrowing(pod) && strings.HasSuffix(pod.Name, "-1")
	return end
}

func growsLittle(pod *corev1.Pod) steppodtest.End {
	end := wellGrown(pod)
	end.Fails = isGrowing(pod) && pod.Spec.Containers[0].Args[0] == fmt.Sprint(4<<30)
	return end
}

func TestAVolumeGrowsWhereverTheControllerIsKilled(t *testing.T) {
	for _, g := range growths {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			server := testkit.OwnAPIServer(t)
			writes := 0
			t.Run("whole", func(t *testing.T) {
				writes = newWorld(t, server, "grow-"+g.name, corev1.PersistentVolumeReclaimDelete, g.ends).grow(g, testkit.NewKiller(0))
			})
			for _, n := range testkit.Deaths(t, writes) {
				t.Run(fmt.Sprint(n), func(t *testing.T) {
					name := fmt.Sprintf("grow-%s-%d", g.name, n)
					newWorld(t, server, name, corev1.PersistentVolumeReclaimDelete, g.ends).grow(g, testkit.NewKiller(n))
				})
			}
		})
	}
}

// grow creates a volume, expands it under a controller that may be killed, and deletes it. It
// returns the number of writes during the expansion.
func (w *world) grow(g growth, k *testkit.Killer) (writes int) {
	w.t.Helper()
	w.allowGrowth(g.section)
	stop := w.run(w.config)
	claim := w.claim()
	w.eventually("binding", w.bound(claim))
	stop()
	w.markBound(claim)

	defer k.Life(w.config, w.run)()
	for i, size := range g.asks {
		if i > 0 {
			w.eventually("failing", w.growthFailed(claim))
		}
		w.ask(claim, size)
	}
	w.eventually("growing", w.grown(claim, g))
	if got := len(w.kubelet.Ran(tarnv1.StepExpansion)); got < g.wantPods || got > g.wantPods+len(g.asks)-1 {
		w.t.Errorf("%d expansion pods ran, want %d", got, g.wantPods)
	}
	writes = k.Writes()
	if err := w.client.Delete(w.ctx, claim); err != nil {
		w.t.Fatal(err)
	}
	w.eventually("deleting", w.nothing)
	w.removeProvisioner()
	return writes
}

func (w *world) allowGrowth(section string) {
	w.t.Helper()
	for o, patch := range map[client.Object]string{
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.name}}: `{"allowVolumeExpansion": true}`,
		&pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: w.name}}:   `{"spec": {"volumeExpansion": ` + section + `}}`,
	} {
		if err := w.client.Patch(w.ctx, o, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			w.t.Fatal(err)
		}
	}
}

// markBound does the binder's part that a claim needs before it may request more.
func (w *world) markBound(claim *corev1.PersistentVolumeClaim) {
	w.t.Helper()
	w.eventually("marking the claim as bound", func() string {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(claim), claim); err != nil {
			return err.Error()
		}
		if claim.Spec.VolumeName == "" {
			return "it has no volume"
		}
		claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		if err := w.client.Status().Update(w.ctx, claim); err != nil {
			return err.Error()
		}
		return ""
	})
}

func (w *world) ask(claim *corev1.PersistentVolumeClaim, size string) {
	w.t.Helper()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"resources": {"requests": {"storage": "`+size+`"}}}}`))
	if err := w.client.Patch(w.ctx, claim.DeepCopy(), patch); err != nil {
		w.t.Fatalf("asking for %s: %v", size, err)
	}
}

func (w *world) growthFailed(claim *corev1.PersistentVolumeClaim) func() string {
	return func() string {
		now := &corev1.PersistentVolumeClaim{}
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(claim), now); err != nil {
			return err.Error()
		}
		for _, c := range now.Status.Conditions {
			if c.Type == corev1.PersistentVolumeClaimControllerResizeError {
				return ""
			}
		}
		return fmt.Sprintf("the claim says %+v", now.Status)
	}
}

func (w *world) grown(claim *corev1.PersistentVolumeClaim, g growth) func() string {
	return func() string {
		now, vol, record := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}, &tarnv1.PavVolume{}
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(claim), now); err != nil {
			return err.Error()
		}
		key := client.ObjectKey{Name: now.Spec.VolumeName}
		for _, o := range []client.Object{vol, record} {
			if err := w.client.Get(w.ctx, key, o); err != nil {
				return err.Error()
			}
		}
		status := now.Status
		idle := record.Status.Expansion != nil && record.Status.Expansion.TargetCapacity == 0 && meta.IsStatusConditionTrue(record.Status.Conditions, tarnv1.ConditionProvisioned)
		if !idle || record.Status.Capacity != 2<<30 || ptr.To(vol.Spec.Capacity[corev1.ResourceStorage]).Value() != 2<<30 ||
			ptr.To(status.Capacity[corev1.ResourceStorage]).String() != g.wantHas || ptr.To(status.AllocatedResources[corev1.ResourceStorage]).String() != "2Gi" ||
			status.AllocatedResourceStatuses[corev1.ResourceStorage] != g.wantStatus {
			return fmt.Sprintf("claim %+v, volume %v, record %+v", status, vol.Spec.Capacity, record.Status)
		}
		return w.noPods()
	}
}
