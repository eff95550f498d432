package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/layout"
	"tarn.dev/tarn/cluster/internal/pki"
)

const (
	// tokenLife is the lifetime of the tokens of Tarn's parts. Each is replaced after half of it.
	// The value must not be 3607 s, which the API server turns into a year.
	tokenLife = 24 * time.Hour
	// tokenCheck is how often the clock is read. A single timer for the whole time would be late by
	// as long as the machine was suspended.
	tokenCheck = time.Minute
)

// tokens makes the tokens of Tarn's parts, and replaces each before it expires. client-go reads the
// token files again every minute.
type tokens struct {
	layout layout.Layout
	life   time.Duration
	client func() (kubernetes.Interface, error)

	mu  sync.Mutex
	due map[string]time.Time // when to replace the token of an account
	// node is the UID of the Node that the token of the node agent names. If the Node is deleted and
	// registered again, the API server rejects that token.
	node types.UID
}

// keep replaces tokens until ctx ends. It retries a failure at the next check.
func (t *tokens) keep(ctx context.Context) {
	check := time.NewTicker(tokenCheck)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-check.C:
		}
		if err := t.replace(ctx, time.Now()); err != nil && ctx.Err() == nil {
			log.Printf("%v: trying again in %s", err, tokenCheck)
		}
	}
}

// replace makes a new token for each account whose token is due, or names a Node that is gone.
func (t *tokens) replace(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, tokenCheck)
	defer cancel()
	t.mu.Lock()
	var late []string
	for account, due := range t.due {
		if !now.Before(due) {
			late = append(late, account)
		}
	}
	_, agent := t.due[component.TarnNode]
	t.mu.Unlock()
	var errs []error
	if agent && !slices.Contains(late, component.TarnNode) {
		switch again, err := t.registeredAgain(ctx); {
		case err != nil:
			errs = append(errs, err)
		case again:
			late = append(late, component.TarnNode)
		}
	}
	for _, account := range late {
		errs = append(errs, t.issue(ctx, account, now))
	}
	return errors.Join(errs...)
}

// registeredAgain reports whether the Node is another object than the one in the agent's token.
func (t *tokens) registeredAgain(ctx context.Context) (bool, error) {
	client, err := t.client()
	if err != nil {
		return false, err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, t.layout.NodeName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil // the kubelet has not registered it yet
	} else if err != nil {
		return false, fmt.Errorf("reading the Node of the node agent's token: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return node.UID != t.node, nil
}

// issue replaces an account's token by a new one.
func (t *tokens) issue(ctx context.Context, account string, now time.Time) error {
	client, err := t.client()
	if err != nil {
		return err
	}
	seconds := int64(t.life / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if account == component.TarnNode {
		if request.Spec.BoundObjectRef, err = t.thisNode(ctx, client); err != nil {
			return err
		}
	}
	made, err := client.CoreV1().ServiceAccounts("tarn-system").CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating a token for %s: %w", account, err)
	}
	if err := layout.WriteFile(t.layout.TokenOf(account), []byte(made.Status.Token), 0o600); err != nil {
		return err
	}
	expires := made.Status.ExpirationTimestamp.Time
	t.mu.Lock()
	defer t.mu.Unlock()
	t.due[account] = expires.Add(-expires.Sub(now) / 2)
	if bound := request.Spec.BoundObjectRef; bound != nil {
		t.node = bound.UID
	}
	return nil
}

// thisNode is the node as the kubelet has registered it. It waits for the registration.
func (t *tokens) thisNode(ctx context.Context, client kubernetes.Interface) (*authenticationv1.BoundObjectReference, error) {
	name := t.layout.NodeName()
	var node *corev1.Node
	selector := fields.OneTermEqualSelector("metadata.name", name).String()
	nodes := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return client.CoreV1().Nodes().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return client.CoreV1().Nodes().Watch(ctx, o)
		},
	}, client)
	err := await(ctx, nodes, &corev1.Node{}, func(o runtime.Object) (there bool) {
		node, there = o.(*corev1.Node)
		return there
	})
	if err != nil {
		return nil, fmt.Errorf("node %s is not registered (%w): %s", name, err, lastLines(t.layout.Log(component.Kubelet), 1))
	}
	return &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}, nil
}

// token writes the kubeconfig of a part of Tarn, with a token of its service account as in any
// cluster. The API server need not verify a certificate for each request. The node agent's token
// names its node, and a policy of Tarn's restricts the agent to that node. A certificate cannot
// name the node of its owner.
func (s *Supervisor) token(ctx context.Context, account string) error {
	if err := s.tokens.issue(ctx, account, time.Now()); err != nil {
		return err
	}
	authority, err := os.ReadFile(s.config.Layout.PKI("ca.crt"))
	if err != nil {
		return fmt.Errorf("reading the cluster's authority: %w", err)
	}
	config := pki.Kubeconfig{
		Cluster: s.config.Layout.Name, Server: s.config.State.Server(), Authority: authority, TokenFile: s.config.Layout.TokenOf(account),
	}
	return config.Write(s.config.Layout.KubeconfigOf(account))
}
