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
	// tokenLife is how long a token of Tarn's is valid. It is replaced after half of that. It must not be 3607 s: the API server
	// makes a year of that.
	tokenLife = 24 * time.Hour
	// tokenCheck is how often the clock is read. A timer for the whole time would be late by as long as the machine was suspended.
	tokenCheck = time.Minute
)

// tokens makes the tokens of Tarn's parts, and replaces each before it expires. client-go reads their files again every minute.
type tokens struct {
	layout layout.Layout
	life   time.Duration
	client func() (kubernetes.Interface, error)

	mu  sync.Mutex
	due map[string]time.Time // when to replace the token of an account
}

// keep replaces tokens until ctx ends. A failure is tried again at the next check.
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

// replace makes a new token for each account whose time has come.
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

// issue writes a new token of an account in the place of the old one.
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

// thisNode is the node as the kubelet has registered it, which is waited for.
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

// token writes the kubeconfig of a part of Tarn, with a token of its service account, as it has one in any cluster: the API server need not
// verify a certificate for each request, and the node agent's token names its node. A policy of Tarn's holds the agent to that node; a
// certificate cannot say on which node its owner runs.
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
