// Package kubelet asks kubelets how full volumes are. It shows them a token. So it speaks only to
// kubelets whose certificate the cluster's authority has signed, unless an administrator decides
// otherwise. It knows no policy and nothing of applications.
package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// patience is the timeout for an answer of a kubelet to a caller who waits for it.
	patience = 3 * time.Second
	// longPatience is the timeout for an answer to a controller. Large nodes take seconds.
	longPatience = 10 * time.Second
	// fresh is how long an answer is reused: kubelets measure once a minute.
	fresh = 10 * time.Second
	// nodes is for how many nodes answers are kept, atOnce how many nodes are asked at once.
	nodes, atOnce = 512, 8
	// longest is how many bytes of an answer are read.
	longest = 64 << 20
	// reserve is the largest part of a file system, in percent, that is taken for root's reserve.
	reserve = 10
)

// Kubelets asks kubelets. It is safe for concurrent use.
type Kubelets struct {
	reader client.Reader
	http   *http.Client
	known  *cache.LRUExpireCache
}

// New gives Kubelets that read pods and nodes through reader. They show kubelets the identity in a
// configuration.
func New(config *rest.Config, reader client.Reader) (*Kubelets, error) {
	if config.Insecure {
		return nil, errors.New("the API server's certificate is not verified, so kubelet certificates cannot be either: configure the certificate authority")
	}
	mine := rest.CopyConfig(config)
	mine.ServerName = ""
	return with(mine, reader)
}

// NewInsecure gives Kubelets that verify no certificate. The identity in the configuration must be
// worth nothing elsewhere, because anyone on the network may get its token.
func NewInsecure(config *rest.Config, reader client.Reader) (*Kubelets, error) {
	mine := rest.CopyConfig(config)
	mine.TLSClientConfig = rest.TLSClientConfig{Insecure: true}
	return with(mine, reader)
}

func with(config *rest.Config, reader client.Reader) (*Kubelets, error) {
	config.Timeout = longPatience
	caller, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of kubelets: %w", err)
	}
	caller.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Kubelets{reader: reader, http: caller, known: cache.NewLRUExpireCache(nodes)}, nil
}

// Usage is how full the file system of a volume is, in bytes. The volume may share that file system
// with others, and it may be larger than the volume.
type Usage struct {
	Used, Size int64
	// Available is what users may still write. Used and Available may be less than Size.
	Available int64
	// Time is when the kubelet measured, in whole seconds of its node's clock. Zero is unknown.
	Time time.Time
	// Ahead is by how much that clock is ahead of this machine's, zero if it is not.
	Ahead time.Duration
}

// Used gives how full the volumes of claims are, by the names of the claims. It leaves out claims
// that no pod with the labels uses, and claims that no kubelet reports. The error says why some are
// missing; the others are still given.
func (k *Kubelets) Used(ctx context.Context, namespace string, labels map[string]string) (map[string]Usage, error) {
	pods := &corev1.PodList{}
	if err := k.reader.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabels(labels)); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	asked := map[string]bool{}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodRunning {
			asked[pod.Spec.NodeName] = true
		}
	}
	var (
		mu    sync.Mutex
		wait  sync.WaitGroup
		errs  []error
		used  = map[string]Usage{}
		turns = make(chan struct{}, atOnce)
	)
	for name := range asked {
		wait.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			told, err := k.node(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			}
			for key, usage := range told {
				if key.Namespace == namespace && usage.Used >= used[key.Name].Used {
					used[key.Name] = usage
				}
			}
		})
	}
	wait.Wait()
	return used, errors.Join(errs...)
}

// node is Node for a name, with answers that are reused for a moment.
func (k *Kubelets) node(ctx context.Context, name string) (map[client.ObjectKey]Usage, error) {
	if found, ok := k.known.Get(name); ok {
		if told, ok := found.(map[client.ObjectKey]Usage); ok {
			return told, nil
		}
	}
	node := &corev1.Node{}
	if err := k.reader.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	told, err := k.Node(ctx, node)
	if err != nil {
		return nil, err
	}
	k.known.Add(name, told, fresh)
	return told, nil
}

// Node asks the kubelet of a node, each time anew, for the usage of the claims that pods of the
// node use.
func (k *Kubelets) Node(ctx context.Context, node *corev1.Node) (map[client.ObjectKey]Usage, error) {
	told, err := k.ask(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("asking the kubelet of node %s: %w", node.Name, err)
	}
	return told, nil
}

// summary is the part of a kubelet's answer that is read.
type summary struct {
	Pods []struct {
		Volume []struct {
			UsedBytes, CapacityBytes *int64
			AvailableBytes           int64
			Time                     time.Time
			PVCRef                   *struct{ Name, Namespace string }
		}
	}
}

func (k *Kubelets) ask(ctx context.Context, node *corev1.Node) (map[client.ObjectKey]Usage, error) {
	address := ""
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && address == "" {
			address = net.JoinHostPort(a.Address, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)))
		}
	}
	if address == "" {
		return nil, errors.New("the node has no internal address")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/stats/summary", nil)
	if err != nil {
		return nil, err
	}
	response, err := k.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answered %s", response.Status)
	}
	ahead := time.Duration(0)
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		ahead = max(0, time.Until(date))
	}
	var told summary
	if err := json.NewDecoder(io.LimitReader(response.Body, longest)).Decode(&told); err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	used := map[client.ObjectKey]Usage{}
	for _, pod := range told.Pods {
		for _, v := range pod.Volume {
			if v.PVCRef == nil || v.UsedBytes == nil || v.CapacityBytes == nil {
				continue
			}
			key := client.ObjectKey{Namespace: v.PVCRef.Namespace, Name: v.PVCRef.Name}
			if known, is := used[key]; !is || !v.Time.Before(known.Time) { // of several pods, the newest
				used[key] = Usage{Used: *v.UsedBytes, Size: *v.CapacityBytes, Available: available(v.AvailableBytes, *v.UsedBytes, *v.CapacityBytes), Time: v.Time, Ahead: ahead}
			}
		}
	}
	return used, nil
}

// available is what users may still write. Kubelets report 0 both for a full file system and for a
// driver that does not say. So 0 counts only if no more is free than root's reserve.
func available(reported, used, size int64) int64 {
	if free := size - used; reported == 0 && free > size/100*reserve {
		return free
	}
	return reported
}
