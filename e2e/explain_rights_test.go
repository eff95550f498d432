//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// reader is a user that may read everything that tarn explain reads, except some resources.
type reader struct {
	*scenario
	kubeconfig string
}

// explains is the scenario's explains with the reader's rights.
func (r reader) explains(kind, name string, texts ...string) explanation {
	r.t.Helper()
	return r.explainsBy(r.kubeconfig, "", kind, name, texts...)
}

// asReader gives the case with a reader's rights.
func (s *scenario) asReader(name string, but ...string) reader {
	s.t.Helper()
	user := s.name + "-" + name
	role := &rbacv1.ClusterRole{ObjectMeta: named(user)}
	for group, resources := range map[string][]string{
		"":                           {"persistentvolumeclaims", "persistentvolumes", "pods", "pods/log", "events", "nodes"},
		"storage.k8s.io":             {"storageclasses", "csidrivers", "csinodes"},
		"apps":                       {"deployments", "replicasets"},
		"coordination.k8s.io":        {"leases"},
		"tarn.dev":                   {"pavvolumes", "pavstages", "persistentvolumesets", "apps"},
		"pav.albertofaria.github.io": {"pavprovisioners"},
	} {
		for _, resource := range resources {
			if !slices.Contains(but, resource) {
				role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{"get", "list"}})
			}
		}
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: named(user), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}}
	s.create(role)
	s.create(binding)
	s.allowed(user, authorizationv1.ResourceAttributes{Verb: "list", Resource: role.Rules[0].Resources[0], Group: role.Rules[0].APIGroups[0]})
	s.t.Cleanup(func() {
		s.deleteIfThere(binding)
		s.deleteIfThere(role)
	})
	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, who := range config.AuthInfos {
		who.Impersonate = user
	}
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		s.t.Fatal(err)
	}
	return reader{s, path}
}
