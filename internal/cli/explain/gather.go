package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
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

// gather reads the object that was asked for, and what it may wait for. Claims, stages and pods of
// one object are read in parallel, because a log may take long. All else is read in order.
func (g *gatherer) gather(ctx context.Context) error {
	asked, v := g.view.Asked, g.view
	kind, known := askable[asked.Kind]
	if !known {
		return fmt.Errorf("kind %q cannot be explained; give app, claim, volume, pod or pvset", asked.Kind)
	}
	o, err := kube.Get(ctx, g.Client, client.ObjectKey{Namespace: asked.Namespace, Name: asked.Name}, kind.one())
	if err == nil && o == nil && asked.Kind == Volume { // its record may have outlived it
		if record, _ := kube.Get(ctx, g.Client, client.ObjectKey{Name: asked.Name}, &tarnv1.PavVolume{}); record != nil {
			o = &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: asked.Name}}
		}
	}
	if err != nil || o == nil {
		return g.notFound(ctx, kind.list(), err)
	}
	switch o := o.(type) {
	case *corev1.PersistentVolumeClaim:
		v.Claim = g.claim(ctx, o)
	case *corev1.PersistentVolume:
		v.Volume = g.volume(ctx, asked.Name, "")
	case *corev1.Pod:
		v.Claims = g.claimsNamed(ctx, o.Namespace, volume.ClaimsOfPod(o))
		v.Pod = g.podView(ctx, o, true)
	case *tarnv1.PersistentVolumeSet:
		g.set(ctx, o)
	case *tarnv1.App:
		g.app(ctx, o)
	}
	v.Controller = get(ctx, g, lease, g.Namespace, kube.ControllerName, &coordinationv1.Lease{})
	v.Deployment = get(ctx, g, deployment, g.Namespace, kube.ControllerName, &appsv1.Deployment{})
	return nil
}

// askable are the kinds that a user can ask for.
var askable = map[Kind]struct {
	one  func() client.Object
	list func() client.ObjectList
}{
	Claim:  {func() client.Object { return &corev1.PersistentVolumeClaim{} }, func() client.ObjectList { return &corev1.PersistentVolumeClaimList{} }},
	Volume: {func() client.Object { return &corev1.PersistentVolume{} }, func() client.ObjectList { return &corev1.PersistentVolumeList{} }},
	Pod:    {func() client.Object { return &corev1.Pod{} }, func() client.ObjectList { return &corev1.PodList{} }},
	Set:    {func() client.Object { return &tarnv1.PersistentVolumeSet{} }, func() client.ObjectList { return &tarnv1.PersistentVolumeSetList{} }},
	App:    {func() client.Object { return &tarnv1.App{} }, func() client.ObjectList { return &tarnv1.AppList{} }},
}

// claimsNamed reads claims of a namespace. One that does not exist has no Claim.
func (g *gatherer) claimsNamed(ctx context.Context, namespace string, names []string) []*claimView {
	return each(names, func(name string) *claimView {
		if claim := get(ctx, g, Claim, namespace, name, &corev1.PersistentVolumeClaim{}); claim != nil {
			return g.claim(ctx, claim)
		}
		return &claimView{Object: Object{Claim, namespace, name}}
	})
}

// set reads what a pool's filler claims wait for. It reads only a few of them. If the pool's
// provisioner cannot be used, there are no filler claims, so it reads the provisioner too.
func (g *gatherer) set(ctx context.Context, set *tarnv1.PersistentVolumeSet) {
	g.view.Set = set
	class := get(ctx, g, storageClass, "", set.Spec.Template.Spec.StorageClassName, &storagev1.StorageClass{})
	if class != nil && !strings.Contains(class.Provisioner, "/") {
		g.view.Maker = get(ctx, g, pavProvisioner, "", class.Provisioner, &pavv1.PavProvisioner{})
	}
	var list corev1.PersistentVolumeClaimList
	g.list(ctx, Claim, g.Namespace, &list, client.MatchingLabels{tarnv1.LabelPoolUID: string(set.UID)})
	fillers := slices.DeleteFunc(list.Items, func(c corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName != "" })
	g.view.Claims = each(firstFew(fillers), func(c corev1.PersistentVolumeClaim) *claimView { return g.claim(ctx, &c) })
}

