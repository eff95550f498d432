package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"
	"tarn.dev/tarn/cluster/internal/component"
)

// probeEvery is the interval between probes of a component that cannot be watched.
const probeEvery = 50 * time.Millisecond

// until probes a component until it is ready.
func (s *Supervisor) until(ctx context.Context, limit time.Duration, name string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	every := time.NewTicker(probeEvery)
	defer every.Stop()
	var answer error // the last, but for one that was only cut off
	for {
		now := ready(ctx)
		if now == nil {
			return nil
		}
		if answer == nil || ctx.Err() == nil {
			answer = now
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return ctx.Err()
			}
			return fmt.Errorf("%s is not ready after %s (%v): %s: see %s", name, limit, answer, lastLines(s.config.Layout.Log(name), 1), s.logsOf(name))
		}
	}
}

// apiReady checks that the API server serves, including its built-in roles and priority classes.
func (s *Supervisor) apiReady() func(context.Context) error {
	var client *http.Client
	return func(ctx context.Context) error {
		if client == nil {
			config, err := s.restConfig()
			if err != nil {
				return err
			}
			if client, err = rest.HTTPClientFor(config); err != nil {
				return err
			}
		}
		return get(ctx, client, s.config.State.Server()+"/readyz")
	}
}

// httpReady checks the two probes of a part of Tarn.
func httpReady(port int) func(context.Context) error {
	base := fmt.Sprintf("http://127.0.0.1:%d", port)
	return func(ctx context.Context) error {
		return errors.Join(get(ctx, http.DefaultClient, base+"/healthz"), get(ctx, http.DefaultClient, base+"/readyz"))
	}
}

func get(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(answer.Body, 4096))
		return fmt.Errorf("%s: %s %s", url, answer.Status, firstFailure(string(body)))
	}
	return nil
}

// firstFailure returns the first failing check of the API server's list.
func firstFailure(body string) string {
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "[-]") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// runtimeReady checks that containerd's socket is open. containerd opens it once all its plugins
// are loaded.
func (s *Supervisor) runtimeReady(ctx context.Context) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", s.config.Layout.ContainerdSocket())
	if err != nil {
		return err
	}
	return c.Close()
}

func (s *Supervisor) restConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.config.Layout.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	return config, nil
}

func (s *Supervisor) client() (kubernetes.Interface, error) {
	config, err := s.restConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client for the API server: %w", err)
	}
	return client, nil
}

// untilNodeReady waits until pods can run: the node is Ready and accepts pods, and the default
// namespace has its service account.
func (s *Supervisor) untilNodeReady(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client, err := s.client()
	if err != nil {
		return err
	}
	name := s.config.Layout.NodeName()
	nodes := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "", fields.OneTermEqualSelector("metadata.name", name))
	err = await(ctx, nodes, &corev1.Node{}, func(o runtime.Object) bool {
		node, ok := o.(*corev1.Node)
		return ok && takesPods(node, s.progress.began)
	})
	if err != nil {
		return fmt.Errorf("node %s is not Ready after %s (%w): %s", name, limit, err, lastLines(s.config.Layout.Log(component.Kubelet), 1))
	}
	return s.untilAccount(ctx, limit, metav1.NamespaceDefault, "default")
}

// untilAccount waits until a namespace has a service account. That of the default namespace proves
// that the controller manager works.
func (s *Supervisor) untilAccount(ctx context.Context, limit time.Duration, namespace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client, err := s.client()
	if err != nil {
		return err
	}
	accounts := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "serviceaccounts", namespace, fields.OneTermEqualSelector("metadata.name", name))
	if err := await(ctx, accounts, &corev1.ServiceAccount{}, func(runtime.Object) bool { return true }); err != nil {
		return fmt.Errorf("namespace %s has no service account %s after %s (%w): see the logs of kube-controller-manager and tarn-install", namespace, name, limit, err)
	}
	return nil
}

func await(ctx context.Context, lw cache.ListerWatcher, kind runtime.Object, done func(runtime.Object) bool) error {
	_, err := watchtools.UntilWithSync(ctx, lw, kind, nil, func(e watch.Event) (bool, error) {
		return e.Type != watch.Deleted && done(e.Object), nil
	})
	return err
}

// takesPods reports whether a node has been Ready since the given time, and the controller manager
// has seen that. After a crash, the record still says Ready from before.
func takesPods(n *corev1.Node, since time.Time) bool {
	for _, taint := range n.Spec.Taints {
		// The administrator sets these two, and may keep them while the node starts again.
		if taint.Key == corev1.TaintNodeOutOfService || taint.Key == corev1.TaintNodeUnschedulable {
			continue
		}
		if taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute {
			return false
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(since.Truncate(time.Second))
		}
	}
	return false
}

// lastLines returns the end of a log: what a component printed before it ended.
func lastLines(path string, n int) string {
	f, err := os.Open(path)
	if err != nil {
		return "it wrote no log"
	}
	defer f.Close()
	const tail = 4096
	if end, err := f.Seek(0, io.SeekEnd); err == nil && end > tail {
		f.Seek(-tail, io.SeekEnd) //nolint:errcheck // reading from the start does as well
	} else {
		f.Seek(0, io.SeekStart) //nolint:errcheck
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	said := strings.TrimSpace(string(text))
	if said == "" {
		return "it wrote no log"
	}
	lines := strings.Split(said, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
