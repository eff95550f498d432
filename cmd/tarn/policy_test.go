//go:build integration

package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

const (
	asController = "system:serviceaccount:tarn-system:tarn-controller"
	asNode       = "system:serviceaccount:tarn-system:tarn-node"
	asTenant     = "tenant"
)

// nodeClaim is the key in a token for the node of its pod.
const nodeClaim = "authentication.kubernetes.io/node-name"

// onNode is the node of these tests' node agent.
const onNode = "node-1"

// as returns a client that acts as another user. The node agent acts from a pod on onNode. The
// tenant may do anything with pods.
func as(t *testing.T, config *rest.Config, user string) client.Client {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	if user == asNode {
		config.Impersonate.Extra = map[string][]string{nodeClaim: {onNode}}
	}
	return testkit.Client(t, config)
}

// namespaces creates namespaces that can have pods. Such a namespace needs a service account, which
// no controller creates here.
func namespaces(ctx context.Context, t *testing.T, admin client.Client, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := client.IgnoreAlreadyExists(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})); err != nil {
			t.Fatal(err)
		}
		if err := client.IgnoreAlreadyExists(admin.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}})); err != nil {
			t.Fatal(err)
		}
	}
}

// policed returns an API server with Tarn's policies, its administrator, and the context of a test.
func policed(t *testing.T) (context.Context, *rest.Config, client.WithWatch) {
	t.Helper()
	config := testkit.APIServer(t)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	t.Cleanup(cancel)
	admin := testkit.Client(t, config)
	grant(ctx, t, admin)
	return ctx, config, admin
}

// attempt is what a user tries to do, and whether a policy must let it happen.
type attempt struct {
	name string
	do   func() error
	want bool
}

// judge makes attempts in order. A refusal must name one of the policies.
func judge(t *testing.T, attempts []attempt, policies ...string) {
	t.Helper()
	for _, c := range attempts {
		err := c.do()
		if c.want && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		byPolicy := func(policy string) bool { return err != nil && strings.Contains(err.Error(), "'"+policy+"'") }
		if !c.want && !slices.ContainsFunc(policies, byPolicy) {
			t.Errorf("%s: %v, want a refusal by policy %s", c.name, err, strings.Join(policies, " or "))
		}
	}
}

