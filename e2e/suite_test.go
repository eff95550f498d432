//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/go-logr/logr"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// suite is what all cases share: the cluster under test. cached reads from a cache fed by watches;
// live reads from the API server.
var suite struct {
	live    client.Client
	cached  cache.Cache
	logs    kubernetes.Interface
	news    *news
	machine machine
}

func TestMain(m *testing.M) {
	ctx, stop := context.WithCancel(context.Background())
	if err := connect(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	status := m.Run()
	if status == 0 {
		if err := nothingLeftAtAll(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "e2e: after all cases:", err)
			status = 1
		}
	}
	stop()
	os.Exit(status)
}

// connect fills suite from the environment.
func connect(ctx context.Context) error {
	ctrl.SetLogger(logr.Discard())
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		return errors.New("KUBECONFIG is not set: run `make e2e`, or name the cluster to test")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return err
	}
	// The cases must not be slowed by their own client's rate limit.
	config.QPS, config.Burst = 500, 1000
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), pav.AddToScheme(scheme), tarn.AddToScheme(scheme)); err != nil {
		return err
	}
	if suite.live, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	// Unknown fields are rejected, as with kubectl.
	suite.live = client.WithFieldValidation(suite.live, "Strict")
	if suite.logs, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if suite.cached, err = cache.New(config, cache.Options{Scheme: scheme}); err != nil {
		return err
	}
	if suite.machine, err = thisMachine(); err != nil {
		return err
	}
	suite.news = newNews()
	return follow(ctx)
}

// followed are the kinds whose changes notify waiting callers.
var followed = []client.Object{
	&corev1.Pod{}, &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}, &corev1.Event{},
	&storagev1.CSIDriver{}, &autoscalingv2.HorizontalPodAutoscaler{}, &pav.PavProvisioner{}, &tarn.PavVolume{}, &tarn.PavStage{}, &tarn.PersistentVolumeSet{}, &tarn.App{},
}

// follow starts the watches and returns when their first lists are complete.
func follow(ctx context.Context) error {
	for _, kind := range followed {
		informer, err := suite.cached.GetInformer(ctx, kind)
		if err != nil {
			return fmt.Errorf("following %T: %w; is Tarn installed?", kind, err)
		}
		if _, err := informer.AddEventHandler(suite.news); err != nil {
			return err
		}
	}
	// Start returns when ctx ends, with the process.
	go func() { _ = suite.cached.Start(ctx) }()
	if !suite.cached.WaitForCacheSync(ctx) {
		return errors.New("the initial lists did not arrive")
	}
	return nil
}
