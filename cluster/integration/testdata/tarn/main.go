// Command tarn stands for Tarn in the tests of the embedded cluster: it keeps to the contract between the two and writes down what it
// was given, so that the tests need no build of the product.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
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
		return nil
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
