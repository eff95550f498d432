//go:build integration

package cli

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// finishNamespaces acts as Kubernetes' namespace controller, which does not run here.
func finishNamespaces(ctx context.Context, c client.Client) {
	_ = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		for _, name := range []string{Namespace, tarnv1.StepNamespace} {
			space := &corev1.Namespace{}
			if c.Get(ctx, client.ObjectKey{Name: name}, space) == nil && space.DeletionTimestamp != nil {
				space.Spec.Finalizers = nil
				_ = c.SubResource("finalize").Update(ctx, space) // or on the next look
			}
		}
		return false, nil
	})
}

// furnished creates a volume in use as controllers leave it: record, volume, provisioner and
// driver, with their finalizers.
func furnished(ctx context.Context, t *testing.T, c client.Client) *corev1.PersistentVolume {
	t.Helper()
	provisioner := testkit.Provisioner("shelf")
	provisioner.UID, provisioner.Finalizers = "", []string{tarnv1.FinalizerProvisioner}
	record := testkit.Record(testkit.Claim("shop", "data", "u", "shelf"), "shelf", tarnv1.VolumeCreated)
	record.UID = ""
	vol := testkit.Volume(record, func(v *corev1.PersistentVolume) {
		v.UID, v.Finalizers = "", []string{volume.FinalizerExternal}
	})
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "shelf", Labels: map[string]string{tarnv1.LabelProvisioner: "shelf"}}}
	for _, o := range []client.Object{provisioner, record, vol, driver} {
		if o == vol {
			vol.Annotations = map[string]string{tarnv1.AnnotationRecord: string(record.UID)}
		}
		if err := c.Create(ctx, o); err != nil {
			t.Fatalf("creating %T: %v", o, err)
		}
	}
	return vol
}

// alone returns a Deployment in which Tarn binds and protects in place of Kubernetes.
func alone() *appsv1.Deployment {
	labels := map[string]string{"app.kubernetes.io/component": "controller"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: kube.ControllerName},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "controller", Image: "tarn", Args: []string{"controller", "--controllers=*"}}}},
			},
		},
	}
}

func TestUninstallingLeavesVolumesThatAreKeptAndNothingElse(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Limit)
	defer cancel()
	c := testkit.Client(t, testkit.OwnAPIServer(t))
	go finishNamespaces(ctx, c)
	vol := furnished(ctx, t, c)
	later := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "news.tarn.dev"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "tarn.dev", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "news", Singular: "new", Kind: "New", ListKind: "NewList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}
	if err := c.Create(ctx, later); err != nil { // a later release's
		t.Fatal(err)
	}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	refused := func(context.Context) (bool, error) {
		err := c.Delete(ctx, space, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "without losing data: tarn uninstall"), nil
	}
	if err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, refused); err != nil { // policies take a moment
		t.Fatalf("Tarn's namespace, in which volumes are staged, is anybody's to delete: %v", err)
	}
	// "false" is the value that the error proposes. Helm's namespaces have no such label.
	label := func(value string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata": {"labels": {%q: %s}}}`, tarnv1.LabelDeletionProtection, value)
		if err := c.Patch(ctx, space.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); err != nil {
			t.Fatal(err)
		}
	}
	label(`"false"`)
	if err := c.Delete(ctx, space, client.DryRunAll); err != nil {
		t.Errorf("the protection was lifted: %v", err)
	}
	label("null")
	if err := c.Delete(ctx, space, client.DryRunAll); err == nil || !strings.Contains(err.Error(), "kubectl label namespaces tarn-system tarn.dev/deletion-protection=false --overwrite") {
		t.Errorf("without its label Tarn's namespace is anybody's to delete: %v", err)
	}
	// The Deployment runs controllers in place of Kubernetes' own.
	d := alone()
	if err := c.Create(ctx, d); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	u := &uninstaller{client: c, out: &said}
	if err := u.run(ctx); err == nil || !strings.Contains(said.String(), "without Tarn no controller would") || !strings.Contains(said.String(), "would keep their finalizer") {
		t.Fatalf("Kubernetes' work would be nobody's: %v\n%s", err, said.String())
	}
	if err := c.Delete(ctx, d); err != nil {
		t.Fatal(err)
	}
	for _, try := range []func(context.Context) error{u.tell, u.run} {
		if err := try(ctx); err == nil || !strings.Contains(said.String(), "kubectl delete pvc -n shop data") {
			t.Fatalf("a volume in use was not in the way: %v\n%s", err, said.String())
		}
	}
	if err := c.Get(ctx, client.ObjectKey{Name: "shelf"}, &pavv1.PavProvisioner{}); err != nil {
		t.Fatalf("the refusal has changed something: %v", err)
	}

	u.keep = true
	if err := u.tell(ctx); err != nil || !strings.Contains(said.String(), "nothing was changed; to run these steps, add --yes") {
		t.Fatalf("telling the plan: %v\n%s", err, said.String())
	}
	for range 2 { // a second time there is nothing to do, and no error
		if err := u.run(ctx); err != nil {
			t.Fatalf("uninstalling: %v\n%s", err, said.String())
		}
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(vol), vol); err != nil {
		t.Fatal(err)
	}
	if vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || slices.Contains(vol.Finalizers, volume.FinalizerExternal) || vol.DeletionTimestamp != nil || vol.Annotations[tarnv1.AnnotationKept] != string(vol.UID) {
		t.Errorf("the volume is not left to itself, for a later Tarn to know: %+v", vol)
	}
	nothingOfTarn(ctx, t, c)
}

