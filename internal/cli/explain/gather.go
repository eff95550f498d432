package explain

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// Source is where everything is read: without a cache, and with the caller's rights.
type Source struct {
	Client client.Reader
	Logs   corev1client.PodsGetter
	// Namespace is the namespace of Tarn's own lease and Deployment.
	Namespace string
}

// Explain answers for one object. It returns an error only if that object does not exist, or cannot
// be read. The error then names objects with similar names.
func Explain(ctx context.Context, from Source, asked Object, now time.Time) (*Explanation, error) {
	first, err := explainView(ctx, from, &View{Asked: asked, Now: now})
	if err != nil || !first.again {
		return first, err
	}
	timer := time.NewTimer(secondLook)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return first, nil
	case <-timer.C:
	}
	second, err := explainView(ctx, from, &View{Asked: asked, Now: now.Add(secondLook), Twice: true})
	if err != nil {
		return first, nil //nolint:nilerr // it is gone, as the first look has said it would be
	}
	return second, nil
}

// secondLook is the time between two reads. It is longer than a protection controller needs, which
// checks the pods of a namespace at least every two seconds while a claim waits.
const secondLook = 3 * time.Second

// explainView fills a view and computes the answer from it.
func explainView(ctx context.Context, from Source, v *View) (*Explanation, error) {
	g := &gatherer{Source: from, view: v}
	if err := g.gather(ctx); err != nil {
		return nil, err
	}
	return chain(g.view), nil
}

// gatherer fills a View; it does several reads at once.
type gatherer struct {
	Source
	view *View

	mu sync.Mutex
	// asked caches the lists that more than one part of the view needs.
	asked map[string]func() any
}

func (g *gatherer) gather(ctx context.Context) error {
	asked := g.view.Asked
	key := client.ObjectKey{Namespace: asked.Namespace, Name: asked.Name}
	switch asked.Kind {
	case Claim:
		claim, err := kube.Get(ctx, g.Client, key, &corev1.PersistentVolumeClaim{})
		if err != nil || claim == nil {
			return g.notFound(ctx, err)
		}
		g.view.Claim = g.claim(ctx, claim)
	case Volume:
		vol, err := kube.Get(ctx, g.Client, key, &corev1.PersistentVolume{})
		if err != nil {
			return g.notFound(ctx, err)
		}
		record, err := kube.Get(ctx, g.Client, key, &tarnv1.PavVolume{})
		if vol == nil && (err != nil || record == nil) {
			return g.notFound(ctx, nil)
		}
		g.view.Volume = g.volume(ctx, asked.Name, "")
	case Pod:
		pod, err := kube.Get(ctx, g.Client, key, &corev1.Pod{})
		if err != nil || pod == nil {
			return g.notFound(ctx, err)
		}
		g.pod(ctx, pod)
	case Set:
		set, err := kube.Get(ctx, g.Client, key, &tarnv1.PersistentVolumeSet{})
		if err != nil || set == nil {
			return g.notFound(ctx, err)
		}
		g.set(ctx, set)
	case App:
		app, err := kube.Get(ctx, g.Client, key, &tarnv1.App{})
		if err != nil || app == nil {
			return g.notFound(ctx, err)
		}
		g.app(ctx, app)
	default:
		return fmt.Errorf("kind %q cannot be explained; give app, claim, volume, pod or pvset", asked.Kind)
	}
	g.controller(ctx)
	return nil
}

// pod reads what a pod waits for: its claims, its node and its Events.
func (g *gatherer) pod(ctx context.Context, pod *corev1.Pod) {
	names := volume.ClaimsOfPod(pod)
	g.view.Claims = make([]*claimView, len(names))
	work := []func(){func() { g.view.Pod = g.podView(ctx, pod, true) }}
	for i, name := range names {
		work = append(work, func() {
			claim := get(ctx, g, Claim, pod.Namespace, name, &corev1.PersistentVolumeClaim{})
			if claim == nil {
				g.view.Claims[i] = &claimView{Object: Object{Claim, pod.Namespace, name}}
				return
			}
			g.view.Claims[i] = g.claim(ctx, claim)
		})
	}
	together(work...)
}

