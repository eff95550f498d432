package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/cli/terminal"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/suggest"
	"tarn.dev/tarn/internal/volume"
)

// Kinds in a chain, beside those that a user can ask for.
const (
	pavVolume      Kind = "PavVolume"
	pavStage       Kind = "PavStage"
	pavProvisioner Kind = "PavProvisioner"
	storageClass   Kind = "StorageClass"
	csiDriver      Kind = "CSIDriver"
	csiNode        Kind = "CSINode"
	node           Kind = "Node"
	event          Kind = "Event"
	lease          Kind = "Lease"
	deployment     Kind = "Deployment"
	replicaSet     Kind = "ReplicaSet"
	podLog         Kind = "pod log"
)

const (
	// logLines and logBytes bound the end of a log that is read; lineBytes bounds each line.
	logLines  = 8
	logBytes  = 16 * 1024
	lineBytes = 300
	// logTime is how long a kubelet may take to answer with a log.
	logTime = 5 * time.Second
)

func (g *gatherer) classes(ctx context.Context) []*storagev1.StorageClass {
	var list storagev1.StorageClassList
	g.list(ctx, storageClass, "", &list)
	classes := make([]*storagev1.StorageClass, len(list.Items))
	for i := range list.Items {
		classes[i] = &list.Items[i]
	}
	return classes
}

func (g *gatherer) volumes(ctx context.Context) []corev1.PersistentVolume {
	var list corev1.PersistentVolumeList
	g.list(ctx, Volume, "", &list)
	return list.Items
}

func (g *gatherer) provisioners(ctx context.Context) []pavv1.PavProvisioner {
	var list pavv1.PavProvisionerList
	g.list(ctx, pavProvisioner, "", &list)
	return list.Items
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
	pods := g.podsOf(ctx, claim.Namespace)
	for i := range pods {
		if slices.Contains(volume.ClaimsOfPod(&pods[i]), claim.Name) {
			found = append(found, user{Pod: &pods[i]})
		}
	}
	if claim.DeletionTimestamp == nil {
		return found
	}
	var work []func()
	for i := range found {
		work = append(work, func() { found[i].Workload = g.workload(ctx, found[i].Pod) })
		if found[i].Pod.DeletionTimestamp != nil && len(work) < 2*mostNames {
			work = append(work, func() { found[i].View = g.podView(ctx, found[i].Pod, false) })
		}
	}
	together(work...)
	return found
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
	v := &volumeView{Name: vol.Name, Volume: vol}
	together(
		func() { v.Stages = g.stages(ctx, vol.Name) },
		func() {
			ref := vol.Spec.ClaimRef
			v.Claim = get(ctx, g, Claim, ref.Namespace, ref.Name, &corev1.PersistentVolumeClaim{})
			v.Last = g.lastUsers(ctx, v)
		},
	)
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
	pods := g.podsOf(ctx, ref.Namespace)
	for i := range pods {
		if pods[i].Spec.NodeName != "" && volume.UsesFormer(&pods[i], ref.Name, v.Claim) {
			last = append(last, &pods[i])
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
		for i := range claims.Items {
			if claim := &claims.Items[i]; claim.Spec.VolumeName == v.Name && claim.UID != ref.UID && claim.DeletionTimestamp == nil {
				v.Claimants = append(v.Claimants, claim)
			}
		}
	case phase != corev1.VolumeBound && phase != corev1.VolumeFailed:
		there, err := kube.Get(ctx, g.Client, client.ObjectKey{Name: ref.Namespace}, &corev1.Namespace{})
		v.NoNamespace = there == nil && err == nil
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
	if set == nil {
		return o
	}
	if owner = metav1.GetControllerOf(set); owner != nil {
		return Object{Kind(owner.Kind), pod.Namespace, owner.Name}
	}
	return o
}

// events returns the Events about an object, newest last. Events about a cluster-wide object are in
// the default namespace.
func (g *gatherer) events(ctx context.Context, about client.Object) []corev1.Event {
	namespace := about.GetNamespace()
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	var list corev1.EventList
	g.list(ctx, event, namespace, &list, client.MatchingFields{"involvedObject.uid": string(about.GetUID())})
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return lastSeen(&a).Compare(lastSeen(&b)) })
	return list.Items
}

func lastSeen(e *corev1.Event) time.Time { return LastSeen(e) }

