package testkit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
)

// lent are the API servers that tests of this process use one after another. Starting one takes
// seconds of processor time, and cleaning one hardly any. Servers are lent only where Main removes
// them in the end.
var lent struct {
	sync.Mutex
	lending bool
	idle    []*server
}

// server is an API server with the objects it had before its first test.
type server struct {
	name   string
	config *rest.Config
	before map[types.UID]string
}

// manyLeft is the number of leftover objects from which removing a server is cheaper than cleaning
// it.
const manyLeft = 300

// movable are the kinds that tests make, whose objects disappear as soon as they are deleted.
var movable = []schema.GroupVersionKind{
	{Version: "v1", Kind: "Pod"}, {Group: "apps", Version: "v1", Kind: "Deployment"},
	{Group: "tarn.dev", Version: "v1alpha1", Kind: "App"}, {Group: "tarn.dev", Version: "v1alpha1", Kind: "PersistentVolumeSet"},
	{Group: "tarn.dev", Version: "v1alpha1", Kind: "PavStage"}, {Group: "tarn.dev", Version: "v1alpha1", Kind: "PavVolume"},
	{Group: "pav.albertofaria.github.io", Version: "v1alpha1", Kind: "PavProvisioner"},
	{Version: "v1", Kind: "PersistentVolumeClaim"}, {Version: "v1", Kind: "PersistentVolume"},
	{Group: "storage.k8s.io", Version: "v1", Kind: "StorageClass"}, {Group: "storage.k8s.io", Version: "v1", Kind: "CSIDriver"},
	{Group: "storage.k8s.io", Version: "v1", Kind: "CSINode"}, {Group: "storage.k8s.io", Version: "v1", Kind: "VolumeAttachment"},
	{Version: "v1", Kind: "Node"}, {Version: "v1", Kind: "ConfigMap"}, {Version: "v1", Kind: "Secret"}, {Version: "v1", Kind: "ServiceAccount"},
	{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"}, {Version: "v1", Kind: "Event"},
	{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"},
}

// settings are the kinds that configure an API server. A change takes effect with a delay, so a
// server whose settings a test has changed is not lent again.
var settings = []schema.GroupVersionKind{
	{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicyBinding"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingAdmissionPolicy"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingAdmissionPolicyBinding"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingWebhookConfiguration"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
	{Version: "v1", Kind: "ResourceQuota"}, {Version: "v1", Kind: "LimitRange"}, {Group: "scheduling.k8s.io", Version: "v1", Kind: "PriorityClass"},
}

// borrow gives a server that no test uses. It starts one if there is none.
func borrow() (*server, error) {
	if s := takeIdle(); s != nil {
		return s, nil
	}
	started.CompareAndSwap(0, 1) // the first name belongs to the shared one
	s := &server{name: serverName(started.Add(1))}
	var err error
	if s.config, err = start(s.name); err != nil {
		return s, err
	}
	c, err := client.New(s.config, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	s.before, _, err = look(ctx, c, nil)
	return s, err
}

func takeIdle() *server {
	lent.Lock()
	defer lent.Unlock()
	n := len(lent.idle)
	if n == 0 {
		return nil
	}
	s := lent.idle[n-1]
	lent.idle = lent.idle[:n-1]
	return s
}

// giveBack cleans a server for the next test, or removes it where that fails.
func (s *server) giveBack(failed bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	if failed || !lent.lending || s.clean(ctx) != nil {
		return stop(s.name)
	}
	lent.Lock()
	defer lent.Unlock()
	lent.idle = append(lent.idle, s)
	return nil
}

// takeDown ends the servers that no test uses.
func takeDown() error {
	var errs []error
	for s := takeIdle(); s != nil; s = takeIdle() {
		errs = append(errs, stop(s.name))
	}
	return errors.Join(errs...)
}

// clean deletes what a test has made. An error means that the server is not in its first state.
func (s *server) clean(ctx context.Context) error {
	c, err := client.New(s.config, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return err
	}
	now, made, err := look(ctx, c, s.before)
	if err != nil {
		return err
	}
	if !maps.Equal(now, s.before) || len(made) > manyLeft {
		return errors.New("cleaning up is not worth while")
	}
	for i := range made {
		if err := remove(ctx, c, &made[i]); err != nil {
			return err
		}
	}
	if _, made, err = look(ctx, c, s.before); err == nil && len(made) > 0 {
		err = fmt.Errorf("%d objects do not go", len(made))
	}
	return err
}

// look gives the versions of all settings and of the other objects in before, and the objects that
// are new. Before the first test, every object belongs to the server.
func look(ctx context.Context, c client.Client, before map[types.UID]string) (versions map[types.UID]string, made []metav1.PartialObjectMetadata, err error) {
	versions = map[types.UID]string{}
	for _, kind := range settings {
		objects, err := list(ctx, c, kind)
		if err != nil {
			return nil, nil, err
		}
		for i := range objects {
			versions[objects[i].UID] = version(&objects[i])
		}
	}
	for _, kind := range movable {
		objects, err := list(ctx, c, kind)
		if err != nil {
			return nil, nil, err
		}
		for i := range objects {
			_, old := before[objects[i].UID]
			switch {
			case objects[i].Namespace == metav1.NamespaceSystem: // the API server's own
			case old || before == nil:
				versions[objects[i].UID] = version(&objects[i])
			default:
				made = append(made, objects[i])
			}
		}
	}
	return versions, made, nil
}

// version changes when an object is changed, except for its status, which the API server itself may
// write.
func version(o *metav1.PartialObjectMetadata) string {
	if o.Generation > 0 {
		return fmt.Sprint("generation ", o.Generation)
	}
	return o.ResourceVersion
}

// remove deletes an object and removes its finalizers.
func remove(ctx context.Context, c client.Client, o client.Object) error {
	err := c.Delete(ctx, o, client.GracePeriodSeconds(0))
	if err == nil && len(o.GetFinalizers()) > 0 {
		err = c.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
	}
	return client.IgnoreNotFound(err)
}

// list gives all objects of a kind.
func list(ctx context.Context, c client.Client, kind schema.GroupVersionKind) ([]metav1.PartialObjectMetadata, error) {
	found := &metav1.PartialObjectMetadataList{}
	found.SetGroupVersionKind(kind)
	if err := c.List(ctx, found); meta.IsNoMatchError(err) {
		return nil, nil // an older API server
	} else if err != nil {
		return nil, err
	}
	for i := range found.Items {
		found.Items[i].SetGroupVersionKind(kind)
	}
	return found.Items, nil
}
