package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/hostpath"
)

// pluginFlags say which in-process plugins run.
type pluginFlags struct {
	hostPathRoot string
	nodeName     string
}

func (f *pluginFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.hostPathRoot, "host-path-root", "", "directory where "+hostpath.Provisioner+" makes volumes, at the path that this node's kubelet uses; for clusters of one node; empty switches it off")
	flags.StringVar(&f.nodeName, "node-name", os.Getenv("NODE_NAME"), "name in the API of this process's node; needed for --host-path-root; the default is $NODE_NAME")
}

// plugins returns the plugins that the flags ask for.
func (f *pluginFlags) plugins() ([]plugin.Plugin, error) {
	if f.hostPathRoot == "" {
		return nil, nil
	}
	made, err := hostpath.New(f.hostPathRoot, f.nodeName)
	if err != nil {
		return nil, fmt.Errorf("--host-path-root and --node-name: %w", err)
	}
	if made.Place == "" {
		fmt.Fprintf(os.Stderr, "--host-path-root %s: cannot create .tarn-root there, for example because the disk is full or read-only: Tarn would not notice if another disk is mounted there later\n", f.hostPathRoot)
	}
	return []plugin.Plugin{made}, nil
}
