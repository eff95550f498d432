package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/bench/results"
)

const (
	// name is the name of the provisioner, the class and the namespace.
	name = "bench-memory"
	// limit is how long a run may take.
	limit = 20 * time.Minute
	// controllerLimit and nodeLimit are the limits that issue 4 sets, in MiB.
	controllerLimit = 150
	nodeLimit       = 40
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "memory:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	usage := errors.New("say `memory controller` or `memory node`, and --help for the flags of either")
	if len(args) == 0 {
		return usage
	}
	b, err := connect()
	if err != nil {
		return err
	}
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	flags.StringVar(&b.profile, "profile", "", "file that the heap's profile is written to")
	folder := flags.String("results", "bench/results", "directory for the results; empty for none")
	program := flags.String("cluster", "bin/tarn-cluster", "the program tarn-cluster that the cluster is of, for the results")
	begin := func() {
		b.report = report{Began: time.Now().UTC().Truncate(time.Second), Machine: results.ThisMachine(ctx, *program, "")}
	}
	switch args[0] {
	case "controller":
		binary := flags.String("tarn", "bin/tarn", "the program to measure")
		volumes := flags.Int("volumes", 10000, "how many volumes, each with its record and claim")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		begin()
		return b.end(b.controller(ctx, *binary, *volumes), *folder, args[0])
	case "node":
		pid := flags.Int("pid", 0, "process id of the node agent")
		stages := flags.Int("stages", 100, "how many volumes are staged")
		profiles := flags.String("pprof", "", "host:port where the node agent serves profiles")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		begin()
		return b.end(b.node(ctx, *pid, *stages, *profiles), *folder, args[0])
	}
	return usage
}

// end saves the report, even where a part of it has failed. Last it returns whether the limits are
// kept.
func (b *bench) end(err error, folder, kind string) error {
	return errors.Join(err, b.report.save(folder, kind), b.report.verdict())
}

type bench struct {
	client client.WithWatch
	report report
	// profile is the path for a heap profile, "" for none.
	profile string
}

func connect() (*bench, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no way to a cluster: %w; set KUBECONFIG", err)
	}
	config.QPS, config.Burst = -1, -1
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), pavv1.AddToScheme(s), tarnv1.AddToScheme(s)); err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: s})
	return &bench{client: c}, err
}
