package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
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

// replace makes a new token for each account whose token is due.
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
	t.mu.Unlock()
	var errs []error
	for _, account := range late {
		errs = append(errs, t.issue(ctx, account, now))
	}
	return errors.Join(errs...)
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
	return nil
}

// thisNode is the node as the kubelet has registered it. It waits for the registration.
func (t *tokens) thisNode(ctx context.Context, client kubernetes.Interface) (*authenticationv1.BoundObjectReference, error) {
	name := t.layout.NodeName()
	var node *corev1.Node
	nodes := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "", fields.OneTermEqualSelector("metadata.name", name))
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
