package explain

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tarn.dev/tarn/internal/volume"
)

// ofClaim finds why a claim cannot be used, and returns its state in a word.
func (s *story) ofClaim(c *claimView) string {
	claim := c.Claim
	if claim == nil {
		s.claimMissing(c)
		return "missing"
	}
	defer s.settle()
	at := len(s.links)
	link := s.add(Link{Object: c.Object, State: string(claim.Status.Phase), Since: moment(claim.CreationTimestamp.Time), Message: wants(claim)})
	switch {
	case claim.DeletionTimestamp != nil:
		link.State, link.Since = "Terminating", moment(claim.DeletionTimestamp.Time)
		s.endingClaim(c)
		s.rank = min(s.rank, rankEnding) // no rank if nothing is known to keep it
	case claim.Status.Phase == corev1.ClaimLost:
		link.Since = nil
		if e := newest(c.Events, "ClaimLost", "ClaimMisbound"); e != nil {
			link.Since = moment(LastSeen(e))
		}
		s.lostClaim(c)
		if s.rank == rankStuck {
			s.rank = rankLost
		}
	case claim.Status.Phase == corev1.ClaimBound:
		link.Since = nil // no object records since when
		s.boundClaim(c)
	default:
		s.pendingClaim(c)
	}
	return s.links[at].State
}

// claimMissing reports a claim that a pod names and that does not exist.
func (s *story) claimMissing(c *claimView) {
	link := s.add(Link{Object: c.Object, State: "missing"})
	if s.view.unknown(Claim, c.Object.Namespace, c.Object.Name) {
		link.State = "unknown"
		return
	}
	link.Next = "when the claim is created"
	s.blame("it does not exist")
	s.rank = rankAbsent
}

// wants words what a claim asks for.
func wants(claim *corev1.PersistentVolumeClaim) string {
	class := volume.ClassOf(claim)
	switch {
	case class != "":
		class = "class " + class
	case volume.HasClass(claim):
		class = "explicitly no class"
	default:
		class = "no class"
	}
	size := volume.Request(claim)
	return fmt.Sprintf("asks for %s %s %s, %s", size.String(), volume.AccessOf(claim.Spec.AccessModes), volume.ModeOf(claim), class)
}

// pendingClaim finds why a claim has no volume.
func (s *story) pendingClaim(c *claimView) {
	claim := c.Claim
	class := volume.ClassOf(claim)
	switch {
	case claim.Spec.VolumeName != "":
		s.preboundClaim(c)
	case s.awaitsBinder(c):
	case c.Volume.Record != nil:
		s.beingMade(c.Volume, claim)
	case !volume.HasClass(claim):
		s.classless(c)
	case class == "":
		s.blame("it requests a volume without a class, and no free one fits")
		s.nearest(c, "when a free PersistentVolume without a class fits")
	case c.Class == nil:
		s.classMissing(c, class)
	case waitsForPod(c.Class) && claim.Annotations[volume.AnnSelectedNode] == "":
		s.waitsForPod(c)
	case c.Class.Provisioner == noProvisioner:
		s.add(Link{Object: Object{Kind: storageClass, Name: class}, State: "makes no volumes", Message: "its provisioner is " + noProvisioner})
		s.blame("its class %s makes no volumes, and no free one fits", class)
		s.nearest(c, "when a free PersistentVolume of class "+class+" fits")
	default:
		s.provisioned(c)
	}
	if s.cause == "" && s.fine == "" { // even if little can be read, the Events may tell
		s.toldByEvent(c.Events)
	}
}

// binderWaits is the reason of a binder's Event which says that it waits for a provisioner.
const binderWaits = "ExternalProvisioning"

// binderDelay is how much later than a provisioner a binder may post its Event. Tarn's binder
// delays it while it handles many claims (restTime and mostDelay in internal/controller/bind).
const binderDelay = 62 * time.Second

