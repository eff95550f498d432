package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// clusterName is the benchmark's cluster; there is one at a time.
const clusterName = "tarn-bench-protect"

// measure does one run on a cluster of its own.
func measure(ctx context.Context, program string, one subject, claims, pods int) (r result, err error) {
	down := func() error {
		_, err := command(context.Background(), program, "down")
		return err
	}
	if err := down(); err != nil { // an interrupted run's cluster is not fresh
		return r, err
	}
	defer func() { err = errors.Join(err, down()) }()
	if _, err := command(ctx, program, append([]string{"up", "--without-api"}, one.up...)...); err != nil {
		return r, err
	}
	path, err := command(ctx, program, "kubeconfig")
	if err != nil {
		return r, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", strings.TrimSpace(path))
	if err != nil {
		return r, err
	}
	config.QPS, config.Burst = -1, -1
	b := &bench{pods: pods}
	for i := range claims + pods {
		b.claims = append(b.claims, fmt.Sprintf("%s-%04d", name, i))
	}
	if b.client, err = kubernetes.NewForConfig(config); err != nil {
		return r, err
	}
	return b.deletion(ctx, one.name)
}

// command runs tarn-cluster for the cluster and returns its output.
func command(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, append(args, "--name="+clusterName)...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, args[0], err, strings.TrimSpace(complaint.String()))
	}
	return string(out), nil
}