// LastSeen returns when an Event last happened, in whichever of its fields that is recorded.
func LastSeen(e *corev1.Event) time.Time {
	at := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time} {
		if t.After(at) {
			at = t
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	return at
}

// stages reads the stages of a volume and their pods.
func (g *gatherer) stages(ctx context.Context, volumeName string) []stageView {
	var list tarnv1.PavStageList
	g.list(ctx, pavStage, "", &list, client.MatchingFields{"spec.volumeName": volumeName})
	stages := make([]stageView, len(list.Items))
	var work []func()
	for i := range list.Items {
		stages[i].Stage = &list.Items[i]
		namespace, name := stagePod(stages[i].Stage)
		if name != "" {
			work = append(work, func() { stages[i].Pod = g.stepPod(ctx, namespace, name) })
		}
	}
	together(work...)
	return stages
}

// stagePod returns the pod that a stage's status names. It is the pod of the node's expansion if
// that runs or has failed, else the pod of staging or unstaging.
func stagePod(stage *tarnv1.PavStage) (namespace, name string) {
	status := stage.Status.Pod
	if e := status.Expansion; e != nil && e.Name != "" && e.Phase != tarnv1.StageExpansionSucceeded {
		return e.Namespace, e.Name
	}
	return status.Namespace, status.Name
}

// stepPod reads a step pod, nil if there is none.
func (g *gatherer) stepPod(ctx context.Context, namespace, name string) *podView {
	pod := get(ctx, g, Pod, namespace, name, &corev1.Pod{})
	if pod == nil {
		return nil
	}
	return g.podView(ctx, pod, false)
}

// podView reads the node, Events and log of a pod. For the pod that the user asked about, it also
// reads the drivers of its node.
func (g *gatherer) podView(ctx context.Context, pod *corev1.Pod, asked bool) *podView {
	p := &podView{Pod: pod}
	work := []func(){func() { p.Events = g.events(ctx, pod) }}
	if on := pod.Spec.NodeName; on != "" {
		work = append(work, func() {
			p.Node = once(g, "node "+on, func() *corev1.Node { return get(ctx, g, node, "", on, &corev1.Node{}) })
			p.NodeGone = p.Node == nil && !g.unread(node, "", on)
		})
		if asked {
			work = append(work, func() { p.Drivers = g.drivers(ctx, on) })
		}
	}
	if container, previous, ok := logOf(pod); ok {
		work = append(work, func() { p.LogOf, p.Log = container, g.log(ctx, pod, container, previous) })
	}
	together(work...)
	return p
}

func (g *gatherer) drivers(ctx context.Context, on string) []string {
	n := get(ctx, g, csiNode, "", on, &storagev1.CSINode{})
	if n == nil {
		return nil
	}
	var names []string
	for _, d := range n.Spec.Drivers {
		names = append(names, d.Name)
	}
	return names
}

// log reads the last lines of a container.
func (g *gatherer) log(ctx context.Context, pod *corev1.Pod, container string, previous bool) []string {
	ctx, cancel := context.WithTimeout(ctx, logTime)
	defer cancel()
	text, err := g.Logs.Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: container, Previous: previous, TailLines: ptr.To[int64](logLines), LimitBytes: ptr.To[int64](logBytes),
	}).DoRaw(ctx)
	if err != nil {
		g.missed(Object{podLog, pod.Namespace, pod.Name}, "get", err)
		return nil
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		lines = append(lines, kube.Cut(printable(line), lineBytes))
	}
	return lines
}

// printable strips a line of terminal control characters.
func printable(line string) string {
	return strings.TrimRightFunc(strings.ReplaceAll(terminal.Plain(line), "\t", " "), unicode.IsSpace)
}

// notFound returns an error that the object asked for does not exist, or cannot be read. It also
// names objects with similar names.
func (g *gatherer) notFound(ctx context.Context, err error) error {
	asked := g.view.Asked
	if err != nil {
		return fmt.Errorf("cannot read %s: %s", asked, Why("get", err))
	}
	lists := map[Kind]client.ObjectList{Claim: &corev1.PersistentVolumeClaimList{}, Volume: &corev1.PersistentVolumeList{}, Pod: &corev1.PodList{}, Set: &tarnv1.PersistentVolumeSetList{}, App: &tarnv1.AppList{}}
	var here, elsewhere []string
	for _, o := range g.named(ctx, lists[asked.Kind]) {
		switch {
		case o.Namespace == asked.Namespace:
			here = append(here, o.Name)
		case o.Name == asked.Name:
			elsewhere = append(elsewhere, o.String())
		}
	}
	hint := g.noNamespace(ctx)
	if len(elsewhere) > 0 {
		hint += "; there is " + strings.Join(elsewhere[:min(len(elsewhere), mostNames)], ", ")
	} else if names := suggest.Near(asked.Name, here); len(names) > 0 {
		hint = "; did you mean " + strings.Join(names, " or ") + "?"
	}
	return fmt.Errorf("there is no %s%s", asked, hint)
}

// noNamespace words that the namespace asked for does not exist either. It is empty if the
// namespace exists or cannot be read.
func (g *gatherer) noNamespace(ctx context.Context) string {
	name := g.view.Asked.Namespace
	if name == "" {
		return ""
	}
	if there, err := kube.Get(ctx, g.Client, client.ObjectKey{Name: name}, &corev1.Namespace{}); there != nil || err != nil {
		return ""
	}
	var list corev1.NamespaceList
	hint := ", nor a namespace " + name
	if g.Client.List(ctx, &list) != nil {
		return hint
	}
	var names []string
	for _, o := range objectsOf(&list) {
		names = append(names, o.GetName())
	}
	if like := suggest.Near(name, names); len(like) > 0 {
		hint += "; did you mean namespace " + strings.Join(like, " or ") + "?"
	}
	return hint
}

// named lists the objects of the kind asked for. It lists all namespaces, or only the one asked for
// if the caller may not list all.
func (g *gatherer) named(ctx context.Context, list client.ObjectList) []Object {
	asked := g.view.Asked
	if g.Client.List(ctx, list) != nil && g.Client.List(ctx, list, client.InNamespace(asked.Namespace)) != nil {
		return nil // the names are only a help; the answer is that the object does not exist
	}
	var found []Object
	for _, o := range objectsOf(list) {
		found = append(found, Object{asked.Kind, o.GetNamespace(), o.GetName()})
	}
	return found
}