// workloadPrefix is the prefix of the name of an App's Deployment.
const workloadPrefix = "paas-app-"

// app reads the claims of an App, its Deployment, and a few of its pods that are not ready, the
// newest first. For an App that is being deleted, it also reads the claims that the App no longer
// mounts.
func (g *gatherer) app(ctx context.Context, app *tarnv1.App) {
	g.view.App = app
	ours := client.MatchingLabels{tarnv1.LabelApp: app.Name}
	var names []string
	for i := range app.Spec.Volumes {
		names = append(names, appspec.ClaimName(app.Name, app.Spec.Volumes[i].Name))
	}
	if app.DeletionTimestamp != nil {
		var claims corev1.PersistentVolumeClaimList
		g.list(ctx, Claim, app.Namespace, &claims, ours)
		for i := range claims.Items {
			if name := claims.Items[i].Name; !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	g.view.Claims = g.claimsNamed(ctx, app.Namespace, names)
	g.view.Workload = get(ctx, g, deployment, app.Namespace, workloadPrefix+app.Name, &appsv1.Deployment{})
	var list corev1.PodList
	g.list(ctx, Pod, app.Namespace, &list, ours)
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return isReady(&p) && p.DeletionTimestamp == nil })
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	g.view.Pods = each(firstFew(pods), func(p corev1.Pod) *podView { return g.podView(ctx, &p, true) })
}

// claim reads what a claim waits for.
func (g *gatherer) claim(ctx context.Context, claim *corev1.PersistentVolumeClaim) *claimView {
	c := &claimView{Object: Object{Claim, claim.Namespace, claim.Name}, Claim: claim}
	c.Classes = once(g, "classes", func() (classes []*storagev1.StorageClass) {
		var list storagev1.StorageClassList
		g.list(ctx, storageClass, "", &list)
		for i := range list.Items {
			classes = append(classes, &list.Items[i])
		}
		return classes
	})
	if i := slices.IndexFunc(c.Classes, func(s *storagev1.StorageClass) bool { return s.Name == volume.ClassOf(claim) }); i >= 0 {
		c.Class = c.Classes[i]
	}
	c.Users = g.users(ctx, claim)
	c.Events = g.events(ctx, claim)
	name := claim.Spec.VolumeName
	if name == "" {
		name = "pvc-" + string(claim.UID)
		c.Candidates = g.volumes(ctx)
		c.Provisioners = once(g, "provisioners", func() []pavv1.PavProvisioner {
			var list pavv1.PavProvisionerList
			g.list(ctx, pavProvisioner, "", &list)
			return list.Items
		})
	}
	c.Volume = g.volume(ctx, name, provisionerOf(claim, c.Class))
	c.Nearest = g.nearest(ctx, c)
	c.Free = g.free(ctx, c)
	return c
}

// free reads what is free on the nodes for a claim that waits for the scheduler. Users of claims
// may seldom read it, so it is not reported if it cannot be read.
func (g *gatherer) free(ctx context.Context, c *claimView) []freeOn {
	driver := c.Volume.Driver
	if driver == nil || !ptr.Deref(driver.Spec.StorageCapacity, false) || c.Claim.Spec.VolumeName != "" || !waitsForPod(c.Class) {
		return nil
	}
	var list storagev1.CSIStorageCapacityList
	if err := g.Client.List(ctx, &list, client.InNamespace(tarnv1.SystemNamespace), client.MatchingLabels{tarnv1.LabelProvisioner: driver.Name}); err != nil {
		return nil
	}
	var found []freeOn
	for i := range list.Items {
		if o := &list.Items[i]; o.StorageClassName == c.Class.Name && o.Capacity != nil {
			found = append(found, freeOn{o.Annotations[tarnv1.AnnotationNode], o.Capacity.Value()})
		}
	}
	slices.SortFunc(found, func(a, b freeOn) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Node, b.Node)) })
	return found
}