// set reads what a pool's filler claims wait for. It reads only a few of them. If the pool's
// provisioner cannot be used, there are no filler claims, so it reads the provisioner too.
func (g *gatherer) set(ctx context.Context, set *tarnv1.PersistentVolumeSet) {
	g.view.Set = set
	var fillers corev1.PersistentVolumeClaimList
	g.list(ctx, Claim, g.Namespace, &fillers, client.MatchingLabels{tarnv1.LabelPoolUID: string(set.UID)})
	work := []func(){func() {
		class := get(ctx, g, storageClass, "", set.Spec.Template.Spec.StorageClassName, &storagev1.StorageClass{})
		if class != nil && !strings.Contains(class.Provisioner, "/") {
			g.view.Maker = get(ctx, g, pavProvisioner, "", class.Provisioner, &pavv1.PavProvisioner{})
		}
	}}
	for i := range fillers.Items {
		if filler := &fillers.Items[i]; filler.Spec.VolumeName == "" && len(g.view.Claims) < mostNames {
			at := len(g.view.Claims)
			g.view.Claims = append(g.view.Claims, nil)
			work = append(work, func() { g.view.Claims[at] = g.claim(ctx, filler) })
		}
	}
	together(work...)
}

// claim reads what a claim waits for.
func (g *gatherer) claim(ctx context.Context, claim *corev1.PersistentVolumeClaim) *claimView {
	c := &claimView{Object: Object{Claim, claim.Namespace, claim.Name}, Claim: claim}
	together(
		func() { c.Classes = once(g, "classes", func() []*storagev1.StorageClass { return g.classes(ctx) }) },
		func() { c.Users = g.users(ctx, claim) },
		func() { c.Events = g.events(ctx, claim) },
	)
	if i := slices.IndexFunc(c.Classes, func(s *storagev1.StorageClass) bool { return s.Name == volume.ClassOf(claim) }); i >= 0 {
		c.Class = c.Classes[i]
	}
	name := claim.Spec.VolumeName
	if name == "" {
		name = "pvc-" + string(claim.UID)
	}
	work := []func(){func() { c.Volume = g.volume(ctx, name, provisionerOf(claim, c.Class)) }}
	if claim.Spec.VolumeName == "" {
		work = append(work,
			func() { c.Candidates = once(g, "volumes", func() []corev1.PersistentVolume { return g.volumes(ctx) }) },
			func() {
				c.Provisioners = once(g, "provisioners", func() []pavv1.PavProvisioner { return g.provisioners(ctx) })
			})
	}
	together(work...)
	c.Nearest = g.nearest(ctx, c)
	return c
}

// volume reads a volume and what creates, stages or removes it. provisioner names its creator, for
// a volume that does not exist yet.
func (g *gatherer) volume(ctx context.Context, name, provisioner string) *volumeView {
	v := &volumeView{Name: name}
	together(
		func() { v.Volume = get(ctx, g, Volume, "", name, &corev1.PersistentVolume{}) },
		func() { v.Record = get(ctx, g, pavVolume, "", name, &tarnv1.PavVolume{}) },
		func() { v.Stages = g.stages(ctx, name) },
	)
	if v.Volume != nil && v.Volume.Spec.CSI != nil {
		provisioner = v.Volume.Spec.CSI.Driver
	} else if v.Record != nil {
		provisioner = v.Record.Spec.Provisioner.Name
	}
	var work []func()
	if provisioner != "" && !strings.Contains(provisioner, "/") { // a name with a slash is a program, not a PavProvisioner or CSI driver
		work = append(work,
			func() { v.Provisioner = get(ctx, g, pavProvisioner, "", provisioner, &pavv1.PavProvisioner{}) },
			func() { v.Driver = get(ctx, g, csiDriver, "", provisioner, &storagev1.CSIDriver{}) })
	}
	if v.Record != nil {
		if step, attempt, namespace := stepOf(v.Record); step != "" {
			work = append(work, func() { v.Step = g.stepPod(ctx, namespace, podName(v.Record, step, attempt)) })
		}
	}
	if v.Volume != nil {
		work = append(work, func() { v.Events = g.events(ctx, v.Volume) })
		if class := volume.ClassOfVolume(v.Volume); class != "" && v.Volume.Status.Phase == corev1.VolumeReleased {
			work = append(work, func() { v.Class = get(ctx, g, storageClass, "", class, &storagev1.StorageClass{}) })
		}
		if ref := v.Volume.Spec.ClaimRef; ref != nil && ref.Namespace != "" && ref.Name != "" {
			work = append(work, func() { g.claimants(ctx, v) }, func() {
				v.Claim = get(ctx, g, Claim, ref.Namespace, ref.Name, &corev1.PersistentVolumeClaim{})
				if v.Claim != nil && (v.Volume.DeletionTimestamp != nil || slices.ContainsFunc(v.Stages, mended)) && g.view.Asked.Kind == Volume {
					v.Users = g.users(ctx, v.Claim)
				}
				v.Last = g.lastUsers(ctx, v)
			})
		}
	} else if v.Record != nil && g.view.Asked.Kind == Volume {
		of := v.Record.Spec.Claim
		work = append(work, func() {
			v.Claim = get(ctx, g, Claim, of.Namespace, of.Name, &corev1.PersistentVolumeClaim{})
			v.Last = g.lastUsers(ctx, v)
		}, func() { v.Named = g.naming(ctx, v.Record) })
	}
	together(work...)
	return v
}