// toldByEvent uses the newest Event about an object. A binder may repeat that it waits for a
// provisioner. So any other Event since the binder began to wait is nearer to the cause. An Event
// of the provisioner also counts if it is a little older.
func (s *story) toldByEvent(events []corev1.Event) {
	e := newest(events)
	if e == nil {
		return
	}
	if e.Reason == binderWaits {
		began := e.CreationTimestamp.Time
		nearer := slices.DeleteFunc(slices.Clone(events), func(other corev1.Event) bool {
			said := LastSeen(&other)
			return other.Reason == binderWaits || !said.After(began.Add(-binderDelay)) || ofBinder(other) && !said.After(began)
		})
		if other := newest(nearer); other != nil {
			e = other
		}
	}
	s.add(Link{Object: Object{Kind: event, Namespace: e.Namespace, Name: e.Name}, State: e.Reason, Since: moment(LastSeen(e)), Reason: e.Reason, Message: e.Message})
	s.blame("%s", e.Message)
}

// preboundClaim is about a claim that names its volume but is not bound to it.
func (s *story) preboundClaim(c *claimView) {
	claim, vol := c.Claim, c.Volume.Volume
	o := Object{Volume, "", claim.Spec.VolumeName}
	if vol == nil {
		if s.view.unknown(Volume, "", o.Name) {
			return
		}
		s.add(Link{Object: o, State: "missing", Next: "when a PersistentVolume of that name is created"})
		s.blame("it names volume %s, which does not exist", o.Name)
		return
	}
	link := s.add(Link{Object: o, State: string(vol.Status.Phase), Since: phaseSince(vol)})
	switch volume.LinkOf(vol, claim) {
	case volume.LinkOther:
		s.namesAnothers(c, link)
	case volume.LinkNone:
		if m := volume.Named(vol, claim); m != volume.Fits {
			link.Message, link.Reason = volume.Explain(m, vol, claim), string(m)
			link.Next = "when the volume fits the claim"
			s.blame("it names a volume that does not fit: %s", link.Message)
			return
		}
		s.binderSilent(c, "volume "+o.Name+" fits")
	default:
		s.binderSilent(c, "volume "+o.Name+" is reserved for it")
	}
}

// namesAnothers is about a claim that names another claim's volume, or a volume that should be its
// own but does not name it.
func (s *story) namesAnothers(c *claimView, link *Link) {
	claim, vol := c.Claim, c.Volume.Volume
	ref := vol.Spec.ClaimRef
	if ref.Namespace == "" {
		link.Message, link.Next = fmt.Sprintf("it names claim %s without a namespace", ref.Name), "when spec.claimRef.namespace of the volume is set, or its spec.claimRef is removed"
		s.blame("it names volume %s, whose spec.claimRef.namespace is missing", vol.Name)
		return
	}
	link.Message = fmt.Sprintf("it belongs to claim %s/%s, uid %s", ref.Namespace, ref.Name, ref.UID)
	if ref.UID == "" {
		link.Message = fmt.Sprintf("it is reserved for claim %s/%s", ref.Namespace, ref.Name)
	}
	link.Next = "when the volume is freed; the binder tries no other volume, as the claim names this one"
	s.blame("it names volume %s, which belongs to another claim", vol.Name)
	if !s.gone(c.Volume) {
		return
	}
	switch other := c.Volume.Claim; {
	case other == nil:
		link.Message += ", which is gone"
	case other.UID == claim.UID:
		link.Message += fmt.Sprintf(", and this claim has another UID (%s)", claim.UID)
	default:
		link.Message += ", and " + another(other)
	}
	if !link.wouldFit(volume.Named(vol, claim), vol, claim) {
		return
	}
	s.handOver(link, c, c.Volume, c.Volume.Class)
}

