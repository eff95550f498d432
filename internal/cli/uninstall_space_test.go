package cli

import (
	"errors"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// passing are the kinds that do not keep the namespace, including one that the cluster has
// reported.
var passing = append(slices.Clone(accessories), schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"})

// resident returns an object in Tarn's namespace. what is "Kind name" and also its uid.
func resident(what string, changes ...testkit.With[*metav1.PartialObjectMetadata]) metav1.PartialObjectMetadata {
	kind, name, _ := strings.Cut(what, " ")
	o := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID(what)}}
	o.Kind = kind
	for _, k := range slices.Concat(belongings, passing) {
		if k.Kind == kind {
			o.SetGroupVersionKind(k)
		}
	}
	for _, change := range changes {
		change(&o)
	}
	return o
}

func labelled(pairs ...string) testkit.With[*metav1.PartialObjectMetadata] {
	return func(o *metav1.PartialObjectMetadata) {
		o.Labels = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			o.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

// by adds an owner: "Kind name", or any other text.
func by(owner string) testkit.With[*metav1.PartialObjectMetadata] {
	return func(o *metav1.PartialObjectMetadata) {
		o.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(owner)}}
	}
}

// of adds an owner by kind and uid.
func of(kind, uid string) testkit.With[*metav1.PartialObjectMetadata] {
	return func(o *metav1.PartialObjectMetadata) {
		o.OwnerReferences = []metav1.OwnerReference{{Kind: kind, UID: types.UID(uid)}}
	}
}

func keptFor(account string) testkit.With[*metav1.PartialObjectMetadata] {
	return func(o *metav1.PartialObjectMetadata) {
		o.Annotations = map[string]string{"kubernetes.io/service-account.name": account}
	}
}

func TestWhatIsNotTarnsKeepsItsNamespace(t *testing.T) {
	chart := labelled("app.kubernetes.io/name", "tarn", "app.kubernetes.io/component", "controller")
	own, err := ownNames()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		is metav1.PartialObjectMetadata
		// whose is theirs, lost (also of others), or ours. It is empty for objects that are known
		// by name or deleted with their owner.
		whose string
	}{
		{resident("Pod shop"), "theirs"},
		{resident("Pod shop", labelled("app.kubernetes.io/name", "shop", "app.kubernetes.io/component", "controller")), "theirs"},
		{resident("Pod nfs-server", labelled("app.kubernetes.io/name", "tarn", "app.kubernetes.io/component", "server")), "theirs"},
		{resident("Pod static", by("Node one")), "theirs"},
		{resident("Pod web-0", by("StatefulSet web")), "theirs"}, // which is not there
		{resident("Pod tarn-controller-1", chart, by("ReplicaSet tarn-controller-1")), "ours"},
		{resident("Pod pav-staging-1", labelled(tarnv1.LabelStep, "staging")), "ours"},
		{resident("Deployment shop"), "theirs"},
		{resident("Deployment tarn-controller", chart), "ours"},
		{resident("StatefulSet db"), "theirs"},
		{resident("DaemonSet logs"), "theirs"},
		{resident("Job once"), "theirs"},
		{resident("CronJob nightly"), "theirs"},
		{resident("Ingress front"), "theirs"},
		{resident("Service shop"), "theirs"},
		{resident("Service tarn-controller-metrics", chart), "ours"},
		{resident("PersistentVolumeClaim data"), "theirs"},
		{resident("PersistentVolumeClaim pool-u-1", of("PersistentVolumeSet", "u")), "ours"},
		{resident("PersistentVolumeClaim scrub-u", of("PersistentVolume", "u")), "ours"},
		{resident("PersistentVolumeClaim pool-u-1"), "theirs"},
		{resident("PersistentVolumeClaim pool-u-1", of("PersistentVolumeSet", "v")), "theirs"},
		{resident("PersistentVolumeClaim scrub-u"), "theirs"},
		{resident("PersistentVolumeClaim scrub-brush", of("PersistentVolume", "u")), "theirs"},
		{resident("PersistentVolumeClaim scrub-u", of("Pod", "u")), "theirs"},
		{resident("ConfigMap settings"), "theirs"},
		{resident("ConfigMap kube-root-ca.crt"), "neither"},
		{resident("Secret kube-root-ca.crt"), "theirs"},
		{resident("Secret pull"), "theirs"},
		{resident("Secret default-token", keptFor("default")), "neither"},
		{resident("Secret tarn-api-token", keptFor("tarn-api")), "neither"},
		{resident("Secret robot-token", keptFor("robot")), "theirs"},
		{resident("Secret sh.helm.release.v1.tarn.v1", labelled("owner", "helm", "name", "tarn")), "neither"},
		{resident("Secret sh.helm.release.v1.shop.v1", labelled("owner", "helm", "name", "shop")), "theirs"},
		{resident("ServiceAccount robot"), "theirs"},
		{resident("ServiceAccount tarn-node"), "neither"},
		{resident("ServiceAccount default"), "neither"},
		{resident("NetworkPolicy tarn-scrub"), "ours"},
		{resident("NetworkPolicy shop"), "lost"},
		{resident("PodDisruptionBudget tarn-controller", chart), "ours"},
		{resident("Lease tarn-controller"), "ours"},
		{resident("Lease shop"), "lost"},
		{resident("Role shop"), "lost"},
		{resident("Role tarn-controller"), "neither"},
		{resident("RoleBinding system:deployers"), "neither"},
		{resident("Certificate front"), "theirs"},
		{resident("ServiceMonitor tarn-controller", chart), "ours"},
	} {
		s := sortSpace([]metav1.PartialObjectMetadata{c.is}, own, []string{"tarn"}, passing)
		got := "neither"
		switch {
		case len(s.theirs) > 0:
			got = "theirs"
		case len(s.lost) > 0:
			got = "lost"
		case len(s.ours) > 0:
			got = "ours"
		}
		if got != c.whose {
			t.Errorf("%s %s with labels %v is taken for %s, want %s", c.is.Kind, c.is.Name, c.is.Labels, got, c.whose)
		}
	}
}

