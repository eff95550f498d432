package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/deploy"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// belongings are Kubernetes' kinds of objects that a user would miss.
var belongings = []schema.GroupVersionKind{
	{Version: "v1", Kind: "Pod"}, {Version: "v1", Kind: "ReplicationController"}, {Version: "v1", Kind: "Service"},
	{Version: "v1", Kind: "ConfigMap"}, {Version: "v1", Kind: "Secret"}, {Version: "v1", Kind: "PersistentVolumeClaim"},
	{Version: "v1", Kind: "ServiceAccount"},
	{Group: "apps", Version: "v1", Kind: "Deployment"}, {Group: "apps", Version: "v1", Kind: "StatefulSet"},
	{Group: "apps", Version: "v1", Kind: "DaemonSet"}, {Group: "apps", Version: "v1", Kind: "ReplicaSet"},
	{Group: "batch", Version: "v1", Kind: "Job"}, {Group: "batch", Version: "v1", Kind: "CronJob"},
	{Group: "networking.k8s.io", Version: "v1", Kind: "Ingress"},
}

// accessories are kinds that mean nothing without the objects that they are about. If they are not
// Tarn's, they do not keep the namespace, but are listed as deleted with it. The same applies to
// all kinds that are neither listed here nor custom resources, such as Roles and autoscalers.
var accessories = []schema.GroupVersionKind{
	{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
	{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"},
	{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"},
}

// ofTheCluster is what clusters create in every namespace, by kind.
var ofTheCluster = map[string][]string{
	"ConfigMap":      {"kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"},
	"ServiceAccount": {"default", "builder", "deployer"},
	"RoleBinding":    {"system:deployers", "system:image-builders", "system:image-pullers"},
}

// byTheWay are kinds whose objects Kubernetes derives from other objects or from events.
var byTheWay = []schema.GroupKind{
	{Kind: "Event"}, {Group: "events.k8s.io", Kind: "Event"}, {Kind: "Endpoints"}, {Group: "discovery.k8s.io", Kind: "EndpointSlice"},
	{Group: "apps", Kind: "ControllerRevision"}, {Group: "storage.k8s.io", Kind: "CSIStorageCapacity"}, {Group: "metrics.k8s.io", Kind: "PodMetrics"},
}

// unlabelled is what the chart creates without labels, by kind.
var unlabelled = map[string][]string{
	"NetworkPolicy": {"tarn", "tarn-scrub", "tarn-api", "tarn-metrics"},
	"Lease":         {kube.ControllerName},
}

// space lists the objects in Tarn's namespace, without those that the cluster creates in every one.
type space struct {
	// theirs names objects of others that keep the namespace. lost names objects of others that are
	// deleted with it.
	theirs, lost []string
	// ours are the objects that Tarn or its chart has created.
	ours []metav1.PartialObjectMetadata
}

// space lists all objects in Tarn's namespace.
func (u *uninstaller) space(ctx context.Context) (space, error) {
	own, err := ownNames()
	if err != nil {
		return space{}, err
	}
	definitions := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := u.client.List(ctx, definitions); err != nil {
		return space{}, fmt.Errorf("listing custom resources: %w", err)
	}
	var found []metav1.PartialObjectMetadata
	for _, kind := range slices.Concat(belongings, accessories) {
		items, err := u.residents(ctx, Namespace, kind)
		if err != nil {
			return space{}, fmt.Errorf("listing other objects in namespace %s: %w", Namespace, err)
		}
		found = append(found, items...)
	}
	others := u.otherKinds(definitions)
	for _, kind := range others {
		// A kind that may not be listed, or is not served now, must not block the uninstallation.
		if items, err := u.residents(ctx, Namespace, kind); err == nil {
			found = append(found, items...)
		}
	}
	var unread []string
	for i := range definitions.Items {
		kind, ok := foreignKind(&definitions.Items[i])
		if !ok {
			continue
		}
		items, err := u.residents(ctx, Namespace, kind)
		if err != nil { // it counts as theirs: the API server behind it is down, or the caller may not list it
			unread = append(unread, fmt.Sprintf("%s, which cannot be listed", definitions.Items[i].Name))
		}
		found = append(found, items...)
	}
	// The last check comes after Tarn's custom resource definitions are deleted, so releases adds
	// up.
	u.releases = append(u.releases, releases(definitions)...)
	s := sortSpace(found, own, u.releases, slices.Concat(accessories, others))
	s.theirs = append(s.theirs, unread...)
	return s, nil
}

// otherKinds returns the namespaced kinds that can be listed. It leaves out the kinds that are
// checked anyway, and those whose objects Kubernetes derives from others.
func (u *uninstaller) otherKinds(definitions *apiextensionsv1.CustomResourceDefinitionList) []schema.GroupVersionKind {
	if u.kinds == nil {
		return nil
	}
	known := slices.Clone(byTheWay)
	for _, kind := range slices.Concat(belongings, accessories) {
		known = append(known, kind.GroupKind())
	}
	for i := range definitions.Items {
		known = append(known, schema.GroupKind{Group: definitions.Items[i].Spec.Group, Kind: definitions.Items[i].Spec.Names.Kind})
	}
	lists, _ := u.kinds() // if one API group does not answer, the lists of the others still arrive
	var kinds []schema.GroupVersionKind
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || version.Group == tarnv1.GroupVersion.Group || version.Group == pavv1.GroupVersion.Group {
			continue
		}
		for i := range list.APIResources {
			r := &list.APIResources[i]
			kind := version.WithKind(r.Kind)
			if r.Namespaced && !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "list") && !slices.Contains(known, kind.GroupKind()) {
				known, kinds = append(known, kind.GroupKind()), append(kinds, kind)
			}
		}
	}
	return kinds
}

// residents lists the metadata of a kind's objects in a namespace. It does not read their contents,
// such as the data of Secrets.
func (u *uninstaller) residents(ctx context.Context, namespace string, kind schema.GroupVersionKind) ([]metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	err := u.client.List(ctx, list, client.InNamespace(namespace))
	if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return nil, err
	}
	for i := range list.Items {
		list.Items[i].SetGroupVersionKind(kind)
	}
	return list.Items, nil
}

