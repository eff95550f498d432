package steppod

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/jinja"
)

// anyNamespace among Namespaces allows all namespaces.
const anyNamespace = "*"

// Namespaces are the namespaces in which step pods may run. Step pods are root on their nodes, and
// anyone with write access to the namespace may end them. The first is for pods whose template
// names none.
type Namespaces []string

// DefaultNamespaces are namespaces without tenants.
var DefaultNamespaces = Namespaces{tarnv1.StepNamespace, tarnv1.SystemNamespace}

// Check says what is wrong with the list, as a flag gives it.
func (n Namespaces) Check() error {
	if len(n) == 0 || n[0] == anyNamespace {
		return fmt.Errorf("--step-namespaces: the first must be a namespace, in which pods run whose template names none; write %s", tarnv1.StepNamespace)
	}
	for _, name := range n {
		if name == metav1.NamespaceSystem {
			return fmt.Errorf("--step-namespaces: %s must not be listed: its Secrets and service accounts rule the cluster; run step pods in a namespace of their own", name)
		}
		if wrong := validation.IsDNS1123Label(name); name != anyNamespace && len(wrong) > 0 {
			return fmt.Errorf("--step-namespaces: %q is not a valid namespace name: %s", name, wrong[0])
		}
	}
	return nil
}

// orDefault are the namespaces, or DefaultNamespaces if there are none.
func (n Namespaces) orDefault() Namespaces {
	if len(n) == 0 {
		return DefaultNamespaces
	}
	return n
}

// refuse says why a pod may not run in a namespace; empty if it may.
func (n Namespaces) refuse(name string) string {
	n = n.orDefault()
	if name == metav1.NamespaceSystem {
		return fmt.Sprintf("step pods may not run in %q; remove the field, or name a namespace of their own", name)
	}
	if slices.Contains(n, name) || slices.Contains(n, anyNamespace) {
		return ""
	}
	return fmt.Sprintf("step pods may not run in %q, only in %s; remove the field, or have the controller's --step-namespaces allow it", name, strings.Join(n, ", "))
}

// claimed are the variables through which a template reads text written by users of claims.
var claimed = []string{"get_pv", "get_pvc", "handle", "pv", "pvc"}

// check says what is wrong with the namespace in a pod template, as far as that shows without
// evaluation. A claim must not choose where pods run as root.
func (n Namespaces) check(field string, template any) []Problem {
	fields, _ := template.(map[string]any)
	metadata, _ := fields["metadata"].(map[string]any)
	text, _ := metadata["namespace"].(string)
	field += ".metadata.namespace"
	if text == "" {
		return nil
	}
	if !isTemplate(text) {
		if why := n.refuse(text); why != "" && len(validation.IsDNS1123Label(text)) == 0 { // otherwise Kubernetes' own check reports it
			return []Problem{{Field: field, Message: why}}
		}
		return nil
	}
	if slices.Contains(n.orDefault(), anyNamespace) {
		return nil
	}
	parsed, err := jinja.Parse(text)
	if err != nil {
		return nil // which is reported as a syntax error
	}
	for _, name := range parsed.Globals() {
		if slices.Contains(claimed, name) {
			return []Problem{{Field: field, Message: fmt.Sprintf("reads %s, so that users of claims choose where the pod runs; name one of %s, "+
				"or have the controller's --step-namespaces allow * if every editor of a namespace may be root on the nodes", name, strings.Join(n.orDefault(), ", "))}}
		}
	}
	return nil
}