// `kubectl delete -f` of the manifest leaves no controller, but objects with finalizers that only a
// controller would remove.
func TestUninstallingEndsWhatAnotherWayHasLeft(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Limit)
	defer cancel()
	c := testkit.Client(t, testkit.OwnAPIServer(t))
	go finishNamespaces(ctx, c)
	vol := furnished(ctx, t, c)
	pool := &tarnv1.PersistentVolumeSet{ObjectMeta: metav1.ObjectMeta{Name: "fast", Finalizers: []string{tarnv1.FinalizerPool}}}
	pool.Spec.Selector = map[string]string{"pool": "fast"}
	pool.Spec.Template.Metadata.Labels = pool.Spec.Selector
	vol.Spec.DeepCopyInto(&pool.Spec.Template.Spec)
	pool.Spec.Template.Spec.ClaimRef, pool.Spec.Template.Spec.CSI, pool.Spec.Template.Spec.StorageClassName = nil, nil, "shelf"
	// The lease of a leader that was killed and never restarted.
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: kube.ControllerName}}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = ptr.To("dead"), ptr.To[int32](1)
	app := &tarnv1.App{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Finalizers: []string{tarnv1.FinalizerApp}}, Spec: tarnv1.AppSpec{Image: "web:1"}}
	itsClaim := testkit.Claim("default", "paas-app-web-data", "", "shelf")
	itsClaim.Labels = map[string]string{tarnv1.LabelApp: "web", tarnv1.LabelAppVolume: "data"}
	for _, o := range []client.Object{pool, lease, app, itsClaim} {
		if err := c.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	filler := testkit.Claim(Namespace, "pool-"+string(pool.UID)+"-1", "", "shelf")
	filler.Finalizers = []string{tarnv1.FinalizerInProcess}
	filler.OwnerReferences = []metav1.OwnerReference{{APIVersion: tarnv1.GroupVersion.String(), Kind: "PersistentVolumeSet", Name: pool.Name, UID: pool.UID}}
	if err := c.Create(ctx, filler); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{pool, app} { // a controller would remove these finalizers
		if err := c.Delete(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	var said bytes.Buffer
	u := &uninstaller{client: c, out: &said}
	if err := u.run(ctx); err == nil || !strings.Contains(said.String(), "no controller of Tarn works") {
		t.Fatalf("it waits for a controller that is gone: %v\n%s", err, said.String())
	}
	u.keep = true
	if err := u.run(ctx); err != nil {
		t.Fatalf("uninstalling: %v\n%s", err, said.String())
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(filler), filler); client.IgnoreNotFound(err) != nil || slices.Contains(filler.Finalizers, tarnv1.FinalizerInProcess) {
		t.Errorf("the filler claim is held for ever, by %q (%v)", filler.Finalizers, err)
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(itsClaim), itsClaim); err != nil || itsClaim.DeletionTimestamp != nil {
		t.Errorf("the application's claim does not stay: %+v (%v)", itsClaim.ObjectMeta, err)
	}
	nothingOfTarn(ctx, t, c)
}

func nothingOfTarn(ctx context.Context, t *testing.T, c client.Client) {
	t.Helper()
	crds, roles, bindings, drivers := &apiextensionsv1.CustomResourceDefinitionList{}, &rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{}, &storagev1.CSIDriverList{}
	for _, list := range []client.ObjectList{crds, roles, bindings, drivers} {
		if err := c.List(ctx, list); err != nil {
			t.Fatal(err)
		}
		for _, o := range objectsOf(list) {
			if strings.HasPrefix(o.GetName(), "tarn") || strings.Contains(o.GetName(), "tarn.dev") || strings.Contains(o.GetName(), "pav") || o.GetName() == "shelf" {
				t.Errorf("%T %s is left", o, o.GetName())
			}
		}
	}
	if err := c.Get(ctx, client.ObjectKey{Name: Namespace}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
		t.Errorf("namespace %s is left: %v", Namespace, err)
	}
}

// widget returns a custom resource of another application.
func widget() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.org/v2", "kind": "Widget", "metadata": map[string]any{"namespace": Namespace, "name": "front"},
	}}
}