func TestTarnsWordsOnPodsAreTarnsAlone(t *testing.T) {
	ctx, config, admin := policed(t)
	namespaces(ctx, t, admin, "tarn-volumes")
	pod := func(name string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "tarn-volumes", Name: name, Labels: map[string]string{"app": "x"}, Annotations: map[string]string{}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36"}}},
		}
		change(p)
		return p
	}
	step := func(p *corev1.Pod) { p.Labels[tarnv1.LabelStep] = "creation" }
	placed := func(p *corev1.Pod) { step(p); p.Spec.NodeName = onNode }
	result := func(p *corev1.Pod) { p.Annotations[tarnv1.AnnotationResult] = `{"succeeded": true}` }
	plain := func(p *corev1.Pod) {}

	create := func(user, name string, change func(*corev1.Pod)) error {
		return as(t, config, user).Create(ctx, pod(name, change))
	}
	update := func(user, name string, status bool, change func(*corev1.Pod)) error {
		live := &corev1.Pod{}
		if err := admin.Get(ctx, client.ObjectKey{Namespace: "tarn-volumes", Name: name}, live); err != nil {
			return err
		}
		base := live.DeepCopy()
		if live.Annotations == nil {
			live.Annotations = map[string]string{}
		}
		change(live)
		if status {
			return as(t, config, user).Status().Patch(ctx, live, client.MergeFrom(base))
		}
		return as(t, config, user).Patch(ctx, live, client.MergeFrom(base))
	}
	binding := func(annotations, labels map[string]string) *corev1.Binding {
		return &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "tarn-volumes", Name: "own", Annotations: annotations, Labels: labels},
			Target:     corev1.ObjectReference{Kind: "Node", Name: "some"},
		}
	}
	bind := func(annotations, labels map[string]string) error {
		return as(t, config, asTenant).SubResource("binding").Create(ctx, pod("own", plain), binding(annotations, labels))
	}
	judge(t, []attempt{
		{"a tenant makes a pod of his own", func() error { return create(asTenant, "own", plain) }, true},
		{"a tenant does not make a pod with a step", func() error { return create(asTenant, "forged", step) }, false},
		{"a tenant does not make a pod with a result", func() error { return create(asTenant, "forged", result) }, false},
		{"a tenant does not give his pod a step", func() error { return update(asTenant, "own", false, step) }, false},
		{"a tenant does not give his pod a result", func() error { return update(asTenant, "own", true, result) }, false},
		{"whoever binds pods does not give one a result", func() error { return bind(map[string]string{tarnv1.AnnotationResult: "{}"}, nil) }, false},
		{"whoever binds pods does not give one a step", func() error { return bind(nil, map[string]string{tarnv1.LabelStep: "creation"}) }, false},
		{"nor by the old way to bind", func() error {
			return as(t, config, asTenant).Create(ctx, binding(map[string]string{tarnv1.AnnotationInputs: "{}"}, nil))
		}, false},
		{"whoever binds pods binds them with other words", func() error { return bind(map[string]string{"a": "b"}, nil) }, true},
		{"the controller makes a pod with a step", func() error { return create(asController, "ours", placed) }, true},
		{"a tenant changes a pod of ours in what is not ours", func() error {
			return update(asTenant, "ours", false, func(p *corev1.Pod) { p.Labels["app"] = "y" })
		}, true},
		{"a tenant does not take the step off", func() error {
			return update(asTenant, "ours", false, func(p *corev1.Pod) { delete(p.Labels, tarnv1.LabelStep) })
		}, false},
		{"the node agent does not change what was asked", func() error {
			return update(asNode, "ours", true, func(p *corev1.Pod) { p.Annotations[tarnv1.AnnotationInputs] = "{}" })
		}, false},
		{"the node agent stores a result", func() error { return update(asNode, "ours", true, result) }, true},
		{"a tenant does not change a result", func() error {
			return update(asTenant, "ours", true, func(p *corev1.Pod) { p.Annotations[tarnv1.AnnotationResult] = "{}" })
		}, false},
	}, "pods.tarn.dev", "node.tarn.dev") // both reject what the node agent may not write
	for _, name := range []string{"own", "ours"} {
		_ = admin.Delete(ctx, pod(name, plain), client.GracePeriodSeconds(0)) // the server ends with the tests
	}
}

// TestOnlyAdministratorsGetInsideAStepPod has a tenant who may do anything with pods try to get
// inside.
func TestOnlyAdministratorsGetInsideAStepPod(t *testing.T) {
	ctx, config, admin := policed(t)
	for _, name := range []string{steppod.PodName(tarnv1.StepStaging, "8cec0811-1dab-4481-bc06-538f29d0e2a5", 1), "pav-staging-of-my-own"} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36"}}},
		}
		if err := admin.Create(ctx, pod); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = admin.Delete(ctx, pod, client.GracePeriodSeconds(0)) }()
		for _, user := range []string{asTenant, ""} { // the other one is an administrator
			refused := func(err error) bool { return err != nil && strings.Contains(err.Error(), "'steps.tarn.dev'") }
			want := user == asTenant && name != "pav-staging-of-my-own"
			of := rest.CopyConfig(config)
			if user != "" {
				of.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
			}
			core, err := corev1client.NewForConfig(of)
			if err != nil {
				t.Fatal(err)
			}
			for _, way := range []string{"exec", "attach", "portforward", "proxy"} {
				// No kubelet runs, so an authorized user gets another error.
				err := core.RESTClient().Post().Namespace("default").Resource("pods").Name(name).SubResource(way).Param("command", "id").Do(ctx).Error()
				if refused(err) != want {
					t.Errorf("%s of pod %s by %q: %v, want a refusal: %v", way, name, user, err, want)
				}
			}
			live, err := core.Pods("default").Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			live.Spec.EphemeralContainers = append(live.Spec.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "shell-of-" + cmp.Or(user, "admin"), Image: "busybox:1.36"},
			})
			if _, err := core.Pods("default").UpdateEphemeralContainers(ctx, name, live, metav1.UpdateOptions{}); refused(err) != want || !want && err != nil {
				t.Errorf("ephemeral container in pod %s by %q: %v, want a refusal: %v", name, user, err, want)
			}
		}
	}
}