func (g *gatherer) volumes(ctx context.Context) []corev1.PersistentVolume {
	return once(g, "volumes", func() []corev1.PersistentVolume {
		var list corev1.PersistentVolumeList
		g.list(ctx, Volume, "", &list)
		return list.Items
	})
}

func (g *gatherer) podsOf(ctx context.Context, namespace string) []corev1.Pod {
	return once(g, "pods of "+namespace, func() []corev1.Pod {
		var list corev1.PodList
		g.list(ctx, Pod, namespace, &list)
		return list.Items
	})
}

// users returns the pods that name a claim. If the claim is being deleted, it also reads what would
// create each pod again. For a few pods that are being deleted, it reads what keeps them.
func (g *gatherer) users(ctx context.Context, claim *corev1.PersistentVolumeClaim) []user {
	var found []user
	var going []int
	for _, pod := range g.podsOf(ctx, claim.Namespace) {
		if !slices.Contains(volume.ClaimsOfPod(&pod), claim.Name) {
			continue
		}
		u := user{Pod: &pod}
		if claim.DeletionTimestamp != nil {
			u.Workload = g.workload(ctx, u.Pod)
			if pod.DeletionTimestamp != nil && len(going) < mostNames {
				going = append(going, len(found))
			}
		}
		found = append(found, u)
	}
	for i, view := range each(going, func(at int) *podView { return g.podView(ctx, found[at].Pod, false) }) {
		found[going[i]].View = view
	}
	return found
}

// workload returns what would create a pod again: its controller, or that of its ReplicaSet.
func (g *gatherer) workload(ctx context.Context, pod *corev1.Pod) Object {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return Object{}
	}
	o := Object{Kind(owner.Kind), pod.Namespace, owner.Name}
	if o.Kind != replicaSet {
		return o
	}
	set := once(g, "replicaset "+o.fullName(), func() *appsv1.ReplicaSet {
		return get(ctx, g, replicaSet, o.Namespace, o.Name, &appsv1.ReplicaSet{})
	})
	if set == nil || metav1.GetControllerOf(set) == nil {
		return o
	}
	owner = metav1.GetControllerOf(set)
	return Object{Kind(owner.Kind), pod.Namespace, owner.Name}
}

// nearest reads which pods may still use the released volume that came nearest to a claim. It is
// nil if another volume came nearest, or if a provisioner creates the claim's volume.
func (g *gatherer) nearest(ctx context.Context, c *claimView) *volumeView {
	if c.Class != nil && c.Class.Provisioner != noProvisioner {
		return nil
	}
	vol, why := c.nearestVolume()
	if vol == nil || why != volume.MisfitPhase || vol.Spec.ClaimRef == nil || vol.Spec.ClaimRef.Namespace == "" {
		return nil
	}
	v := &volumeView{Name: vol.Name, Volume: vol, Stages: g.stages(ctx, vol.Name)}
	v.Claim = get(ctx, g, Claim, vol.Spec.ClaimRef.Namespace, vol.Spec.ClaimRef.Name, &corev1.PersistentVolumeClaim{})
	v.Last = g.lastUsers(ctx, v)
	return v
}

