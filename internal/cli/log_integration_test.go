//go:build integration

package cli

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

// lines receives the lines of a log as they are written.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// The test's API server runs without a namespace controller, so a deleted namespace stays.
func TestAManagersEventsThatEndWithTheirNamespaceAreNoErrors(t *testing.T) {
	t.Parallel()
	config := testkit.APIServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	written := make(lines, 100)
	mgr, err := kube.NewManager(config, ctrl.Options{
		Scheme: kube.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"},
		Logger: logr.FromSlogHandler(lateHandler{Handler: slog.NewJSONHandler(written, &slog.HandlerOptions{Level: everyStep})}),
	})
	if err != nil {
		t.Fatal(err)
	}
	client := testkit.Client(t, config)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "cli-log-ending"}}
	if err := client.Create(ctx, namespace); err != nil {
		t.Fatal(err)
	}
	if err := client.Delete(ctx, namespace); err != nil {
		t.Fatal(err)
	}
	recorder := mgr.GetEventRecorder("test")
	for _, name := range []string{namespace.Name, "cli-log-never"} {
		claim := testkit.Claim(name, "data", "u1", "gold")
		recorder.Eventf(claim, nil, corev1.EventTypeNormal, "Tried", "Try", "too late")
		for rejected := false; !rejected; {
			select {
			case line := <-written:
				rejected = strings.Contains(line, "Server rejected event")
				if strings.Contains(line, `"level":"ERROR"`) {
					t.Errorf("in namespace %s: %s", name, line)
				}
			case <-ctx.Done():
				t.Fatal("no Event was rejected")
			}
		}
	}
}