// awaitsBinder says whether a volume for the claim exists already, so that only the binder is
// missing.
func (s *story) awaitsBinder(c *claimView) bool {
	if vol := c.Volume.Volume; vol != nil && volume.BoundTo(vol, c.Claim) {
		link := s.add(Link{Object: Object{Volume, "", vol.Name}, State: string(vol.Status.Phase), Since: phaseSince(vol), Message: "it was made for the claim"})
		if m := volume.Reserved(vol, c.Claim); m != volume.Fits {
			s.madeInVain(c, link, m)
			return true
		}
		s.binderSilent(c, "volume "+vol.Name+" is reserved for it")
		return true
	}
	selector, err := volume.Selector(c.Claim)
	if err != nil {
		link := s.links[len(s.links)-1]
		link.Message, link.Next = err.Error(), "when the claim is created again with a valid selector"
		s.blame("its selector is not valid")
		return true
	}
	waits := waitsForPod(c.Class)
	for i := range c.Candidates {
		vol := &c.Candidates[i]
		if volume.Reserved(vol, c.Claim) == volume.Fits || !waits && volume.Match(vol, c.Claim, selector) == volume.Fits {
			s.add(Link{Object: Object{Volume, "", vol.Name}, State: string(vol.Status.Phase), Since: phaseSince(vol), Message: "it fits the claim"})
			s.binderSilent(c, "volume "+vol.Name+" fits", vol)
			return true
		}
	}
	return false
}

// madeInVain is about a claim that can never have the volume that was created for it. No
// provisioner creates a second one.
func (s *story) madeInVain(c *claimView, link *Link, m volume.Misfit) {
	vol := c.Volume.Volume
	link.Reason, link.Message = string(m), link.Message+", which it does not fit: "+volume.Explain(m, vol, c.Claim)
	link.Next = "when its provisioner makes what the claim requests, and the claim is created again: it then gets another volume"
	s.blame("the volume that was made for it does not fit it: %s", volume.Explain(m, vol, c.Claim))
	if m == volume.MisfitDeleting {
		link.Next = "when the claim is created again: it then gets another volume"
		s.anew(c, link, "merge", "{}", "as it is")
	}
}

// binderTime is how long a running binder may take: Kubernetes' own retries every 15 seconds.
const binderTime = 20 * time.Second

// binderSilent blames the binder, which has all that it needs but does not bind. It first allows
// the binder time since the latest change of the claim, its volume, its class and the objects in
// by.
func (s *story) binderSilent(c *claimView, because string, by ...metav1.Object) {
	if c.Volume.Volume != nil {
		by = append(by, c.Volume.Volume)
	}
	if c.Class != nil {
		by = append(by, c.Class)
	}
	since := latest(append(by, c.Claim)...)
	if s.view.Now.Sub(since) < binderTime {
		s.awaits("it is being bound: %s", because)
		s.links[len(s.links)-1].Next = "within moments"
		return
	}
	binder := Object{Kind: "binder", Name: "persistentvolume-binder"}
	if e := newestRefusal(c.Events); e != nil && !LastSeen(e).Before(since) {
		s.add(Link{Object: binder, State: "refused", Since: moment(LastSeen(e)), Reason: e.Reason, Message: e.Message,
			Next: "when the API server accepts the write: usually a webhook or an admission policy rejects it; the binder retries with backoff"})
		s.blame("%s, and %s", because, e.Message)
		return
	}
	s.blame("%s, but no binder responds", because)
	s.onController = true
	link := s.add(Link{Object: binder, State: "silent", Message: "either kube-controller-manager runs with its " +
		"persistentvolume-binder-controller, or tarn controller with bind among its --controllers; neither has responded", Next: "when a binder runs", Command: s.revives("bind")})
	if e := newest(c.Events); e != nil {
		link.Message += "; the last Event says: " + e.Message
	}
}

