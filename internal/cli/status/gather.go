package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/cli/explain"
	"tarn.dev/tarn/internal/kube"
)

// Source is where everything is read: without a cache, and with the caller's rights.
type Source struct {
	Client client.Reader
	// System is the namespace of Tarn's own lease and workloads.
	System string
	// Namespace is the only namespace to read; empty for the whole cluster.
	Namespace string
}

// View is all that was read for one answer.
type View struct {
	Now time.Time
	// Namespace is the only namespace that was read, empty for the whole cluster. System is that of
	// Tarn itself.
	Namespace, System string

	Claims  corev1.PersistentVolumeClaimList
	Apps    tarnv1.AppList
	Classes storagev1.StorageClassList
	// Failed are the Events about claims whose volume could not be staged.
	Failed corev1.EventList
	// Pods are the Pending pods. They are read if a claim waits for a pod.
	Pods corev1.PodList
	// The rest is read only for the whole cluster.
	Provisioners pavv1.PavProvisionerList
	Pools        tarnv1.PersistentVolumeSetList
	Records      tarnv1.PavVolumeList
	Stages       tarnv1.PavStageList
	Volumes      corev1.PersistentVolumeList
	Nodes        storagev1.CSINodeList
	Deployments  appsv1.DeploymentList
	DaemonSets   appsv1.DaemonSetList
	// Lease is the lease of Tarn's controller, nil for none.
	Lease *coordinationv1.Lease

	// Missing are the kinds that the cluster does not know.
	Missing []string
	// Unread says for each kind that the caller may not read why not.
	Unread []Unread
}

// hidden says whether the caller may not read a kind.
func (v *View) hidden(kind string) bool {
	return slices.ContainsFunc(v.Unread, func(u Unread) bool { return u.Kind == kind })
}

// Status reads the cluster and judges it. It returns an error if the cluster does not answer, or if
// the namespace does not exist.
func Status(ctx context.Context, from Source, now time.Time) (*Report, error) {
	g := &gatherer{Source: from, view: &View{Now: now, Namespace: from.Namespace, System: from.System}}
	g.gather(ctx)
	if g.absent {
		return nil, fmt.Errorf("there is no namespace %q", from.Namespace)
	}
	if g.broken != nil {
		return nil, fmt.Errorf("the cluster does not respond: %w", g.broken)
	}
	return judge(g.view), nil
}

// gatherer fills a View.
type gatherer struct {
	Source

	mu     sync.Mutex
	view   *View
	broken error
	// absent says that the namespace does not exist.
	absent bool
}

// The kinds that an answer needs, by their names in messages.
const (
	kindApp         = "App"
	kindVolume      = "PersistentVolume"
	kindRecord      = "PavVolume"
	kindStage       = "PavStage"
	kindClaim       = "PersistentVolumeClaim"
	kindClass       = "StorageClass"
	kindEvent       = "Event"
	kindPod         = "Pod"
	kindLease       = "Lease"
	kindProvisioner = "PavProvisioner"
)

// gather reads everything in parallel.
func (g *gatherer) gather(ctx context.Context) {
	v := g.view
	var all sync.WaitGroup
	list := func(kind, namespace string, into client.ObjectList, only ...client.ListOption) {
		all.Go(func() {
			if err := g.Client.List(ctx, into, append(only, client.InNamespace(namespace))...); err != nil {
				g.missed(kind, "list", err)
			}
		})
	}
	list(kindClaim, g.Namespace, &v.Claims)
	list(kindApp, g.Namespace, &v.Apps)
	list(kindClass, "", &v.Classes)
	list(kindEvent, g.Namespace, &v.Failed, client.MatchingFields{"reason": stagingFailed})
	if g.Namespace != "" {
		all.Go(func() {
			// A caller who may not read the namespace still sees its claims and apps, if any.
			namespace, err := kube.Get(ctx, g.Client, client.ObjectKey{Name: g.Namespace}, &corev1.Namespace{})
			g.absent = err == nil && namespace == nil
		})
	} else {
		list(kindProvisioner, "", &v.Provisioners)
		list("PersistentVolumeSet", "", &v.Pools)
		list(kindRecord, "", &v.Records)
		list(kindStage, "", &v.Stages)
		list(kindVolume, "", &v.Volumes)
		list("CSINode", "", &v.Nodes)
		list("Deployment", g.System, &v.Deployments)
		list("DaemonSet", g.System, &v.DaemonSets)
		all.Go(func() {
			var err error
			if v.Lease, err = kube.Get(ctx, g.Client, client.ObjectKey{Namespace: g.System, Name: kube.ControllerName}, &coordinationv1.Lease{}); err != nil {
				g.missed(kindLease, "get", err)
			}
		})
	}
	all.Wait()
	if slices.ContainsFunc(v.Claims.Items, v.awaitsPod) {
		list(kindPod, g.Namespace, &v.Pods, client.MatchingFields{"status.phase": string(corev1.PodPending)})
		all.Wait()
	}
	slices.Sort(v.Missing)
	slices.SortFunc(v.Unread, func(a, b Unread) int { return cmp.Compare(a.Kind, b.Kind) })
}

// missed notes what could not be read. The kind may be unknown, or the read forbidden. Any other
// error means that the cluster does not answer.
func (g *gatherer) missed(kind, verb string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case meta.IsNoMatchError(err) || apierrors.IsNotFound(err):
		g.view.Missing = append(g.view.Missing, kind)
	case apierrors.IsForbidden(err):
		g.view.Unread = append(g.view.Unread, Unread{kind, explain.Why(verb, err)})
	case g.broken == nil:
		g.broken = err
	}
}