// foreignKind returns the kind of a namespaced custom resource that is not Tarn's.
func foreignKind(d *apiextensionsv1.CustomResourceDefinition) (schema.GroupVersionKind, bool) {
	if d.Spec.Scope != apiextensionsv1.NamespaceScoped || d.Spec.Group == tarnv1.GroupVersion.Group || d.Spec.Group == pavv1.GroupVersion.Group {
		return schema.GroupVersionKind{}, false
	}
	for _, v := range d.Spec.Versions {
		if v.Served {
			return schema.GroupVersionKind{Group: d.Spec.Group, Version: v.Name, Kind: d.Spec.Names.Kind}, true
		}
	}
	return schema.GroupVersionKind{}, false
}

// ownNames returns the objects that `tarn install` creates in Tarn's namespace, by kind.
func ownNames() (map[string][]string, error) {
	objects, err := deploy.Objects()
	if err != nil {
		return nil, err
	}
	own := map[string][]string{}
	for _, o := range objects {
		if o.GetNamespace() == Namespace {
			own[o.GetKind()] = append(own[o.GetKind()], o.GetName())
		}
	}
	return own, nil
}

// releases names the helm releases that installed Tarn's custom resource definitions and whose
// records lie in Tarn's namespace.
func releases(definitions *apiextensionsv1.CustomResourceDefinitionList) []string {
	var names []string
	for i := range definitions.Items {
		d := &definitions.Items[i]
		if d.Spec.Group == tarnv1.GroupVersion.Group && d.Annotations["meta.helm.sh/release-namespace"] == Namespace {
			names = append(names, d.Annotations["meta.helm.sh/release-name"])
		}
	}
	return names
}

// sortSpace separates Tarn's objects from those of others. Of the latter, kinds in passing do not
// keep the namespace. An object owned by another one there is deleted with its owner, so it is not
// listed.
func sortSpace(found []metav1.PartialObjectMetadata, own map[string][]string, releases []string, passing []schema.GroupVersionKind) space {
	there := map[types.UID]bool{}
	for i := range found {
		there[found[i].UID] = true
	}
	var s space
	for i := range found {
		o := &found[i]
		switch {
		case slices.Contains(ofTheCluster[o.Kind], o.Name), slices.Contains(own[o.Kind], o.Name): // these are recognized by name
		case slices.ContainsFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return there[r.UID] }):
		case isOurs(o):
			s.ours = append(s.ours, *o)
		case o.Kind == "Secret" && isRecord(o, own["ServiceAccount"], releases):
		case slices.Contains(passing, o.GroupVersionKind()):
			s.lost = append(s.lost, o.Kind+" "+o.Name)
		default:
			s.theirs = append(s.theirs, o.Kind+" "+o.Name)
		}
	}
	slices.Sort(s.theirs)
	slices.Sort(s.lost)
	return s
}