// TestNobodyButABinderSaysThatAClaimWasBound has a tenant who may do anything with claims forge the
// annotations that binders set.
func TestNobodyButABinderSaysThatAClaimWasBound(t *testing.T) {
	ctx, config, admin := policed(t)
	const asBinder = "system:serviceaccount:kube-system:persistent-volume-binder" // Kubernetes' own
	forged := map[string]string{volume.AnnBindCompleted: volume.AnnYes}
	claim := func(name string, notes map[string]string) *corev1.PersistentVolumeClaim {
		c := testkit.Claim("default", name, "", "none", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "of-another"; c.Annotations = notes })
		t.Cleanup(func() {
			c := c.DeepCopy()
			c.Finalizers = nil
			_ = admin.Delete(context.Background(), c)
			_ = admin.Patch(context.Background(), c, client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"finalizers": null}}`)))
		})
		return c
	}
	create := func(user, name string, notes map[string]string) error {
		return as(t, config, user).Create(ctx, claim(name, notes))
	}
	note := func(user, name, key string) error {
		live := &corev1.PersistentVolumeClaim{}
		if err := admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, live); err != nil {
			return err
		}
		metav1.SetMetaDataAnnotation(&live.ObjectMeta, key, volume.AnnYes)
		return as(t, config, user).Update(ctx, live)
	}
	judge(t, []attempt{
		{"a tenant makes a claim", func() error { return create(asTenant, "mine", nil) }, true},
		{"a tenant makes a claim that was bound", func() error { return create(asTenant, "forged", forged) }, false},
		{"a tenant says of his claim that it was bound", func() error { return note(asTenant, "mine", volume.AnnBindCompleted) }, false},
		{"a tenant says of his claim that a binder chose", func() error { return note(asTenant, "mine", volume.AnnBoundByController) }, false},
		{"whoever restores volumes restores a claim", func() error { return admin.Create(ctx, claim("restored", forged)) }, true},
		{"a tenant changes a claim that was bound", func() error { return note(asTenant, "restored", "shop") }, true},
		{"the binder of Kubernetes says it", func() error { return note(asBinder, "mine", volume.AnnBindCompleted) }, true},
		{"the binder of Tarn says it", func() error { return note(asController, "mine", volume.AnnBoundByController) }, true},
	}, "claims.tarn.dev")
}

// TestAStolenTokenOfTheControllerRunsPodsInStepNamespacesAlone acts as a thief with that token.
func TestAStolenTokenOfTheControllerRunsPodsInStepNamespacesAlone(t *testing.T) {
	ctx, config, admin := policed(t)
	thief := as(t, config, asController)
	namespaces(ctx, t, admin, "tarn-system", "tarn-volumes", "shop")
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36"}}}
	pod := func(namespace string) client.Object {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "stolen"}, Spec: spec}
	}
	app := func(namespace, name string, change func(*corev1.PodSpec)) client.Object {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: *spec.DeepCopy()},
		}}
		change(&d.Spec.Template.Spec)
		return d
	}
	configMap := func(namespace, name string) client.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	claim := func(namespace string, labels map[string]string) client.Object {
		c := testkit.Claim(namespace, "stolen"+labels[tarnv1.LabelApp], "", "none") // its finalizers keep a name taken
		c.Labels = labels
		return c
	}
	plain := func(*corev1.PodSpec) {}
	volumeOf := func(source corev1.VolumeSource) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) { s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} }
	}
	for _, c := range []struct {
		name   string
		object client.Object
		want   string // empty if it is allowed
	}{
		{"a pod for a step", pod("tarn-volumes"), ""},
		{"a pod that scrubs", pod("tarn-system"), ""},
		{"a pod among a tenant's Secrets", pod("shop"), "may create pods in tarn-volumes, tarn-system, default, not in shop"},
		{"a pod among Kubernetes' own", pod("kube-system"), "nothing in kube-system"},
		{"a Deployment of an App", app("shop", "paas-app-x", volumeOf(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}})), ""},
		{"a Deployment in kube-system", app("kube-system", "paas-app-x", plain), "nothing in kube-system"},
		{"a Deployment of no App", app("shop", "bank", plain), "begin with paas-app-"},
		{"a Deployment with another's account", app("shop", "paas-app-x", func(s *corev1.PodSpec) { s.ServiceAccountName = "bank" }), "without privileges"},
		{"a Deployment on the node's disk", app("shop", "paas-app-x", volumeOf(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}})), "without privileges"},
		{"a Deployment among the node's processes", app("shop", "paas-app-x", func(s *corev1.PodSpec) { s.HostPID = true }), "without privileges"},
		{"a privileged Deployment", app("shop", "paas-app-x", func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
		}), "without privileges"},
		{"one that is privileged as it begins", app("shop", "paas-app-x", func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{Name: "i", Image: "busybox:1.36", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}}}
		}), "without privileges"},
		{"the ConfigMap of an App", configMap("shop", "paas-app-x"), ""},
		{"a ConfigMap of no App", configMap("shop", "bank"), "begin with paas-app-"},
		{"a ConfigMap in kube-system", configMap("kube-system", "paas-app-x"), "nothing in kube-system"},
		{"a claim for a volume", claim("tarn-volumes", nil), ""},
		{"a claim that fills a pool", claim("tarn-system", nil), ""},
		{"the claim of an App", claim("shop", map[string]string{tarnv1.LabelApp: "x"}), ""},
		{"a claim among a tenant's", claim("shop", nil), "may create claims for volumes in tarn-volumes, tarn-system, default, not in shop"},
	} {
		err := thief.Create(ctx, c.object, client.DryRunAll)
		if c.want == "" && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), "'workloads.tarn.dev'") || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want a refusal by policy workloads.tarn.dev that says %q", c.name, err, c.want)
		}
		if err := admin.Create(ctx, c.object.DeepCopyObject().(client.Object), client.DryRunAll); err != nil {
			t.Errorf("%s, by an administrator: %v", c.name, err)
		}
	}
	// Existing pods are out of the thief's reach too.
	step := pod("shop")
	step.SetLabels(map[string]string{tarnv1.LabelStep: "creation"})
	for _, c := range []struct {
		name   string
		object client.Object
		want   bool
	}{
		{"the pod of a tenant", pod("shop"), false},
		{"a step pod, though its namespace is allowed no more", step, true},
		{"the ConfigMap of a tenant", configMap("shop", "bank"), false},
		{"the claim of a tenant", claim("shop", nil), false},
		{"a claim that was made for a volume", claim("tarn-volumes", map[string]string{tarnv1.LabelRecord: "1"}), true},
		{"the claim of an App", claim("shop", map[string]string{tarnv1.LabelApp: "x"}), true},
		{"the Deployment of a tenant", app("shop", "bank", plain), false},
		{"the Deployment of an App", app("shop", "paas-app-x", plain), true},
	} {
		if err := admin.Create(ctx, c.object); err != nil {
			t.Fatal(err)
		}
		if err := thief.Delete(ctx, c.object, client.DryRunAll); (err == nil) != c.want || err != nil && !strings.Contains(err.Error(), "'workloads.tarn.dev'") {
			t.Errorf("deleting %s: %v, want that: %v", c.name, err, c.want)
		}
		if err := admin.Delete(ctx, c.object, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAStolenTokenOfTheControllerMakesNoClaimItsOwn acts as a thief with that token, who marks
// claims of tenants so that the thief or Kubernetes may delete them.
func TestAStolenTokenOfTheControllerMakesNoClaimItsOwn(t *testing.T) {
	ctx, config, admin := policed(t)
	thief, tenant := as(t, config, asController), as(t, config, asTenant)
	namespaces(ctx, t, admin, "shop")
	claims := map[string]*corev1.PersistentVolumeClaim{"shop": nil, "kube-system": nil}
	for namespace := range claims {
		claims[namespace] = testkit.Claim(namespace, "of-a-tenant", "", "none", func(c *corev1.PersistentVolumeClaim) {
			c.Labels, c.Annotations = map[string]string{"a": "b"}, map[string]string{"a": "b"}
		})
	}
	ours := testkit.Claim("shop", "of-an-app", "", "none", func(c *corev1.PersistentVolumeClaim) {
		c.Labels = map[string]string{tarnv1.LabelApp: "x", tarnv1.LabelRecord: "1", tarnv1.LabelDeletionProtection: "true"}
		c.Annotations = map[string]string{tarnv1.AnnotationMadeFor: "u"}
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "1"}}
	})
	for _, c := range []*corev1.PersistentVolumeClaim{claims["shop"], claims["kube-system"], ours} {
		if err := admin.Create(ctx, c); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for _, change := range []string{`{"metadata": {"labels": null}}`, `{"metadata": {"finalizers": null}}`} {
				_ = admin.Patch(context.Background(), c, client.RawPatch("application/merge-patch+json", []byte(change)))
				_ = admin.Delete(context.Background(), c)
			}
		})
	}
	label := func(key, value string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { metav1.SetMetaDataLabel(&c.ObjectMeta, key, value) }
	}
	note := func(key, value string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, key, value) }
	}
	own := func(uid types.UID) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: uid}}
		}
	}
	var attempts []attempt
	for _, c := range []struct {
		name   string
		claim  *corev1.PersistentVolumeClaim
		change func(*corev1.PersistentVolumeClaim)
		want   bool
	}{
		{"a claim made for a volume, of a tenant's", claims["shop"], label(tarnv1.LabelRecord, "1"), false},
		{"the claim of an App, of a tenant's", claims["shop"], label(tarnv1.LabelApp, "x"), false},
		{"a claim made for an App, of a tenant's", claims["shop"], note(tarnv1.AnnotationMadeFor, "u"), false},
		{"a claim with an owner, of a tenant's", claims["shop"], own("2"), false},
		{"the claim of an App, of one in kube-system", claims["kube-system"], label(tarnv1.LabelApp, "x"), false},
		{"a claim of another volume, of one made for a volume", ours, label(tarnv1.LabelRecord, "2"), false},
		{"a claim of another App, of an App's", ours, label(tarnv1.LabelApp, "y"), false},
		{"a claim made for another App, of an App's", ours, note(tarnv1.AnnotationMadeFor, "v"), false},
		{"a claim with another owner, of one with an owner", ours, own("2"), false},
		{"what a claim of a tenant is otherwise", claims["shop"], note(tarnv1.AnnotationPlugin, "p"), true},
		{"what a claim in kube-system is otherwise", claims["kube-system"], note(tarnv1.AnnotationPlugin, "p"), true},
		{"what a claim of an App is otherwise", ours, note(tarnv1.AnnotationPreserve, "true"), true},
		{"a claim that is no longer protected", ours, func(c *corev1.PersistentVolumeClaim) { delete(c.Labels, tarnv1.LabelDeletionProtection) }, true},
	} {
		changed := func() *corev1.PersistentVolumeClaim { o := c.claim.DeepCopy(); c.change(o); return o }
		attempts = append(attempts,
			attempt{"the controller makes " + c.name, func() error { return thief.Patch(ctx, changed(), client.MergeFrom(c.claim), client.DryRunAll) }, c.want},
			attempt{"the controller makes by the status " + c.name, func() error {
				return thief.Status().Patch(ctx, changed(), client.MergeFrom(c.claim), &client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: []string{metav1.DryRunAll}}})
			}, c.want},
			attempt{"a tenant makes " + c.name, func() error { return tenant.Patch(ctx, changed(), client.MergeFrom(c.claim), client.DryRunAll) }, true})
	}
	judge(t, attempts, "workloads.tarn.dev")
}

func grant(ctx context.Context, t *testing.T, admin client.Client) {
	t.Helper()
	for _, o := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: asTenant}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{
				"pods", "pods/status", "pods/binding", "bindings", "pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "pods/ephemeralcontainers",
				"persistentvolumeclaims",
			}, Verbs: []string{"*"}},
		}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: asTenant},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: asTenant},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: asTenant}},
		},
	} {
		if err := client.IgnoreAlreadyExists(admin.Create(ctx, o)); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Allowed(t, admin, authorizationv1.SubjectAccessReviewSpec{
		User: asTenant, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "create", Resource: "pods"},
	})
}
