//go:build integration

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/cli"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

// beTarn is the environment variable that makes this test program behave as tarn.
const beTarn = "TARN_TEST_IS_TARN"

func init() {
	if os.Getenv(beTarn) != "" {
		main()
	}
}

// trial is a controller that runs as a process, with the rights of a service account.
type trial struct {
	// probes receives the address of the probes once the controller listens.
	probes chan string
	base   string
	ended  chan error
	stop   func()
}

// launch starts a controller with the token of a service account in the default namespace.
func launch(t *testing.T, config *rest.Config, admin client.Client, account string) *trial {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}}
	of := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: account}}
	if err := admin.SubResource("token").Create(t.Context(), of, request); err != nil {
		t.Fatal(err)
	}
	kubeconfig := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {
			Server: config.Host, CertificateAuthority: config.CAFile, CertificateAuthorityData: config.CAData, InsecureSkipTLSVerify: config.Insecure,
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"c": {Token: request.Status.Token}},
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c", AuthInfo: "c"}},
		CurrentContext: "c",
	}
	if err := clientcmd.WriteToFile(kubeconfig, file); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, program, "controller", "--kubeconfig="+file, "--health-probe-bind-address=127.0.0.1:0", "--metrics-bind-address=0")
	cmd.Env = append(os.Environ(), beTarn+"=yes")
	says, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &trial{probes: make(chan string, 1), ended: make(chan error, 1)}
	go func() {
		last := p.listen(says)
		if err := cmd.Wait(); err != nil && ctx.Err() == nil {
			p.ended <- fmt.Errorf("%w: %s", err, last)
		}
		close(p.ended)
	}()
	p.stop = func() {
		cancel()
		for range p.ended { // until it has
		}
	}
	t.Cleanup(p.stop)
	return p
}

// listen reads a controller's log to its end, sends the address of its probes, and returns the last
// message.
func (p *trial) listen(says io.Reader) (last string) {
	lines := bufio.NewReader(says)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return last
		}
		last = line
		var entry struct{ Msg, Name, Addr string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Name == "health probe" && entry.Addr != "" {
			select {
			case p.probes <- "http://" + entry.Addr:
			default:
			}
		}
	}
}

func ask(ctx context.Context, url string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

// becomes waits until a controller is ready. If want is set, it waits until the controller has
// given that reason several times, and fails if it is ever ready.
func (p *trial) becomes(t *testing.T, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	select {
	case p.base = <-p.probes:
	case err := <-p.ended:
		t.Fatalf("the controller has ended: %v", err)
	case <-ctx.Done():
		t.Fatal("the controller does not listen")
	}
	again := time.NewTicker(300 * time.Millisecond) // the kubelet repeats its probe, and so does this test
	defer again.Stop()
	for seen, why := 0, ""; ; <-again.C {
		path := "/readyz/leading" // which tells an administrator why not
		if seen == 3 {
			path = "/readyz" // which the kubelet asks
		}
		status, now, err := ask(ctx, p.base+path)
		switch {
		case err != nil:
			t.Fatalf("asking a controller: %v, after %q", err, why)
		case status == http.StatusOK && want == "":
			return
		case status == http.StatusOK:
			t.Fatalf("it says that it is ready, after %q; want %q", why, want)
		case seen == 3:
			return
		}
		if why = now; want != "" && strings.Contains(why, want) {
			seen++
		}
	}
}

// entitle creates a service account in the default namespace with some roles. ClusterRoles are
// given by name, Roles of Tarn's namespace with a slash in front.
func entitle(t *testing.T, admin client.Client, account string, roles ...string) {
	t.Helper()
	make := func(o client.Object) {
		t.Helper()
		if err := admin.Create(t.Context(), o); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	make(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: account}})
	to := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: account}}
	for _, role := range roles {
		local, is := strings.CutPrefix(role, "/")
		meta := metav1.ObjectMeta{Name: account + "-" + local}
		if is {
			meta.Namespace = cli.Namespace
			make(&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: local}, Subjects: to})
		} else {
			make(&rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, Subjects: to})
		}
		right := map[string]*authorizationv1.ResourceAttributes{
			"tarn-controller":           {Verb: "list", Group: "tarn.dev", Resource: "pavvolumes"},
			"/tarn-controller":          {Verb: "list", Group: "storage.k8s.io", Resource: "csistoragecapacities", Namespace: cli.Namespace},
			"tarn-apps":                 {Verb: "list", Group: "apps", Resource: "deployments"},
			"/tarn-controller-election": {Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: cli.Namespace, Name: kube.ControllerName},
			"/reads-the-lease":          {Verb: "get", Group: "coordination.k8s.io", Resource: "leases", Namespace: cli.Namespace, Name: kube.ControllerName},
		}[role]
		testkit.Allowed(t, admin, authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:default:" + account, ResourceAttributes: right})
	}
}

