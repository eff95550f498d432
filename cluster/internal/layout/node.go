package layout

import (
	"cmp"
	"fmt"
	"slices"
)

// The numbers of a cluster's nodes. The first node has number 1, and the name of the cluster.
const (
	firstFurther = 2
	// MaxNodes is how many nodes a cluster can have.
	MaxNodes = 5
)

// Node is a further node of a cluster. Its number decides its addresses and its zone.
type Node struct {
	Name   string `json:"name"`
	Number int    `json:"number"`
}

// Link is the name of a node's cable in the first node's network, and of its run directory.
func (n Node) Link() string { return fmt.Sprintf("node-%d", n.Number) }

// Zone is the value of a node's label topology.kubernetes.io/zone: a, b and c by turns.
func (n Node) Zone() string { return string("abc"[(max(n.Number, 1)-1)%3]) }

// Node returns a further node by its name.
func (s State) Node(name string) (Node, bool) {
	i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Name == name })
	if i < 0 {
		return Node{}, false
	}
	return s.Nodes[i], true
}

// AddNode gives the cluster a further node. With an empty name, the node is called after the cluster
// and its number.
func (s State) AddNode(name string) (State, Node, error) {
	n := Node{Number: firstFurther}
	for slices.ContainsFunc(s.Nodes, func(o Node) bool { return o.Number == n.Number }) {
		n.Number++
	}
	if n.Number > MaxNodes {
		return s, n, fmt.Errorf("cluster %s has %d nodes, and more are not supported: remove one with `tarn-cluster node remove`", s.Name, MaxNodes)
	}
	n.Name = cmp.Or(name, fmt.Sprintf("%s-%d", s.Name, n.Number))
	if !nodeForm.MatchString(n.Name) {
		return s, n, fmt.Errorf("node name %q: use 1 to 40 lower-case letters, digits and dashes, beginning and ending with a letter or digit", n.Name)
	}
	if _, taken := s.Node(n.Name); taken || n.Name == s.Name {
		return s, n, fmt.Errorf("cluster %s has a node %s already: choose another name", s.Name, n.Name)
	}
	s.Nodes = append(slices.Clone(s.Nodes), n)
	return s, n, nil
}

// RemoveNode takes a further node out of the cluster.
func (s State) RemoveNode(name string) State {
	s.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n Node) bool { return n.Name == name })
	return s
}

// WithNodes gives the cluster so many nodes; 0 means those it has. It removes none, because that
// would delete their data.
func (s State) WithNodes(count int) (State, error) {
	switch {
	case count == 0:
		return s, nil
	case count < 1 || count > MaxNodes:
		return s, fmt.Errorf("--nodes=%d: use 1 to %d", count, MaxNodes)
	case !s.Options.HasNode():
		return s, fmt.Errorf("--nodes=%d: there is no node in a cluster with --control-plane-only or --without-node: leave one of the two out", count)
	case count < 1+len(s.Nodes):
		return s, fmt.Errorf("--nodes=%d: cluster %s has %d nodes: leave the flag out, and remove nodes with `tarn-cluster node remove`", count, s.Name, 1+len(s.Nodes))
	}
	for 1+len(s.Nodes) < count {
		var err error
		if s, _, err = s.AddNode(""); err != nil {
			return s, err
		}
	}
	return s, nil
}
