package layout

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Options are what `up` was asked for.
type Options struct {
	Stock            bool                `json:"stock,omitempty"`            // nothing of Tarn's
	ControlPlaneOnly bool                `json:"controlPlaneOnly,omitempty"` // etcd and API server alone
	TarnBinary       string              `json:"tarnBinary,omitempty"`
	ExtraArgs        map[string][]string `json:"extraArgs,omitempty"` // by component
}

// HasNode says whether the cluster has a node, so a network, a runtime and a kubelet.
func (o Options) HasNode() bool { return !o.ControlPlaneOnly }

// HasTarn says whether Tarn itself runs in the cluster.
func (o Options) HasTarn() bool { return !o.Stock && !o.ControlPlaneOnly }

// State is what a cluster remembers between two runs, in the state file in its data folder.
type State struct {
	Name    string  `json:"name"`
	Data    string  `json:"dataDir"`
	Block   int     `json:"block"` // the number of its network; unused without a node
	Ports   Ports   `json:"ports"`
	Options Options `json:"options"`
	// Loops are the loop devices that were attached on this machine before the cluster first started: never its own.
	Loops []string `json:"loopsBefore"`
}

// Address is where the API server listens: on the cable to the node, or on the loopback interface where there is no node.
// Neither can be reached from outside the machine.
func (s State) Address() string {
	if s.Options.HasNode() {
		return NetOf(s.Block).Host.String()
	}
	return "127.0.0.1"
}

// ServiceRange is the range of the cluster's services. Without a node no packet is ever sent to it, so all such clusters share one.
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

// ReadState reads a state file. A missing one is reported as os.ErrNotExist.
func ReadState(path string) (State, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return State{}, fmt.Errorf("reading the cluster's state: %w", err)
	}
	var s State
	if err := json.Unmarshal(raw, &s); err != nil {
		return State{}, fmt.Errorf("state file %s is damaged (%w): remove the cluster with `tarn-cluster down` and start anew", path, err)
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

// WriteFile replaces a file in one step, making its folder where it is missing.
func WriteFile(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making the folder of %s: %w", path, err)
	}
	next := path + ".new"
	if err := os.WriteFile(next, content, mode); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Chmod(next, mode); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("replacing %s: %w", path, err)
	}
	return nil
}