// controller reads whether Tarn's controller runs.
func (g *gatherer) controller(ctx context.Context) {
	together(
		func() {
			g.view.Controller = get(ctx, g, lease, g.Namespace, kube.ControllerName, &coordinationv1.Lease{})
		},
		func() {
			g.view.Deployment = get(ctx, g, deployment, g.Namespace, kube.ControllerName, &appsv1.Deployment{})
		},
	)
}

// together runs functions at once and waits for all.
func together(work ...func()) {
	var all sync.WaitGroup
	for _, f := range work {
		all.Go(f)
	}
	all.Wait()
}

// once runs read only once for a key, however many callers ask at the same time.
func once[T any](g *gatherer, key string, read func() T) T {
	g.mu.Lock()
	if g.asked == nil {
		g.asked = map[string]func() any{}
	}
	f := g.asked[key]
	if f == nil {
		f = sync.OnceValue(func() any { return read() })
		g.asked[key] = f
	}
	g.mu.Unlock()
	value, _ := f().(T)
	return value
}

// get reads an object. It returns nil if the object does not exist or cannot be read. The latter is
// noted, and the other reads continue.
func get[T client.Object](ctx context.Context, g *gatherer, kind Kind, namespace, name string, into T) T {
	var none T
	o, err := kube.Get(ctx, g.Client, client.ObjectKey{Namespace: namespace, Name: name}, into)
	if err != nil {
		g.missed(Object{kind, namespace, name}, "get", err)
		return none
	}
	return o
}

// list reads a list, and says whether that succeeded.
func (g *gatherer) list(ctx context.Context, kind Kind, namespace string, into client.ObjectList, options ...client.ListOption) bool {
	if namespace != "" {
		options = append(options, client.InNamespace(namespace))
	}
	err := g.Client.List(ctx, into, options...)
	if err != nil {
		g.missed(Object{Kind: kind, Namespace: namespace}, "list", err)
	}
	return err == nil
}

// missed notes what could not be read. If the cluster does not have the kind, there are no objects
// of it, so nothing is noted.
func (g *gatherer) missed(o Object, verb string, err error) {
	if meta.IsNoMatchError(errors.Unwrap(err)) || meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if u := (unread{o, Why(verb, err)}); !slices.Contains(g.view.Unread, u) {
		g.view.Unread = append(g.view.Unread, u)
	}
}

// unread says whether an object is missing because it could not be read.
func (g *gatherer) unread(kind Kind, namespace, name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.view.unknown(kind, namespace, name)
}

// needs is the prefix of the message about a missing right.
const needs = "needs permission"

// Why words the error of a read. For a forbidden read it names the missing right. For a server that
// cannot be reached it says only that. verb is get or list.
func Why(verb string, err error) string {
	var unreached *url.Error
	if errors.As(err, &unreached) {
		return fmt.Sprintf("the API server does not respond: %v", unreached.Err)
	}
	var status apierrors.APIStatus
	if !apierrors.IsForbidden(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return err.Error()
	}
	resource := status.Status().Details.Kind
	if group := status.Status().Details.Group; group != "" {
		resource += "." + group
	}
	return fmt.Sprintf("%s to %s %s", needs, verb, resource)
}
