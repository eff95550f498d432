//go:build rights

package deploy

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// logs are the audit logs of the requests of Tarn's accounts, by suite and cluster. The API servers
// of hack/e2e.sh and hack/addon.sh write them. A file .until beside one has the time from which
// Tarn was being removed; its rights may have been removed before it ended.
var logs = []string{"../.tarn/asked/e2e/*.log", "../.tarn/asked/addon/*.log"}

// seldom are the rights that the suites do not use in each run, with the case in which each is
// needed.
var seldom = map[string]string{
	"tarn-stats: get nodes/stats":                                               "kubelets are asked, which ask the API server in their own name",
	"tarn-controller: update csidrivers.storage.k8s.io":                         "a provisioner has got a section that its driver must tell of, or somebody has edited the driver",
	"tarn-controller in tarn-system: patch csistoragecapacities.storage.k8s.io": "a class is made again with another directory, or a provisioner gets another nodeCapacity",
	"tarn-node: list persistentvolumes":                                         "the path that the kubelet gives does not lead to a volume of that handle",
}

// request holds the fields read of an audit.k8s.io/v1 Event.
type request struct {
	Verb        string
	UserAgent   string
	User        struct{ Username string }
	ObjectRef   *struct{ Resource, Subresource, APIGroup, Namespace, Name string } // none for a request that names no resource
	Annotations map[string]string
	// RequestReceivedTimestamp is in RFC 3339.
	RequestReceivedTimestamp time.Time
}

// oneRight is one right of a role: a verb on a resource.
type oneRight struct {
	role      string
	namespace string   // "" for every namespace
	names     []string // empty for any name
	verb      string
	group     string
	resource  string // with its subresource
}

func (g oneRight) String() string {
	where := g.role
	if g.namespace != "" {
		where += " in " + g.namespace
	}
	return fmt.Sprintf("%s: %s %s", where, g.verb, strings.TrimSuffix(g.resource+"."+g.group, "."))
}

// covers reports whether a request needs this right.
func (g oneRight) covers(r *request) bool {
	resource := r.ObjectRef.Resource
	if r.ObjectRef.Subresource != "" {
		resource += "/" + r.ObjectRef.Subresource
	}
	return reads(r.Verb) == reads(g.verb) && r.ObjectRef.APIGroup == g.group && resource == g.resource &&
		(g.namespace == "" || r.ObjectRef.Namespace == g.namespace) && (len(g.names) == 0 || slices.Contains(g.names, r.ObjectRef.Name))
}

// reads takes watch for list. A cache needs both, and client-go chooses which of them it uses
// first.
func reads(verb string) string {
	if verb == "watch" {
		return "list"
	}
	return verb
}

// rightsOf gives the rights of Tarn's own accounts, by account.
func rightsOf(t *testing.T) map[string][]oneRight {
	t.Helper()
	objects, err := Objects()
	if err != nil {
		t.Fatal(err)
	}
	roles, bindings, of := map[string][]oneRight{}, []*rbacv1.RoleBinding{}, map[string][]oneRight{}
	for _, o := range objects {
		switch o.GetKind() {
		case "ClusterRole", "Role":
			roles[o.GetKind()+"/"+o.GetName()] = apart(convert[rbacv1.Role](t, o))
		case "ClusterRoleBinding", "RoleBinding":
			bindings = append(bindings, convert[rbacv1.RoleBinding](t, o))
		}
	}
	for _, b := range bindings {
		for _, s := range b.Subjects {
			account := "system:serviceaccount:" + s.Namespace + ":" + s.Name
			of[account] = append(of[account], roles[b.RoleRef.Kind+"/"+b.RoleRef.Name]...)
		}
	}
	return of
}

func convert[T any](t *testing.T, o *unstructured.Unstructured) *T {
	t.Helper()
	to := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, to); err != nil {
		t.Fatal(err)
	}
	return to
}

// apart splits the rules of a role into single rights.
func apart(role *rbacv1.Role) []oneRight {
	var all []oneRight
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all = append(all, oneRight{role.Name, role.Namespace, rule.ResourceNames, verb, group, resource})
				}
			}
		}
	}
	return all
}

// Each right must be used by some request, and each request must be covered by a right.
func TestTarnAsksForEachOfItsRightsAndForNoOther(t *testing.T) {
	var paths []string
	for _, pattern := range logs {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Errorf("there is no %s: `make run-e2e` and `make run-addon` leave one for each of their clusters (%v)", pattern, err)
		}
		paths = append(paths, found...)
	}
	of := rightsOf(t)
	asked, refused, requests := map[string]bool{}, map[string]int{}, 0
	for _, path := range paths {
		each(t, path, func(r *request) {
			// Requests of other programs with these accounts do not count, such as those of cases
			// that try what an account cannot do.
			if !strings.HasPrefix(r.UserAgent, "tarn/") || r.ObjectRef == nil {
				return
			}
			requests++
			for _, right := range of[r.User.Username] {
				if right.covers(r) {
					asked[right.String()] = true
				}
			}
			if r.Annotations["authorization.k8s.io/decision"] == "forbid" {
				refused[fmt.Sprintf("%s: %s may not %s %s/%s", strings.TrimPrefix(path, "../.tarn/asked/"), r.User.Username, r.Verb, r.ObjectRef.Resource, r.ObjectRef.Subresource)]++
			}
		})
	}
	t.Logf("%d requests, %d rights asked for", requests, len(asked))
	t.Run("none is refused", func(t *testing.T) {
		for _, what := range slices.Sorted(maps.Keys(refused)) {
			t.Errorf("%d times: %s", refused[what], what)
		}
	})
	t.Run("none is idle", func(t *testing.T) {
		if os.Getenv("WIDE") == "" {
			t.Skip("only all cases together ask for each right: `make test-all` looks at that")
		}
		noneIsIdle(t, of, asked)
	})
}

// noneIsIdle wants each right to have been used, or to be listed in seldom.
func noneIsIdle(t *testing.T, of map[string][]oneRight, asked map[string]bool) {
	t.Helper()
	// Where hack/e2e.sh leaves these jobs to Kubernetes, no account has the role.
	idle := map[string]bool{"tarn-bind": os.Getenv("BINDER") == "kubernetes", "tarn-protect": os.Getenv("PROTECTION") == "kubernetes"}
	in := map[string]bool{}
	for _, account := range slices.Sorted(maps.Keys(of)) {
		for _, right := range of[account] {
			in[right.String()] = true
			if !asked[right.String()] && seldom[right.String()] == "" && !idle[right.role] {
				t.Errorf("nothing asked for %s: take it away, or say here when it is needed", right)
				asked[right.String()] = true // said once, whatever the number of accounts
			}
		}
	}
	for name := range seldom {
		if !in[name] {
			t.Errorf("no role has the right %q, and here it is said to be needed", name)
		}
	}
}

func each(t *testing.T, path string, see func(*request)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	until := time.Now()
	if text, err := os.ReadFile(strings.TrimSuffix(path, ".log") + ".until"); err == nil {
		if until, err = time.Parse(time.RFC3339, strings.TrimSpace(string(text))); err != nil {
			t.Fatal(err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		r := &request{}
		if err := json.Unmarshal(lines.Bytes(), r); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if r.RequestReceivedTimestamp.Before(until) {
			see(r)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
