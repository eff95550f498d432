//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// Kubernetes' own autoscaler scales the pool. Without metrics, it uses its minimum.
func TestAHorizontalPodAutoscalerScalesAPool(t *testing.T) {
	t.Parallel()
	s := begin(t, "pool")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	set := s.pool(1, 4, func(set *tarn.PersistentVolumeSet) {
		set.Spec.Scaler = &tarn.PersistentVolumeSetScalerReference{Namespace: s.name, Name: "auto"}
	})
	auto := metav1.ObjectMeta{Namespace: s.name, Name: "auto"}
	scaler := &tarn.PersistentVolumeSetScaler{ObjectMeta: auto, Spec: tarn.PersistentVolumeSetScalerSpec{PersistentVolumeSet: set.Name, Replicas: 2}}
	s.create(scaler)
	s.filled(set, 2)
	three := int32(3)
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: auto, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: tarn.GroupVersion.String(), Kind: "PersistentVolumeSetScaler", Name: "auto"},
		MinReplicas:    &three, MaxReplicas: 4,
	}}
	s.create(hpa)
	s.filled(set, 3)
	s.await("the autoscaler to say that it can scale", func() (bool, string) {
		err := s.get(hpa)
		able := slices.ContainsFunc(hpa.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
			return c.Type == autoscalingv2.AbleToScale && c.Status == corev1.ConditionTrue
		})
		return err == nil && able && hpa.Status.DesiredReplicas == 3, fmt.Sprintf("it is %+v (%v)", hpa.Status, err)
	})
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(scaler), scaler); err != nil {
		t.Fatal(err)
	}
	if scaler.Spec.Replicas != 3 || scaler.Status.Replicas != 3 || !meta.IsStatusConditionTrue(scaler.Status.Conditions, tarn.ConditionFollowed) {
		t.Errorf("the scaler is %+v, %+v", scaler.Spec, scaler.Status)
	}
}
