package supervisor

import (
	"context"
	"fmt"
	"os"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/pki"
)

// tokenSeconds is how long the tokens of Tarn's parts are good. New ones are made at every start.
const tokenSeconds = 3 * 365 * 24 * 60 * 60

// token writes the kubeconfig of a part of Tarn, with a token of its service account, as it has one in any cluster: the API server need not
// verify a certificate for each request, and the node agent's token names its node. A policy of Tarn's holds the agent to that node; a
// certificate cannot say on which node its owner runs.
func (s *Supervisor) token(ctx context.Context, account string) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	seconds := int64(tokenSeconds)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if account == component.TarnNode {
		if request.Spec.BoundObjectRef, err = s.thisNode(ctx, client); err != nil {
			return err
		}
	}
	made, err := client.CoreV1().ServiceAccounts("tarn-system").CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making a token for %s: %w", account, err)
	}
	authority, err := os.ReadFile(s.config.Layout.PKI("ca.crt"))
	if err != nil {
		return fmt.Errorf("reading the cluster's authority: %w", err)
	}
	config := pki.Kubeconfig{Cluster: s.config.Layout.Name, Server: s.config.State.Server(), Authority: authority, Token: made.Status.Token}
	return config.Write(s.config.Layout.KubeconfigOf(account))
}

// thisNode is the node as the kubelet has registered it, which is waited for.
func (s *Supervisor) thisNode(ctx context.Context, client kubernetes.Interface) (*authenticationv1.BoundObjectReference, error) {
	name := s.config.Layout.NodeName()
	var node *corev1.Node
	nodes := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "", fields.OneTermEqualSelector("metadata.name", name))
	err := await(ctx, nodes, &corev1.Node{}, func(o runtime.Object) (there bool) {
		node, there = o.(*corev1.Node)
		return there
	})
	if err != nil {
		return nil, fmt.Errorf("node %s is not registered (%w): %s", name, err, lastLines(s.config.Layout.Log(component.Kubelet), 1))
	}
	return &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}, nil
}