// isOurs says whether the chart or a controller has created an object.
func isOurs(o *metav1.PartialObjectMetadata) bool {
	switch o.Kind {
	case "PersistentVolumeClaim":
		return errand(o)
	case "Pod":
		if o.Labels[tarnv1.LabelStep] != "" {
			return true
		}
	}
	part := o.Labels["app.kubernetes.io/component"]
	return o.Labels["app.kubernetes.io/name"] == "tarn" && slices.Contains([]string{"api", "controller", "node"}, part) ||
		slices.Contains(unlabelled[o.Kind], o.Name)
}

// isRecord says whether a Secret belongs to a service account of Tarn's or is helm's record of a
// release.
func isRecord(o *metav1.PartialObjectMetadata, accounts, releases []string) bool {
	if account := o.Annotations[corev1.ServiceAccountNameKey]; account != "" {
		return slices.Contains(accounts, account) || slices.Contains(ofTheCluster["ServiceAccount"], account)
	}
	return o.Labels["owner"] == "helm" && slices.Contains(releases, o.Labels["name"])
}

// errand says whether Tarn created a claim to have a volume created or scrubbed. The claim's name
// must contain the uid of its owner, because any user may choose such a name.
func errand(claim metav1.Object) bool {
	return claim.GetNamespace() == Namespace && slices.ContainsFunc(claim.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
		switch r.Kind {
		case "PersistentVolumeSet":
			return strings.HasPrefix(claim.GetName(), fillers(r.UID))
		case "PersistentVolume":
			return claim.GetName() == tarnv1.ScrubPrefix+string(r.UID)
		}
		return false
	})
}

// fillers returns the prefix of the claims by which a set has volumes created. Policy
// pools.tarn.dev reserves these names for the set.
func fillers(set types.UID) string { return volume.PoolPrefix + string(set) + "-" }

// onErrand says whether a claim that an object refers to is, or was, one of those of errand. A
// claim that is gone shows no owner, so its name must contain the uid of an existing pool or
// volume.
func (in *installed) onErrand(namespace, name string) bool {
	named := func(c corev1.PersistentVolumeClaim) bool { return c.Namespace == namespace && c.Name == name }
	switch {
	case namespace != Namespace || slices.Contains(in.strangers, name):
		return false
	case slices.ContainsFunc(in.claims, func(c corev1.PersistentVolumeClaim) bool { return named(c) && errand(&c) }):
		return true
	}
	return slices.ContainsFunc(in.pools, func(s tarnv1.PersistentVolumeSet) bool { return strings.HasPrefix(name, fillers(s.UID)) }) ||
		slices.ContainsFunc(in.volumes, func(v corev1.PersistentVolume) bool { return name == volume.ScrubClaim(&v) })
}

// leaveSteps says whether the namespace of step pods holds an object that a user would miss, such
// as a provisioner's Secret. Then the namespace stays.
func (u *uninstaller) leaveSteps(ctx context.Context) (stays bool, err error) {
	for _, kind := range belongings {
		found, err := u.residents(ctx, tarnv1.StepNamespace, kind)
		if err != nil {
			return false, fmt.Errorf("listing objects in namespace %s: %w", tarnv1.StepNamespace, err)
		}
		for i := range found {
			if !slices.Contains(ofTheCluster[kind.Kind], found[i].Name) {
				return true, nil
			}
		}
	}
	return false, nil
}

// leaveSpace says whether the namespace must stay, because it holds objects of others. If it stays,
// Tarn's own objects in it are deleted one by one.
func (u *uninstaller) leaveSpace(ctx context.Context) (stays bool, err error) {
	s, err := u.space(ctx)
	if err != nil || len(s.theirs) == 0 {
		return false, err
	}
	for i := range s.ours {
		if err := u.remove(ctx, &s.ours[i]); err != nil {
			return true, err
		}
	}
	return true, nil
}
