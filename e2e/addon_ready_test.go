//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// standby makes a separate controller beside helm's, with their pod template but an account without
// any right. It may never write the lease, so it stands by.
func (s *scenario) standby() *appsv1.Deployment {
	s.t.Helper()
	installed := &appsv1.Deployment{}
	if err := suite.live.Get(s.ctx, client.ObjectKey{Namespace: tarnSystem, Name: controller}, installed); err != nil {
		s.t.Fatal(err)
	}
	labels := map[string]string{"app": "standby"}
	meta := metav1.ObjectMeta{Namespace: s.name, Name: "standby"}
	d := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		MinReadySeconds: installed.Spec.MinReadySeconds, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: installed.Spec.Template.Spec},
	}}
	spec := &d.Spec.Template.Spec
	spec.ServiceAccountName, spec.DeprecatedServiceAccount = meta.Name, ""
	spec.TerminationGracePeriodSeconds = ptr.To[int64](1) // it has no lease to release
	s.create(&corev1.ServiceAccount{ObjectMeta: meta})
	s.create(d)
	return d
}

// entitles gives the standby's account a role until the case ends: a ClusterRole, or with rules a
// role in Tarn's namespace.
func (s *scenario) entitles(role string, rules ...rbacv1.PolicyRule) {
	s.t.Helper()
	meta := metav1.ObjectMeta{Name: s.name + "-" + role}
	to := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.name, Name: "standby"}}
	made := []client.Object{&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: to, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}}
	if len(rules) > 0 {
		meta.Namespace = tarnSystem
		made = []client.Object{
			&rbacv1.Role{ObjectMeta: meta, Rules: rules},
			&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: to, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}},
		}
	}
	for _, o := range made {
		s.create(o)
		s.t.Cleanup(func() { s.deleteIfThere(o) })
	}
}

// saysWhyNot waits until the standby's pod gives the reason why it is not ready, by the commands of
// docs/operations/troubleshooting.md.
func (s *scenario) saysWhyNot(want string) {
	s.t.Helper()
	again := time.NewTicker(time.Second) // the kubelet probes no more often, and no object shows the answer
	defer again.Stop()
	for over := time.After(3 * soon); ; {
		pod := strings.TrimSpace(s.kubectlSays("-n", s.name, "get", "pods", "-l", "app=standby", "-o", "jsonpath={.items[*].metadata.name}"))
		out, err := exec.Command(kubectlBinary(), "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8081/proxy/readyz/leading", s.name, pod)).CombinedOutput()
		last := string(out)
		if err == nil {
			s.t.Fatalf("the pod says %q, want that it is not ready: %s", last, want)
		}
		if strings.Contains(last, want) {
			return
		}
		select {
		case <-again.C:
		case <-over:
			s.t.Fatalf("the pod does not say %q, but %q", want, last)
		}
	}
}

// notRolledOut wants `kubectl rollout status` to time out.
func (s *scenario) notRolledOut(without string) {
	s.t.Helper()
	out, err := exec.Command(kubectlBinary(), "-n", s.name, "rollout", "status", "deployment/standby", "--timeout=8s").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "timed out") {
		s.t.Errorf("without %s the rollout: %v, want a time-out: %s", without, err, out)
	}
}

func TestAddOnARolloutIsNotThroughBeforeAControllerCouldLead(t *testing.T) {
	needsAddOn(t)
	t.Parallel()
	s := begin(t, "rollout")
	s.standby()
	s.saysWhyNot("the caches are not synced yet")
	s.notRolledOut("any right")
	s.entitles("tarn-controller")
	s.entitles("capacities", rbacv1.PolicyRule{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"csistoragecapacities"}, Verbs: []string{"list", "watch"}})
	s.entitles("tarn-apps")
	s.saysWhyNot("no controller is the leader: leases.coordination.k8s.io")
	s.notRolledOut("a right to the lease")
	s.entitles("lease", rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{controller}, Verbs: []string{"get"}})
	s.kubectl("-n", s.name, "rollout", "status", "deployment/standby", "--timeout=180s")
}
