//go:build e2e && others

package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// metricsGroup is where autoscalers request metrics that do not belong to pods.
const metricsGroup = "/apis/external.metrics.k8s.io/v1beta1"

// measures serves a metric to the cluster's autoscaler until the case ends. A cluster has only one
// such API, so one case at a time may call it.
func (s *scenario) measures(metric string) *atomic.Int64 {
	s.t.Helper()
	s.needsThisMachine()
	value := &atomic.Int64{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := fields{"kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": fields{}, "items": []any{fields{
			"metricName": metric, "metricLabels": fields{}, "timestamp": time.Now().UTC().Format(time.RFC3339), "value": strconv.FormatInt(value.Load(), 10),
		}}}
		switch {
		case strings.TrimSuffix(r.URL.Path, "/") == metricsGroup:
			answer = fields{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "external.metrics.k8s.io/v1beta1", "resources": []any{fields{
				"name": metric, "singularName": "", "namespaced": true, "kind": "ExternalMetricValueList", "verbs": []any{"get"},
			}}}
		case !strings.HasSuffix(r.URL.Path, "/"+metric):
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // the caller retries
	}))
	s.t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	port, err := strconv.ParseInt(address.Port(), 10, 32)
	if err != nil {
		s.t.Fatal(err)
	}
	s.create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "metrics"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Port: int32(port)}},
	}})
	service := &unstructured.Unstructured{Object: fields{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": fields{"name": "v1beta1.external.metrics.k8s.io"},
		"spec": fields{
			"group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
			"insecureSkipTLSVerify": true, "service": fields{"namespace": s.name, "name": "metrics", "port": port},
		},
	}}
	s.create(service)
	s.t.Cleanup(func() { s.deleteIfThere(service) })
	return value
}

func TestAPoolFollowsAMetricByTheAutoscaler(t *testing.T) {
	s := begin(t, "pool")
	value := s.measures("claims_per_minute")
	value.Store(10)
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	set := s.pool(1, 9, func(set *tarn.PersistentVolumeSet) {
		set.Spec.Scaler = &tarn.PersistentVolumeSetScalerReference{Namespace: s.name, Name: "auto"}
	})
	auto := metav1.ObjectMeta{Namespace: s.name, Name: "auto"}
	s.create(&tarn.PersistentVolumeSetScaler{ObjectMeta: auto, Spec: tarn.PersistentVolumeSetScalerSpec{PersistentVolumeSet: set.Name, Replicas: 1}})
	s.create(&autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: auto, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: tarn.GroupVersion.String(), Kind: "PersistentVolumeSetScaler", Name: "auto"},
		MinReplicas:    ptr.To[int32](1), MaxReplicas: 8,
		Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "claims_per_minute"},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: ptr.To(resource.MustParse("5"))},
		}}},
	}})
	s.filled(set, 2)
	value.Store(20)
	s.filled(set, 4)
}