func widgets() *apiextensionsv1.CustomResourceDefinition {
	schema := &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.org"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.org", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1", Deprecated: true, Schema: schema}, {Name: "v2", Served: true, Storage: true, Schema: schema},
			},
		},
	}
}

func TestUninstallingLeavesTheNamespaceToThoseWhoHaveSomethingThere(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Limit)
	defer cancel()
	config := testkit.OwnAPIServer(t)
	c := testkit.Client(t, config)
	go finishNamespaces(ctx, c)
	here := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: Namespace, Name: name} }
	theirs := []client.Object{
		&corev1.ConfigMap{ObjectMeta: here("settings")}, &corev1.Secret{ObjectMeta: here("pull")}, testkit.Claim(Namespace, "data", "", "theirs"), widget(),
		testkit.Claim(Namespace, "scrub-brush", "", "theirs"), &rbacv1.Role{ObjectMeta: here("shop")},
	}
	of := here("tarn-api")
	of.Labels = map[string]string{"app.kubernetes.io/name": "tarn", "app.kubernetes.io/component": "api"}
	ours := []client.Object{
		&corev1.Service{ObjectMeta: of, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
		&networkingv1.NetworkPolicy{ObjectMeta: here("tarn")},
		&coordinationv1.Lease{ObjectMeta: here(kube.ControllerName), Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("")}},
	}
	definition, root := widgets(), &corev1.ConfigMap{ObjectMeta: here("kube-root-ca.crt")}
	for _, o := range append(append(ours, definition, root), theirs...) {
		create := func(ctx context.Context) (bool, error) {
			err := c.Create(ctx, o)
			return err == nil, client.IgnoreNotFound(ignoreUnknown(err)) // a definition takes a moment
		}
		if err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, create); err != nil {
			t.Fatalf("creating %T %s: %v", o, o.GetName(), err)
		}
	}

	var said bytes.Buffer
	asked, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	u := &uninstaller{client: c, kinds: asked.ServerPreferredNamespacedResources, out: &said}
	const named = "namespace tarn-system stays, with objects that are not Tarn's: ConfigMap settings, PersistentVolumeClaim data, PersistentVolumeClaim scrub-brush, Secret pull, Widget front, Role shop\n"
	for _, do := range []func(context.Context) error{u.tell, u.run, u.run} {
		said.Reset()
		if err := do(ctx); err != nil || !strings.Contains(said.String(), named) {
			t.Fatalf("%v, want it to say %q, and it says:\n%s", err, named, said.String())
		}
	}
	space := &corev1.Namespace{}
	if err := c.Get(ctx, client.ObjectKey{Name: Namespace}, space); err != nil || space.DeletionTimestamp != nil || space.Labels[tarnv1.LabelDeletionProtection] != "" {
		t.Fatalf("the namespace is not simply left to others: %v, %+v", err, space.ObjectMeta)
	}
	for _, o := range theirs {
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil || o.GetDeletionTimestamp() != nil {
			t.Errorf("%T %s, which is not Tarn's: %v, deleted %v", o, o.GetName(), err, o.GetDeletionTimestamp())
		}
	}
	for _, o := range append(ours, &corev1.ServiceAccount{ObjectMeta: here("tarn-controller")}) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			t.Errorf("%T %s of Tarn's is left: %v", o, o.GetName(), err)
		}
	}

	for _, o := range theirs[:len(theirs)-1] { // claims have a finalizer, which no controller removes here
		if err := c.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`))); err != nil {
			t.Fatal(err)
		}
		if err := c.Delete(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	said.Reset()
	if err := u.run(ctx); err != nil || !strings.Contains(said.String(), "and namespace tarn-system, with objects that are not Tarn's: Role shop\n") {
		t.Fatalf("uninstalling when others have but a Role there: %v\n%s", err, said.String())
	}
	nothingOfTarn(ctx, t, c)
}

// ignoreUnknown ignores the error that a kind is not served yet.
func ignoreUnknown(err error) error {
	if err != nil && strings.Contains(err.Error(), "no matches for kind") {
		return nil
	}
	return err
}
