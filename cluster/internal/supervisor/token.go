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
	"k8s.io/client-go/tools/cache"
	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/pki"
)

// tokenSeconds is how long the node agent's token is good. A new one is made at every start.
const tokenSeconds = 3 * 365 * 24 * 60 * 60

// nodeToken writes the kubeconfig of Tarn's node agent, with a token of its service account that is bound to the node: a certificate
// cannot say on which node its owner runs, and an admission policy of Tarn's holds the agent to the node that its token names, here as
// in any cluster. The kubelet has to have registered the node before.
func (s *Supervisor) nodeToken(ctx context.Context) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	name := s.config.Layout.NodeName()
	var node *corev1.Node
	nodes := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "", fields.OneTermEqualSelector("metadata.name", name))
	err = await(ctx, nodes, &corev1.Node{}, func(o runtime.Object) (there bool) {
		node, there = o.(*corev1.Node)
		return there
	})
	if err != nil {
		return fmt.Errorf("node %s is not registered (%w): %s", name, err, lastLine(s.config.Layout.Log(component.Kubelet)))
	}
	seconds := int64(tokenSeconds)
	made, err := client.CoreV1().ServiceAccounts("tarn-system").CreateToken(ctx, "tarn-node", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making a token for the node agent: %w", err)
	}
	authority, err := os.ReadFile(s.config.Layout.PKI("ca.crt"))
	if err != nil {
		return fmt.Errorf("reading the cluster's authority: %w", err)
	}
	config := pki.Kubeconfig{Cluster: s.config.Layout.Name, Server: s.config.State.Server(), Authority: authority, Token: made.Status.Token}
	return config.Write(s.config.Layout.KubeconfigOf(component.TarnNode))
}