// waitsForPod is about a claim that gets its volume when a pod is scheduled.
func (s *story) waitsForPod(c *claimView) {
	s.add(Link{Object: Object{Kind: storageClass, Name: c.Class.Name}, State: "WaitForFirstConsumer", Message: "it makes or selects a volume after the scheduler has placed a pod that uses the claim"})
	var waiting []*corev1.Pod
	for _, u := range c.Users {
		if !hasEnded(u.Pod) && u.Pod.DeletionTimestamp == nil {
			waiting = append(waiting, u.Pod)
		}
	}
	if len(waiting) == 0 {
		if s.view.unknown(Pod, c.Object.Namespace, "") {
			s.blame("its class waits for a pod that uses it")
			return
		}
		s.blame("its class waits for a pod that uses it, and there is none")
		s.links[len(s.links)-1].Next = "when a pod that uses the claim is created and scheduled"
		if c.Class.Provisioner == noProvisioner {
			s.nearest(c, s.links[len(s.links)-1].Next)
		}
		return
	}
	for _, pod := range waiting {
		if asked := s.view.Asked; asked == (Object{Pod, pod.Namespace, pod.Name}) && pod.Spec.NodeName == "" {
			if look(pod).stuck() && s.noRoom(c) {
				return
			}
			s.fine = "a volume that is made when the pod is placed" // what blocks the pod is reported with the pod
			s.nearestFor(c, look(pod))
			return
		}
	}
	pod := slices.MinFunc(waiting, func(a, b *corev1.Pod) int { return cmp.Compare(unplaced(a), unplaced(b)) })
	o := Object{Pod, pod.Namespace, pod.Name}
	t := look(pod)
	link := s.add(Link{Object: o, State: t.State, Since: moment(t.Since), Node: pod.Spec.NodeName, Reason: t.Reason, Message: t.Message})
	switch {
	case pod.Spec.NodeName != "":
		link.Message = "the pod sets spec.nodeName, so the scheduler never sees it and selects no node for the claim; create the pod again with a nodeSelector instead"
		if !volume.Started(pod) && len(pod.OwnerReferences) == 0 { // else it runs without this volume, or its owner creates the same pod again
			link.Command = kubectl(pod.Namespace, "delete", "pod", pod.Name)
		}
		s.blame("%s sets spec.nodeName, so no scheduler selects a node for the claim", o)
	case t.Reason == corev1.PodReasonSchedulingGated:
		link.Next = "when its scheduling gates are removed"
		s.blame("%s, which uses it, is held back by scheduling gates", o)
	case t.stuck():
		link.Next = "when the scheduler finds a node; it retries after each change of a node, a volume or a claim"
		s.blame("%s, which uses it, is not scheduled: %s", o, t.Message)
		s.noRoom(c)
	default:
		link.Next = "when the scheduler has placed the pod"
		s.awaits("%s, which uses it, is not scheduled yet", o)
	}
	s.nearestFor(c, t)
}

// noRoom says whether no node has room for the claim, and then blames that. It also reports what is
// free if that is so on some nodes.
func (s *story) noRoom(c *claimView) bool {
	asks := volume.Request(c.Claim)
	enough := func(f freeOn) bool { return f.Bytes >= volume.Bytes(asks) }
	if len(c.Free) == 0 || !slices.ContainsFunc(c.Free, func(f freeOn) bool { return !enough(f) }) {
		return false
	}
	var nodes []string
	for _, f := range firstFew(c.Free) {
		much := rounded(f.Bytes)
		if f.Bytes == math.MaxInt64 {
			much = "not measured"
		}
		nodes = append(nodes, much+" on node "+f.Node)
	}
	if more := len(c.Free) - len(nodes); more > 0 {
		nodes = append(nodes, fmt.Sprintf("less on %d more", more))
	}
	link := s.add(Link{Object: Object{Kind: storageClass, Name: c.Class.Name}, State: "measured", Message: "free for its volumes: " + strings.Join(nodes, ", ")})
	if slices.ContainsFunc(c.Free, enough) {
		return false
	}
	link.Next = "when a node has room, which is measured once a minute, or when the claim is created again with a smaller request"
	s.blame("no node has the %s free that it asks for: class %s has %s", asks.String(), c.Class.Name, nodes[0])
	return true
}

// rounded is a size to read, rounded down to a tenth of its unit.
func rounded(bytes int64) string {
	units := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
	unit, of := 0, int64(1)
	for unit < len(units)-1 && bytes/of >= 1024 {
		unit, of = unit+1, of*1024
	}
	if tenth := bytes % of / (of/10 + 1); unit > 0 && tenth > 0 {
		return fmt.Sprintf("%d.%d%s", bytes/of, tenth, units[unit])
	}
	return fmt.Sprintf("%d%s", bytes/of, units[unit])
}

// unplaced says how far a pod is from being scheduled. The claim needs only one of its pods, so the
// nearest is reported.
func unplaced(pod *corev1.Pod) int {
	switch t := look(pod); {
	case pod.Spec.NodeName != "": // it never will be
		return 3
	case t.Reason == corev1.PodReasonSchedulingGated:
		return 2
	case t.stuck():
		return 1
	}
	return 0
}
