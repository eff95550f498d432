package steppod

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	storagev1 "k8s.io/api/storage/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	"tarn.dev/tarn/internal/volume"
	"tarn.dev/tarn/jinja"
)

// capacityField is where a provisioner says how much is free on a node.
const capacityField = "spec.nodeCapacity"

// RoomFor evaluates spec.nodeCapacity, which must be set, for a class. It gives the directory to
// measure on each node, and what must stay free there. The template knows nothing but the
// parameters of the class.
func RoomFor(ctx context.Context, p *pavv1.PavProvisioner, class *storagev1.StorageClass) (path, reserve string, err error) {
	params := map[string]any{}
	for key, value := range class.Parameters {
		params[key] = value
	}
	ctx, cancel := context.WithTimeout(ctx, evaluationTime)
	defer cancel()
	written := map[string]any{"path": p.Spec.NodeCapacity.Path, "reserve": p.Spec.NodeCapacity.Reserve}
	value, err := evaluateLiterally(ctx, written, map[string]any{varParams: params}, jinja.Limits{})
	if err != nil {
		return "", "", errors.New(templateMessage(capacityField, err))
	}
	fields, _ := value.(map[string]any)
	path, reserve = textOf(fields["path"]), textOf(fields["reserve"])
	if err := checkPath(path); err != nil {
		return "", "", fmt.Errorf("%s.path: %w", capacityField, err)
	}
	if _, err := volume.ParseReserve(reserve); err != nil {
		return "", "", fmt.Errorf("%s.reserve: %w", capacityField, err)
	}
	return filepath.Clean(path), reserve, nil
}

// textOf is an evaluated value as text. A template that sets yaml may give a number.
func textOf(value any) string {
	if value == nil {
		return ""
	}
	return strings.TrimSpace(fmt.Sprint(value))
}

// longestPath is PATH_MAX of Linux, in bytes.
const longestPath = 4096

func checkPath(path string) error {
	if !filepath.IsAbs(path) || len(path) > longestPath || strings.ContainsRune(path, 0) {
		return fmt.Errorf("%.100q is not an absolute path; write a directory of the node like /var/lib/volumes", path)
	}
	return nil
}

// checkCapacity gives what is wrong with spec.nodeCapacity as written.
func checkCapacity(p *pavv1.PavProvisioner) []Problem {
	c := p.Spec.NodeCapacity
	if c == nil {
		return nil
	}
	var problems []Problem
	if p.Spec.Topology != pavv1.TopologyNode {
		problems = append(problems, Problem{Field: capacityField, Message: "needs topology Node, as it is about the node of a volume; set spec.topology to Node or remove the section"})
	}
	if err := checkPath(c.Path); err != nil && !isTemplate(c.Path) {
		problems = append(problems, Problem{Field: capacityField + ".path", Message: err.Error()})
	}
	if _, err := volume.ParseReserve(c.Reserve); err != nil && !isTemplate(c.Reserve) {
		problems = append(problems, Problem{Field: capacityField + ".reserve", Message: err.Error()})
	}
	for _, e := range jinja.Check(map[string]any{"path": c.Path, "reserve": c.Reserve}) {
		problems = append(problems, Problem{Field: joinPath(capacityField, e.Path), Line: e.Line, Column: e.Column, Message: e.Message})
	}
	return problems
}
