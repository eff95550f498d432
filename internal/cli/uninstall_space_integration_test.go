//go:build integration

package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

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
