package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"reflect"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestEachWriteIsOneLineOfTheLog(t *testing.T) {
	var written bytes.Buffer
	logger := logr.FromSlogHandler(slog.NewJSONHandler(&written, nil))
	ctx := log.IntoContext(context.Background(), logger)
	c := loggingClient{fake.NewClientBuilder().WithScheme(Scheme()).WithStatusSubresource(&tarnv1.PavVolume{}).Build()}
	record := &tarnv1.PavVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", UID: "u1"}}
	yes := true
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tarn-volumes", Name: "create-1", UID: "u2", Labels: map[string]string{tarnv1.LabelVolume: "pvc-1"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "PavVolume", Name: "pvc-1", UID: "u1", Controller: &yes}}}}
	recorder := loggingRecorder{&events.FakeRecorder{Events: make(chan string, 1)}, logger, Scheme()}

	recordPairs := map[string]any{"kind": "PavVolume", "object": "pvc-1", "uid": "u1"}
	podPairs := map[string]any{"kind": "Pod", "object": "tarn-volumes/create-1", "uid": "u2", "owner": "PavVolume pvc-1", "volume": "pvc-1"}
	for _, step := range []struct {
		do   func() error
		want string
		more map[string]any
		on   map[string]any
	}{
		{func() error { return c.Create(ctx, record) }, "create", nil, recordPairs},
		{func() error { return c.Create(ctx, record.DeepCopy()) }, "", nil, nil}, // its error is the caller's
		{func() error {
			base := record.DeepCopy()
			record.Finalizers = []string{"tarn.dev/a"}
			record.Annotations = map[string]string{"tarn.dev/b": "c"}
			return c.Patch(ctx, record, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
		}, "patch", map[string]any{"changed": []any{"metadata.annotations.tarn.dev/b", "metadata.finalizers"}}, recordPairs},
		{func() error {
			record.Status.Phase = tarnv1.VolumeCreating
			record.Status.Conditions = []metav1.Condition{{Type: "Provisioned", Status: metav1.ConditionFalse, Reason: "PodWaits", Message: "no node"}}
			return c.Status().Update(ctx, record)
		}, "update status", map[string]any{"phase": "Creating", "Provisioned": "False PodWaits: no node"}, recordPairs},
		{func() error { return c.Create(ctx, pod) }, "create", nil, podPairs},
		{func() error { return c.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{}) }, "create eviction", nil, podPairs},
		{func() error { pod.ResourceVersion = ""; return c.Create(ctx, pod) }, "create", nil, podPairs},
		{func() error { return c.Delete(ctx, pod) }, "delete", nil, podPairs},
		{func() error {
			recorder.Eventf(record, nil, "Warning", "Failed", "Create", "%d times", 3)
			return nil
		}, "event", map[string]any{"type": "Warning", "reason": "Failed", "action": "Create", "note": "3 times"}, recordPairs},
	} {
		written.Reset()
		if err := step.do(); (err != nil) != (step.want == "") {
			t.Fatalf("%s: %v", step.want, err)
		}
		if step.want == "" {
			if written.Len() > 0 {
				t.Errorf("a write that failed is logged: %s", &written)
			}
			continue
		}
		var got map[string]any
		if err := json.Unmarshal(written.Bytes(), &got); err != nil {
			t.Fatalf("%s: %q is not one line: %v", step.want, &written, err)
		}
		for _, key := range []string{"time", "level", "took"} {
			if key != "took" || step.want != "event" {
				if got[key] == nil {
					t.Errorf("%s: no %s in %s", step.want, key, &written)
				}
			}
			delete(got, key)
		}
		want := map[string]any{"msg": step.want}
		for _, pairs := range []map[string]any{step.on, step.more} {
			for key, value := range pairs {
				want[key] = value
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	}
}
