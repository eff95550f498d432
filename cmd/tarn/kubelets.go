package main

import (
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/cli"
	"tarn.dev/tarn/internal/kubelet"
)

// teller is the account whose token is sent to kubelets. With the token of the API or of the
// controllers, a stolen node could create applications or privileged pods anywhere.
var teller = client.ObjectKey{Namespace: cli.Namespace, Name: "tarn-stats"}

// askingKubelets asks kubelets with the token of teller. If insecure is set, it does not verify
// their certificates.
func askingKubelets(config *rest.Config, live client.Client, insecure bool) (*kubelet.Kubelets, error) {
	asked := rest.AnonymousClientConfig(config)
	asked.Wrap(kubelet.As(live, teller))
	if insecure {
		return kubelet.NewInsecure(asked, live)
	}
	return kubelet.New(asked, live)
}
