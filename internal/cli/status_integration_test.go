//go:build integration

package cli

import (
	"encoding/json"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"tarn.dev/tarn/internal/cli/status"
	"tarn.dev/tarn/internal/testkit"
)

// tenant returns the kubeconfig of a user with the rights of an editor in the namespace, and none
// elsewhere.
func (w *appWorld) tenant() string {
	w.t.Helper()
	ctx := w.t.Context()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "tenant"}}
	w.must(w.client.Create(ctx, account))
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "claims"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims"}, Verbs: []string{"get", "list", "watch"}},
	}}
	w.must(w.client.Create(ctx, role))
	for name, ref := range map[string]rbacv1.RoleRef{
		"claims": {APIGroup: rbacv1.GroupName, Kind: "Role", Name: "claims"}, "apps": {APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "tarn-apps-edit"},
	} {
		w.must(w.client.Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, RoleRef: ref,
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: w.namespace, Name: account.Name}},
		}))
	}
	for _, resource := range []schema.GroupResource{{Resource: "persistentvolumeclaims"}, {Group: "tarn.dev", Resource: "apps"}} {
		testkit.Allowed(w.t, w.client, authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + w.namespace + ":" + account.Name,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: w.namespace, Verb: "list", Group: resource.Group, Resource: resource.Resource},
		})
	}
	request := &authenticationv1.TokenRequest{}
	w.must(w.client.SubResource("token").Create(ctx, account, request))
	config := rest.AnonymousClientConfig(testkit.APIServer(w.t))
	config.BearerToken = request.Status.Token
	return kubeconfig(w.t, config)
}

func TestATenantNeedsNoRightsBeyondTheNamespace(t *testing.T) {
	t.Parallel()
	w := newAppWorld(t, "cli-tenant")
	w.config = w.tenant()
	w.says(0, "status", "namespace "+w.namespace+" is healthy", "!cannot read")
	file := w.file(shop)
	w.says(0, "app plan --file "+file, "create  data", "!does not exist")
	w.says(0, "app deploy --wait=false --file "+file, "create  data", "app shop is Deploying")
	w.says(0, "app list", "shop  Deploying")
	w.says(0, "app delete shop --yes --wait=false", "app shop is being deleted")
	out, said, code := run(t, "", "status", "--kubeconfig", w.config)
	for _, want := range []string{"tarn cannot be assessed: you may not read all of it", "cannot read each PavVolume: needs permission to list pavvolumes.tarn.dev"} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("exit status %d, want 1 and %q in\n%s%s", code, want, out, said)
		}
	}
	w.namespace = "default"
	w.says(1, "app list", "listing the apps of namespace 'default'", "forbidden")
	w.says(1, "app show shop", "forbidden")
}

func TestWhatIsWrongInAClusterIsFound(t *testing.T) {
	t.Parallel()
	w := newAppWorld(t, "cli-status")
	vol := released(func(v *corev1.PersistentVolume) {
		v.Name, v.Spec.HostPath = w.namespace, &corev1.HostPathVolumeSource{Path: "/nowhere"}
		v.Spec.ClaimRef.Namespace = w.namespace
	})
	w.must(w.client.Create(t.Context(), vol))
	look := func() (report status.Report, code int) {
		out, said, code := run(t, "", "status", "--kubeconfig", w.config, "--output", "json")
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			t.Fatalf("%v in\n%s%s", err, out, said)
		}
		return report, code
	}
	told := func(report status.Report) string {
		for _, p := range report.Problems {
			if p.Object.Name == vol.Name {
				return p.Message + "; " + p.Command
			}
		}
		return ""
	}
	// Other tests of the package have objects on this server too.
	if report, _ := look(); told(report) != "" || len(report.Volumes) == 0 || len(report.Unread) > 0 {
		t.Errorf("got %+v", report)
	}
	vol.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumeFailed, Message: "no deleter"}
	w.must(w.client.Status().Update(t.Context(), vol))
	if report, code := look(); code != 1 || report.Healthy || told(report) != "it has failed: no deleter; tarn explain volume "+vol.Name {
		t.Errorf("exit status %d, %q of %+v", code, told(report), report)
	}
}

func TestWhatIsNotThereIsToldAsThat(t *testing.T) {
	t.Parallel()
	config := kubeconfig(t, testkit.APIServer(t))
	bad := strings.Replace(config, "kubeconfig", "none", 1)
	if out, said, code := run(t, "", "status", "--namespace", "nowhere", "--kubeconfig", config); code != 1 || said != "tarn: there is no namespace \"nowhere\"\n" || out != "" {
		t.Errorf("exit status %d\n%s%s", code, out, said)
	}
	if out, said, code := run(t, "", "status", "--kubeconfig", bad); code != 1 || !strings.Contains(said, "give --kubeconfig FILE or set KUBECONFIG") {
		t.Errorf("exit status %d\n%s%s", code, out, said)
	}
}
