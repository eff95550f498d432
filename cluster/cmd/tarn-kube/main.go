// Command tarn-kube is every Kubernetes part of the embedded cluster in one file. The API server,
// controller manager, scheduler, kubelet, kube-proxy and kubectl share nearly all of their code.
// Linking them once saves half a gigabyte and most of the build time. The name of the program
// selects the part, or else its first argument.
//
// It adds no flag, default or patch. Package internal/component decides the arguments of the parts.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // CronJobs may name a time zone on a machine without a zone database

	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl's sign-in plugins
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// parts names every part and how it runs. A part returns its exit status.
var parts = map[string]func() int{
	"kube-apiserver":          server(apiserver.NewAPIServerCommand),
	"kube-controller-manager": server(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          server(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-proxy":              server(proxy.NewProxyCommand),
	"kubelet":                 server(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":                 runKubectl,
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, ok := parts[name]; !ok && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
	}
	run, ok := parts[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "tarn-kube: unknown component %q: name the program after a component, or give one of %s as the first argument\n", name, strings.Join(names(), ", "))
		os.Exit(2)
	}
	os.Exit(run())
}

// server makes a part from the constructor of its command. The constructor runs only for the
// selected part, because several of them register the same flags and metrics.
func server(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

func runKubectl() int {
	// kubectl reads its verbosity before it parses flags, because it logs while it builds its
	// commands (plugins, .kuberc).
	if _, err := logs.GlogSetter(cmd.GetLogVerbosity(os.Args)); err != nil {
		fmt.Fprintln(os.Stderr, "kubectl: flag -v:", err)
		return 2
	}
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints it the way kubectl does, and exits
		return 1
	}
	return 0
}

func names() []string {
	all := make([]string, 0, len(parts))
	for name := range parts {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}
