package deploy

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// columns are those of the table of rights. Each is a service account with its roles. Roles of the
// controller for work that can be switched on or off have their own column.
var columns = []string{"controller", "for Apps", "node agent", "API", "statistics", "to bind", "to protect"}

// columnOf names the column of an account's role.
func columnOf(role, account string) string {
	byRole := map[string]string{"tarn-apps": "for Apps", "tarn-bind": "to bind", "tarn-protect": "to protect"}
	byAccount := map[string]string{"tarn-controller": "controller", "tarn-node": "node agent", "tarn-api": "API", "tarn-stats": "statistics"}
	return cmp.Or(byRole[role], byAccount[account])
}

// rights are the cells of the table, by resource and column.
type rights map[string]map[string][]string

// add adds what a rule allows. An empty where means the whole cluster.
func (r rights) add(column, where string, rule rbacv1.PolicyRule) {
	verbs := slices.Clone(rule.Verbs)
	slices.Sort(verbs)
	if read := []string{"get", "list", "watch"}; !slices.ContainsFunc(read, func(v string) bool { return !slices.Contains(verbs, v) }) {
		verbs = append([]string{"read"}, slices.DeleteFunc(verbs, func(v string) bool { return slices.Contains(read, v) })...)
	}
	may := strings.Join(verbs, ", ")
	if len(rule.ResourceNames) > 0 {
		may = "`" + strings.Join(rule.ResourceNames, "`, `") + "` alone: " + may
	}
	if where != "" {
		may = "in `" + where + "` " + may
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			name, sub, _ := strings.Cut(resource, "/")
			if group != "" {
				name += "." + group
			}
			if sub != "" {
				name += " /" + sub
			}
			if r[name] == nil {
				r[name] = map[string][]string{}
			}
			r[name][column] = append(r[name][column], may)
		}
	}
}

// table is the table of docs/operations/security.md.
func (r rights) table() string {
	lines := []string{"| | " + strings.Join(columns, " | ") + " |", strings.Repeat("|---", len(columns)+1) + "|"}
	for _, name := range slices.Sorted(maps.Keys(r)) {
		line := "| `" + name + "` |"
		for _, column := range columns {
			slices.Sort(r[name][column])
			line += strings.TrimRight(" "+strings.Join(r[name][column], "; "), " ") + " |"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n") + "\n"
}

// granted reads all roles that Tarn's accounts have.
func granted(t *testing.T) rights {
	t.Helper()
	objects, err := Objects()
	if err != nil {
		t.Fatal(err)
	}
	rules := map[string][]rbacv1.PolicyRule{}
	bound := map[string]bool{}
	found := rights{}
	each := func(kind string, do func(*unstructured.Unstructured)) {
		for _, o := range objects {
			if o.GetKind() == kind {
				do(o)
			}
		}
	}
	key := func(kind, namespace, name string) string { return fmt.Sprintf("%s %s/%s", kind, namespace, name) }
	for _, kind := range []string{"ClusterRole", "Role"} {
		each(kind, func(o *unstructured.Unstructured) {
			role := &rbacv1.ClusterRole{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, role); err != nil {
				t.Fatal(err)
			}
			rules[key(kind, o.GetNamespace(), o.GetName())] = role.Rules
			for label := range o.GetLabels() { // a role for people, not for a part
				if strings.HasPrefix(label, "rbac.authorization.k8s.io/aggregate-to-") {
					bound[key(kind, "", o.GetName())] = true
				}
			}
		})
		each(kind+"Binding", func(o *unstructured.Unstructured) {
			binding := &rbacv1.ClusterRoleBinding{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, binding); err != nil {
				t.Fatal(err)
			}
			role := key(kind, o.GetNamespace(), binding.RoleRef.Name)
			bound[role] = true
			for _, subject := range binding.Subjects {
				column := columnOf(binding.RoleRef.Name, subject.Name)
				if column == "" || len(rules[role]) == 0 {
					t.Errorf("%s %s gives %s to %s, which has no column or no rule", o.GetKind(), o.GetName(), role, subject.Name)
				}
				for _, rule := range rules[role] {
					found.add(column, o.GetNamespace(), rule)
				}
			}
		})
	}
	for role := range rules {
		if !bound[role] {
			t.Errorf("nobody has %s", role)
		}
	}
	return found
}

func TestTheSecurityPageNamesEveryRight(t *testing.T) {
	page, err := os.ReadFile("../docs/operations/security.md")
	if err != nil {
		t.Fatal(err)
	}
	want := granted(t).table()
	_, after, _ := strings.Cut(string(page), "\n### Every right\n")
	begin := strings.Index(after, "| | ")
	got, _, _ := strings.Cut(after[max(begin, 0):], "\n\n")
	if got+"\n" != want {
		t.Errorf("docs/operations/security.md does not name the rights there are below \"Every right\"; write there:\n\n%s", want)
	}
}
