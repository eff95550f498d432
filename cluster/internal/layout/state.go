package layout

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// These say whose controllers do a job that both Kubernetes and Tarn can do.
const (
	ByTarn       = "tarn"
	ByKubernetes = "kubernetes"
)

// The defaults of `up`.
const (
	DefaultBinder      = ByTarn
	DefaultProtection  = ByTarn
	DefaultControllers = 1
)

// Options are the options given to `up`.
type Options struct {
	Stock            bool                `json:"stock,omitempty"`            // nothing of Tarn's
	ControlPlaneOnly bool                `json:"controlPlaneOnly,omitempty"` // etcd and API server alone
	WithoutNode      bool                `json:"withoutNode,omitempty"`      // controllers, but nothing that runs pods
	WithoutAPI       bool                `json:"withoutAPI,omitempty"`       // Tarn without the REST API of applications
	Binder           string              `json:"binder,omitempty"`           // ByTarn or ByKubernetes
	Protection       string              `json:"protection,omitempty"`       // ByTarn or ByKubernetes
	TarnControllers  int                 `json:"tarnControllers,omitempty"`  // 1, or 2: one works, the other stands by
	TarnBinary       string              `json:"tarnBinary,omitempty"`
	SpendMemory      bool                `json:"spendMemory,omitempty"` // to save the time of processors
	ExtraArgs        map[string][]string `json:"extraArgs,omitempty"`   // by component
}

// Check returns an error for options that are not valid as a user gave them.
func (o Options) Check() error {
	for _, job := range []struct{ flag, value string }{{"binder", o.Binder}, {"protection", o.Protection}} {
		if job.value != "" && job.value != ByTarn && job.value != ByKubernetes {
			return fmt.Errorf("--%s=%s: use %s or %s", job.flag, job.value, ByTarn, ByKubernetes)
		}
		if job.value == ByTarn && !o.HasTarn() {
			return fmt.Errorf("--%s=%s: there is no Tarn in a cluster with --stock or --control-plane-only: leave one of the two out", job.flag, ByTarn)
		}
	}
	if o.TarnControllers < 0 || o.TarnControllers > 2 {
		return fmt.Errorf("--tarn-controllers=%d: use 1, or 2 for one that works and one that stands by", o.TarnControllers)
	}
	return nil
}

// After fills in the options that the user left out: with the cluster's earlier ones, else with the
// defaults. A cluster without Tarn leaves every job to Kubernetes.
func (o Options) After(earlier Options) Options {
	if !o.HasTarn() {
		o.Binder, o.Protection, o.TarnControllers = ByKubernetes, ByKubernetes, 0
		return o
	}
	o.Binder = cmp.Or(o.Binder, earlier.Binder, DefaultBinder)
	o.Protection = cmp.Or(o.Protection, earlier.Protection, DefaultProtection)
	o.TarnControllers = cmp.Or(o.TarnControllers, earlier.TarnControllers, DefaultControllers)
	return o
}

// Same reports whether a cluster that runs with these options matches those asked for.
func (o Options) Same(asked Options) bool {
	asked = asked.After(o)
	return o.Stock == asked.Stock && o.ControlPlaneOnly == asked.ControlPlaneOnly && o.WithoutNode == asked.WithoutNode && o.WithoutAPI == asked.WithoutAPI &&
		o.Binder == asked.Binder && o.Protection == asked.Protection && o.TarnControllers == asked.TarnControllers && o.SpendMemory == asked.SpendMemory &&
		maps.EqualFunc(o.ExtraArgs, asked.ExtraArgs, slices.Equal)
}

// HasNode reports whether the cluster has a node, and therefore a network, a runtime and a kubelet.
func (o Options) HasNode() bool { return !o.ControlPlaneOnly && !o.WithoutNode }

// HasControllers reports whether anything reconciles in the cluster.
func (o Options) HasControllers() bool { return !o.ControlPlaneOnly }

// HasTarn reports whether Tarn itself runs in the cluster.
func (o Options) HasTarn() bool { return !o.Stock && !o.ControlPlaneOnly }

// State is what a cluster records between two runs, in the state file in its data directory.
type State struct {
	Name    string  `json:"name"`
	Data    string  `json:"dataDir"`
	Block   int     `json:"block"` // the number of its network; unused without a node
	Ports   Ports   `json:"ports"`
	Options Options `json:"options"`
	Nodes   []Node  `json:"nodes,omitempty"` // beside the first
	// Loops are the loop devices that were attached on this machine before the cluster first
	// started. They are never the cluster's own.
	Loops []string `json:"loopsBefore"`
	// Doomed says that the cluster's removal has begun. The remaining data is incomplete and must
	// not be used.
	Doomed bool `json:"doomed,omitempty"`
}

// Begun reports whether the data directory holds nothing but the remains of a first start that was
// killed before its state was written.
func (l Layout) Begun() bool {
	entries, err := os.ReadDir(l.Data)
	return err == nil && len(entries) == 1 && entries[0].Name() == filepath.Base(l.StateFile())+next
}

// Address is where the API server listens: on the cable to the node, or on the loopback interface
// where there is no node. No other machine can reach either.
func (s State) Address() string {
	if s.Options.HasNode() {
		return NetOf(s.Block).Host.String()
	}
	return "127.0.0.1"
}

// ServiceRange is the range of the cluster's services. Without a node, no packet is ever sent to
// it, so all such clusters share one.
func (s State) ServiceRange() string {
	if s.Options.HasNode() {
		return NetOf(s.Block).Services.String()
	}
	return NetOf(0).Services.String()
}

// APIService is the address of kubernetes.default, the first of the range.
func (s State) APIService() string {
	if s.Options.HasNode() {
		return NetOf(s.Block).API.String()
	}
	return NetOf(0).API.String()
}

// Server is the URL of the API server.
func (s State) Server() string { return fmt.Sprintf("https://%s:%d", s.Address(), s.Ports[PortAPI]) }

// AppsServer is the URL of the REST API of applications, "" where it does not run.
func (s State) AppsServer() string {
	if !s.Options.HasTarn() || s.Options.WithoutAPI {
		return ""
	}
	return fmt.Sprintf("https://127.0.0.1:%d", s.Ports[PortTarnAPI])
}

// ReadState reads a state file. If it is missing, the error is os.ErrNotExist.
func ReadState(path string) (State, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return State{}, fmt.Errorf("reading the cluster's state: %w", err)
	}
	var s State
	if err := json.Unmarshal(raw, &s); err != nil {
		return State{}, fmt.Errorf("state file %s is damaged (%w): remove the cluster with `tarn-cluster down` and start it again", path, err)
	}
	return s, nil
}

// WriteState replaces the state file in one step, so that a crash leaves the old or the new one.
func WriteState(path string, s State) error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the cluster's state: %w", err)
	}
	return WriteFile(path, append(raw, '\n'), 0o600)
}

// next is the suffix of a file that is about to replace another.
const next = ".new"

// WriteFile replaces a file in one step. It makes the file's directory if that is missing.
func WriteFile(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("creating the directory of %s: %w", path, err)
	}
	if err := os.WriteFile(path+next, content, mode); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Chmod(path+next, mode); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Rename(path+next, path); err != nil {
		return fmt.Errorf("replacing %s: %w", path, err)
	}
	return nil
}
