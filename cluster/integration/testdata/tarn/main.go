// Command tarn stands in for Tarn in the tests of the embedded cluster. It keeps the contract
// between the two and records its arguments, so that the tests need no build of the product.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(role string, args []string) error {
	given := map[string]string{}
	for i := 0; i+1 < len(args); i++ {
		if name, found := strings.CutPrefix(args[i], "--"); found {
			given[name] = args[i+1]
		}
	}
	if _, err := os.ReadFile(given["kubeconfig"]); err != nil {
		return err
	}
	if role == "install" {
		return install(given["kubeconfig"])
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	ok := func(http.ResponseWriter, *http.Request) {}
	mux.HandleFunc("/healthz", ok)
	mux.HandleFunc("/readyz", ok)
	mux.HandleFunc("/mounts", func(w http.ResponseWriter, _ *http.Request) { w.Write(mounts) }) //nolint:errcheck
	return http.ListenAndServe(given["health-probe-bind-address"], mux)
}

// install makes what the cluster needs from Tarn: the service accounts for the tokens of its parts.
func install(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx := context.Background()
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tarn-system"}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	for _, name := range []string{"tarn-controller", "tarn-node", "tarn-api"} {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := client.CoreV1().ServiceAccounts(space.Name).Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}