// volume reads a volume and what creates, stages or removes it. provisioner names its creator, for
// a volume that does not exist yet.
func (g *gatherer) volume(ctx context.Context, name, provisioner string) *volumeView {
	v := &volumeView{Name: name}
	v.Volume = get(ctx, g, Volume, "", name, &corev1.PersistentVolume{})
	v.Record = get(ctx, g, pavVolume, "", name, &tarnv1.PavVolume{})
	v.Stages = g.stages(ctx, name)
	if v.Volume != nil && v.Volume.Spec.CSI != nil {
		provisioner = v.Volume.Spec.CSI.Driver
	} else if v.Record != nil {
		provisioner = v.Record.Spec.Provisioner.Name
	}
	if provisioner != "" && !strings.Contains(provisioner, "/") { // a name with a slash is a program, not a PavProvisioner or CSI driver
		v.Provisioner = get(ctx, g, pavProvisioner, "", provisioner, &pavv1.PavProvisioner{})
		v.Driver = get(ctx, g, csiDriver, "", provisioner, &storagev1.CSIDriver{})
	}
	if v.Record != nil {
		_, pod, _ := stepOf(v.Record)
		v.Step = g.stepPod(ctx, pod.Namespace, pod.Name)
		for _, made := range v.Record.Status.Claims {
			claim := get(ctx, g, Claim, made.Namespace, made.Name, &corev1.PersistentVolumeClaim{})
			if claim != nil && (claim.Status.Phase != corev1.ClaimBound || claim.DeletionTimestamp != nil ||
				claim.Spec.Resources.Requests.Storage().Cmp(*claim.Status.Capacity.Storage()) > 0) {
				v.Backing = append(v.Backing, g.claim(ctx, claim))
			}
		}
	}
	asked := g.view.Asked.Kind == Volume
	if v.Volume != nil {
		v.Events = g.events(ctx, v.Volume)
		if class := volume.ClassOfVolume(v.Volume); class != "" && v.Volume.Status.Phase == corev1.VolumeReleased {
			v.Class = get(ctx, g, storageClass, "", class, &storagev1.StorageClass{})
		}
	} else if v.Record == nil || !asked {
		return v
	}
	ref := v.claimRef()
	if ref == nil || ref.Namespace == "" || ref.Name == "" {
		return v
	}
	v.Claim = get(ctx, g, Claim, ref.Namespace, ref.Name, &corev1.PersistentVolumeClaim{})
	v.Last = g.lastUsers(ctx, v)
	if v.Volume == nil {
		v.Named = g.naming(ctx, v.Record)
		return v
	}
	if v.Claim != nil && asked && (v.Volume.DeletionTimestamp != nil || slices.ContainsFunc(v.Stages, mended)) {
		v.Users = g.users(ctx, v.Claim)
	}
	g.claimants(ctx, v)
	return v
}

// lastUsers returns the pods that may still use a volume through its former claim. It returns none
// while that claim exists, because then the claim's own pods are known.
func (g *gatherer) lastUsers(ctx context.Context, v *volumeView) []*corev1.Pod {
	ref := v.claimRef()
	if ref.UID == "" || v.Claim != nil && v.Claim.UID == ref.UID {
		return nil
	}
	var last []*corev1.Pod
	for _, pod := range g.podsOf(ctx, ref.Namespace) {
		if pod.Spec.NodeName != "" && volume.UsesFormer(&pod, ref.Name, v.Claim) {
			last = append(last, &pod)
		}
	}
	return last
}

// claimants reads which claims name a released volume that the user asked for. For a reserved
// volume it reads whether the namespace of its claim exists. If that read is forbidden, this is not
// reported: it is not important enough.
func (g *gatherer) claimants(ctx context.Context, v *volumeView) {
	ref, phase := v.Volume.Spec.ClaimRef, v.Volume.Status.Phase
	switch {
	case g.view.Asked.Kind != Volume:
	case phase == corev1.VolumeReleased:
		var claims corev1.PersistentVolumeClaimList
		g.list(ctx, Claim, ref.Namespace, &claims)
		for _, claim := range claims.Items {
			if claim.Spec.VolumeName == v.Name && claim.UID != ref.UID && claim.DeletionTimestamp == nil {
				v.Claimants = append(v.Claimants, &claim)
			}
		}
	case phase != corev1.VolumeBound && phase != corev1.VolumeFailed:
		v.NoNamespace = g.noNamespace(ctx, ref.Namespace)
	}
}