func TestWhatAnotherObjectThereHasMadeIsNotNamedBesideIt(t *testing.T) {
	s := sortSpace([]metav1.PartialObjectMetadata{
		resident("Pod shop-1-a", by("ReplicaSet shop-1")), resident("ReplicaSet shop-1", by("Deployment shop")), resident("Deployment shop"),
		resident("Certificate front"), resident("Secret front-tls", by("Certificate front")),
	}, nil, nil, nil)
	if want := []string{"Certificate front", "Deployment shop"}; !slices.Equal(s.theirs, want) {
		t.Errorf("%q, want %q", s.theirs, want)
	}
}

func TestThePlanNamesWhatOthersHaveInTarnsNamespace(t *testing.T) {
	last := func(in *installed) string {
		steps := planUninstall(in, false).steps
		return steps[len(steps)-1].what
	}
	if got := last(whatIs()); !strings.HasSuffix(got, "custom resources and namespace tarn-system") {
		t.Errorf("with nothing of others: %q", got)
	}
	got := last(whatIs(func(in *installed) { in.lost = []string{"NetworkPolicy shop", "Role shop"} }))
	if want := "custom resources and namespace tarn-system, with objects that are not Tarn's: NetworkPolicy shop, Role shop"; !strings.HasSuffix(got, want) {
		t.Errorf("%q, want it to end with %q", got, want)
	}
	got = last(whatIs(func(in *installed) { in.theirs = []string{"Deployment shop", "Secret pull"} }))
	if want := "roles and custom resources; namespace tarn-system stays, with objects that are not Tarn's: Deployment shop, Secret pull"; !strings.HasSuffix(got, want) {
		t.Errorf("%q, want it to end with %q", got, want)
	}
}

func TestOtherKindsAreThoseThatLieInNamespacesAndCanBeListed(t *testing.T) {
	resource := func(name, kind string, namespaced bool, verbs ...string) metav1.APIResource {
		return metav1.APIResource{Name: name, Kind: kind, Namespaced: namespaced, Verbs: verbs}
	}
	u := &uninstaller{kinds: func() ([]*metav1.APIResourceList, error) {
		return []*metav1.APIResourceList{
			{GroupVersion: "v1", APIResources: []metav1.APIResource{
				resource("pods", "Pod", true, "list"), resource("pods/log", "Pod", true, "get"), resource("limitranges", "LimitRange", true, "get", "list"),
				resource("bindings", "Binding", true, "create"), resource("events", "Event", true, "list"), resource("nodes", "Node", false, "list"),
			}},
			{GroupVersion: "rbac.authorization.k8s.io/v1", APIResources: []metav1.APIResource{resource("roles", "Role", true, "list")}},
			{GroupVersion: "example.org/v1", APIResources: []metav1.APIResource{resource("widgets", "Widget", true, "list")}},
			{GroupVersion: "tarn.dev/v1alpha1", APIResources: []metav1.APIResource{resource("apps", "App", true, "list")}},
		}, errors.New("metrics.k8s.io does not answer")
	}}
	definition := apiextensionsv1.CustomResourceDefinition{}
	definition.Spec.Group, definition.Spec.Names.Kind = "example.org", "Widget"
	got := u.otherKinds(&apiextensionsv1.CustomResourceDefinitionList{Items: []apiextensionsv1.CustomResourceDefinition{definition}})
	want := []schema.GroupVersionKind{{Version: "v1", Kind: "LimitRange"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
