// Command demo applies examples/hello-world to the cluster of KUBECONFIG and follows it until the
// pod is ready. Then it shows what the pod read and how long things took. It is a user of Tarn and
// must not know how Tarn is made.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

const (
	// folder is the directory of the manifests, relative to the top of the repository.
	folder = "examples/hello-world"
	// name is the name of every object in it.
	name = "hello-world"
	// patience is how long the demo waits for anything. Usually it takes seconds.
	patience = 2 * time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	ctrl.SetLogger(logr.Discard())
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		return errors.New("KUBECONFIG is not set; `make demo` sets it to the cluster it starts")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return err
	}
	manifests, err := read(folder)
	if err != nil {
		return err
	}
	f, err := newFollower(ctx, config, out)
	if err != nil {
		return err
	}
	if err := f.clean(ctx, manifests); err != nil {
		return err
	}
	if err := f.apply(ctx, manifests); err != nil {
		return err
	}
	if err := f.untilReady(ctx); err != nil {
		return err
	}
	if err := showLogs(ctx, config, out); err != nil {
		return err
	}
	f.table(path)
	return nil
}

// read gives the objects of a directory in the order of its files.
func read(folder string) ([]*unstructured.Unstructured, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no manifests in %s: run this from the top of the repository", folder)
	}
	slices.Sort(files)
	var objects []*unstructured.Unstructured
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		o := &unstructured.Unstructured{}
		if err := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096).Decode(&o.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// newFollower connects and starts to watch.
func newFollower(ctx context.Context, config *rest.Config, out io.Writer) (*follower, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), pav.AddToScheme(scheme), tarn.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	live, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	watched, err := cache.New(config, cache.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	f := follow(live, out)
	for _, kind := range []client.Object{
		&pav.PavProvisioner{}, &corev1.PersistentVolumeClaim{}, &tarn.PavVolume{}, &tarn.PavStage{}, &corev1.Pod{}, &corev1.Event{},
	} {
		informer, err := watched.GetInformer(ctx, kind)
		if err != nil {
			return nil, fmt.Errorf("watching %T: %w; is Tarn installed in this cluster?", kind, err)
		}
		if _, err := informer.AddEventHandler(f); err != nil {
			return nil, err
		}
	}
	// Start returns when ctx ends.
	go func() { _ = watched.Start(ctx) }()
	if !watched.WaitForCacheSync(ctx) {
		return nil, errors.New("the cluster does not respond")
	}
	return f, nil
}

// follow gives a follower that receives no changes yet.
func follow(live client.Client, out io.Writer) *follower {
	return &follower{live: live, out: out, came: make(chan struct{}, 1), last: map[string]string{}}
}

// clean deletes the objects of an earlier demo and waits until they are gone.
func (f *follower) clean(ctx context.Context, manifests []*unstructured.Unstructured) error {
	began := time.Now()
	var waiting []*unstructured.Unstructured
	for _, o := range slices.Backward(manifests) {
		err := f.live.Delete(ctx, o.DeepCopy())
		if err == nil {
			waiting = append(waiting, o)
		} else if !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	for {
		left, err := f.left(ctx, waiting)
		if err == nil && left {
			err = f.wait(ctx, "what an earlier demo left is gone")
		}
		if err != nil {
			return err
		}
		if !left {
			fmt.Fprintf(f.out, "  %5.2fs  deleted what an earlier demo left\n", time.Since(began).Seconds())
			return nil
		}
	}
}

// left reports whether any of the objects still exists.
func (f *follower) left(ctx context.Context, objects []*unstructured.Unstructured) (bool, error) {
	for _, o := range objects {
		err := f.live.Get(ctx, client.ObjectKeyFromObject(o), o.DeepCopy())
		if !apierrors.IsNotFound(err) {
			return true, err
		}
	}
	return false, nil
}

// apply makes the objects and starts the clock at the claim.
func (f *follower) apply(ctx context.Context, manifests []*unstructured.Unstructured) error {
	f.mu.Lock()
	f.began = time.Now()
	f.mu.Unlock()
	for _, o := range manifests {
		f.mu.Lock()
		switch o.GetKind() {
		case "PersistentVolumeClaim":
			f.claimMade = time.Now()
		case "Pod":
			f.podMade = time.Now()
		}
		f.mu.Unlock()
		if err := f.live.Create(ctx, o.DeepCopy()); err != nil {
			return fmt.Errorf("creating %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		f.mu.Lock()
		f.say(time.Now(), "%s %s: created", o.GetKind(), o.GetName())
		f.mu.Unlock()
	}
	return nil
}

// showLogs waits for the first line that the pod prints, and shows it.
func showLogs(ctx context.Context, config *rest.Config, out io.Writer) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	options := &corev1.PodLogOptions{Follow: true}
	stream, err := clients.CoreV1().Pods(corev1.NamespaceDefault).GetLogs(name, options).Stream(ctx)
	if err != nil {
		return fmt.Errorf("the pod's log: %w", err)
	}
	defer stream.Close()
	line, err := bufio.NewReader(stream).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the pod has not read anything from its volume: %w", err)
	}
	fmt.Fprintf(out, "\nThe pod read from its volume:\n\n  %s", line)
	return nil
}