// naming returns the claims and volumes that name what is left of a removed volume: claims name the
// volume, volumes name its storage.
func (g *gatherer) naming(ctx context.Context, r *tarnv1.PavVolume) []Object {
	var named []Object
	var claims corev1.PersistentVolumeClaimList
	g.list(ctx, Claim, "", &claims)
	for _, c := range claims.Items {
		if c.Spec.VolumeName == r.Name && c.UID != r.Spec.Claim.UID {
			named = append(named, Object{Claim, c.Namespace, c.Name})
		}
	}
	for _, v := range g.volumes(ctx) {
		if csi := v.Spec.CSI; csi != nil && csi.Driver == r.Spec.Provisioner.Name && csi.VolumeHandle == r.Status.Handle {
			named = append(named, Object{Volume, "", v.Name})
		}
	}
	return named
}

// stages reads the stages of a volume and their pods.
func (g *gatherer) stages(ctx context.Context, volumeName string) []stageView {
	var list tarnv1.PavStageList
	g.list(ctx, pavStage, "", &list, client.MatchingFields{"spec.volumeName": volumeName})
	return each(list.Items, func(stage tarnv1.PavStage) stageView {
		status := stage.Status.Pod
		namespace, name := status.Namespace, status.Name
		if e := status.Expansion; e != nil && e.Name != "" && e.Phase != tarnv1.StageExpansionSucceeded {
			namespace, name = e.Namespace, e.Name
		}
		return stageView{Stage: &stage, Pod: g.stepPod(ctx, namespace, name)}
	})
}

// stepPod reads a step pod, nil if there is none.
func (g *gatherer) stepPod(ctx context.Context, namespace, name string) *podView {
	if name == "" {
		return nil
	}
	if pod := get(ctx, g, Pod, namespace, name, &corev1.Pod{}); pod != nil {
		return g.podView(ctx, pod, false)
	}
	return nil
}

// home reads the node that alone has one of the volumes that the user asked about.
func (g *gatherer) home(ctx context.Context) home {
	claims := g.view.Claims
	i := slices.IndexFunc(claims, func(c *claimView) bool { return homeOf(c.Volume) != "" })
	if i < 0 {
		return home{}
	}
	h := home{Volume: claims[i].Volume.Name, Name: homeOf(claims[i].Volume)}
	h.Node = get(ctx, g, node, "", h.Name, &corev1.Node{})
	h.Gone = h.Node == nil && !g.unread(node, "", h.Name)
	return h
}

// homeOf names the node that alone has a volume, empty for none. By an affinity only its host name is
// known, which is its name almost everywhere.
func homeOf(v *volumeView) string {
	switch {
	case v == nil || v.Volume == nil || v.Volume.Spec.NodeAffinity == nil || v.Volume.Spec.NodeAffinity.Required == nil:
		return ""
	case v.Record != nil && v.Record.Status.NodeName != "":
		return v.Record.Status.NodeName
	}
	return volume.OnlyHost(v.Volume.Spec.NodeAffinity.Required)
}

// podView reads the node, Events and log of a pod. For a pod that the user asked about, it also
// reads the drivers of its node. If that pod has no node, it reads the node of a local volume.
func (g *gatherer) podView(ctx context.Context, pod *corev1.Pod, asked bool) *podView {
	p := &podView{Pod: pod, Events: g.events(ctx, pod)}
	if on := pod.Spec.NodeName; on != "" {
		p.Node = once(g, "node "+on, func() *corev1.Node { return get(ctx, g, node, "", on, &corev1.Node{}) })
		p.NodeGone = p.Node == nil && !g.unread(node, "", on)
		if asked {
			if n := get(ctx, g, csiNode, "", on, &storagev1.CSINode{}); n != nil {
				for _, d := range n.Spec.Drivers {
					p.Drivers = append(p.Drivers, d.Name)
				}
			}
		}
	} else if asked {
		p.Home = g.home(ctx)
	}
	if container, previous, ok := logOf(pod); ok {
		p.LogOf, p.Log = container, g.log(ctx, pod, container, previous)
	}
	return p
}