func TestAControllerIsNeverReadyWhereClaimsAreNotServed(t *testing.T) {
	t.Parallel()
	config := testkit.OwnAPIServer(t)
	admin := testkit.Client(t, config)
	reads := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: cli.Namespace, Name: "reads-the-lease"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get"}}},
	}
	dead := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: cli.Namespace, Name: kube.ControllerName},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("dead"), LeaseDurationSeconds: ptr.To[int32](4), RenewTime: &metav1.MicroTime{Time: time.Now()},
		},
	}
	for _, o := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, reads} {
		if err := admin.Create(t.Context(), o); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	const cluster, own, apps, lease, readOnly = "tarn-controller", "/tarn-controller", "tarn-apps", "/tarn-controller-election", "/reads-the-lease"
	entitle(t, admin, "entitled", cluster, own, apps, lease)
	cases := 0
	unready := func(name, want string, roles ...string) {
		t.Helper()
		cases++ // each has its own account, because revoked rights stay valid a moment longer
		account := fmt.Sprintf("lacking-%d", cases)
		t.Run(name, func(t *testing.T) {
			entitle(t, admin, account, roles...)
			launch(t, config, admin, account).becomes(t, want)
		})
	}
	const unfilled = "the caches are not synced yet"
	unready("without any right", unfilled)
	unready("without what Apps need", unfilled, cluster, own, lease)
	unready("without a right to the lease", "no controller is the leader: leases.coordination.k8s.io", cluster, own, apps)
	unready("where nobody can take the lease", "the lease has no holder", cluster, own, apps, readOnly)
	if err := admin.Create(t.Context(), dead); err != nil {
		t.Fatal(err)
	}
	unready("where nobody can take the lease from one that died", "dead holds the lease, but does not renew it", cluster, own, apps, readOnly)

	t.Run("beside one that leads", func(t *testing.T) {
		launch(t, config, admin, "entitled").becomes(t, "")
		unready("without what Apps need, which the other has", unfilled, cluster, own, readOnly)
		entitle(t, admin, "standby", cluster, own, apps, readOnly)
		launch(t, config, admin, "standby").becomes(t, "")
	})
	t.Run("without a custom resource", func(t *testing.T) {
		withoutApps(t, admin)
		p := launch(t, config, admin, "entitled")
		select {
		case err := <-p.ended:
			if err == nil || !strings.Contains(err.Error(), `no matches for kind "App"`) {
				t.Errorf("it ends with %v", err)
			}
		case <-p.probes:
			t.Error("it answers the kubelet, though it cannot serve Apps")
		case <-time.After(testkit.Limit):
			t.Error("it neither ends nor says why")
		}
	})
}

// withoutApps removes the definition of a custom resource in spite of its protection. It waits
// until discovery no longer lists the resource.
func withoutApps(t *testing.T, admin client.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "apps.tarn.dev"}}
	unprotected := client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"labels": {"tarn.dev/deletion-protection": null}}}`))
	if err := admin.Patch(ctx, definition, unprotected); err != nil {
		t.Fatal(err)
	}
	if err := admin.Delete(ctx, definition); err != nil {
		t.Fatal(err)
	}
	gone := func(ctx context.Context) (bool, error) {
		err := admin.Get(ctx, client.ObjectKeyFromObject(definition), definition)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	if err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, gone); err != nil {
		t.Fatal(err)
	}
}
