package bind

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"tarn.dev/tarn/internal/volume"
)

// Events of binding, on a PersistentVolumeClaim or PersistentVolume. The reasons are those of
// Kubernetes' own binder.
const (
	// reasonFailedBinding: no volume fits the claim and no class can create one, or the API server
	// rejects the binding. Set a class, or create a volume.
	reasonFailedBinding = "FailedBinding"
	// reasonMismatch: the claim and the volume name each other but do not fit. Change the field
	// that the message names.
	reasonMismatch = "VolumeMismatch"
	// reasonFirstConsumer: the class waits for the first consumer. Create a pod that uses the
	// claim.
	reasonFirstConsumer = "WaitForFirstConsumer"
	// reasonPodScheduled: the claim waits until its pod is scheduled. If that takes long, see the
	// Events of the pod.
	reasonPodScheduled = "WaitForPodScheduled"
	// reasonProvisioning: the binder waits for the provisioner of the class to create a volume.
	reasonProvisioning = "ExternalProvisioning"
	// reasonProvisionFailed: the class does not exist, or its provisioner creates no volumes.
	// Create the class, or use another one.
	reasonProvisionFailed = "ProvisioningFailed"
	// reasonLost: the volume of the claim does not exist any more. The message says how to get the
	// claim back.
	reasonLost = "ClaimLost"
	// reasonMisbound: the volume of the claim belongs to another claim. The message says how to
	// repair spec.claimRef.
	reasonMisbound = "ClaimMisbound"
)

// Plan is what to do, in this order.
type Plan struct {
	Actions []Action
	// Match says how the volume was found, if the plan joins a claim and a volume.
	Match Match
	// Again says that the writes change what there is to decide, so the caller decides once more.
	Again bool
	// NeedsLiveRead says that the API server must be asked before anything is decided. For a volume: whether
	// the claim it points at exists. For a claim: whether its volume is as in the cache.
	NeedsLiveRead bool
	// RejectedReason is the reason of the Event posted when the API server rejects a write; empty means
	// FailedBinding.
	RejectedReason string
	// Problem is why the plan cannot do what it should. The binder retries with backoff.
	Problem error
}

// Action is one write. Each may be repeated without harm.
type Action interface{ action() }

type (
	// WriteVolume writes a volume without its status. Like the other writes, it fails if the object
	// has changed since it was read.
	WriteVolume struct{ Volume *corev1.PersistentVolume }
	// WriteVolumeStatus writes a volume's status.
	WriteVolumeStatus struct{ Volume *corev1.PersistentVolume }
	// WriteClaim writes a claim without its status.
	WriteClaim struct{ Claim *corev1.PersistentVolumeClaim }
	// WriteClaimStatus writes a claim's status and, with it, annotations.
	WriteClaimStatus struct {
		Claim *corev1.PersistentVolumeClaim
		Notes map[string]string
	}
	// EnqueueClaim enqueues a claim, whose reconcile must act next.
	EnqueueClaim struct{ Key types.NamespacedName }
	// Post posts an Event about a claim, or about a volume.
	Post struct {
		On                 Subject
		Type, Reason, Note string
	}
)

func (WriteVolume) action()       {}
func (WriteVolumeStatus) action() {}
func (WriteClaim) action()        {}
func (WriteClaimStatus) action()  {}
func (EnqueueClaim) action()      {}
func (Post) action()              {}

// Subject says what an Event is about.
type Subject string

// The subjects of Events.
const (
	OnClaim  Subject = "claim"
	OnVolume Subject = "volume"
)

// Match is how a claim's volume was found.
type Match string

// The values of Match, which are metric labels too.
const (
	MatchNone     Match = ""
	MatchFree     Match = "free"     // it was free and fits
	MatchReserved Match = "reserved" // it pointed at the claim
	MatchNamed    Match = "named"    // the claim named it
	MatchMade     Match = "made"     // it was created for the claim
	MatchRepaired Match = "repaired" // the two were joined before
)

// idle says whether there is nothing to do.
func (p *Plan) idle() bool { return len(p.Actions) == 0 && p.Problem == nil && !p.NeedsLiveRead }

func (p *Plan) add(a Action) { p.Actions = append(p.Actions, a) }

func (p *Plan) post(on Subject, kind, reason, format string, args ...any) {
	p.add(Post{On: on, Type: kind, Reason: reason, Note: fmt.Sprintf(format, args...)})
}

// planClaim decides about one claim.
func planClaim(v *ClaimView) Plan {
	if v.needsLiveRead() {
		return Plan{NeedsLiveRead: true}
	}
	d := &claimDraft{object: v.Claim}
	d.maintain()
	p := Plan{Problem: v.Problem}
	switch volume.StateOfClaim(v.Claim) {
	case volume.ClaimCompleted:
		planCompleted(&p, d, v)
	case volume.ClaimPrebound:
		planPrebound(&p, d, v)
	default:
		planUnbound(&p, d, v)
	}
	return p
}

// planCompleted keeps a claim bound whose binding was completed, or sets it to Lost.
func planCompleted(p *Plan, d *claimDraft, v *ClaimView) {
	name := v.Claim.Spec.VolumeName
	link := volume.LinkOf(v.Named, v.Claim)
	switch {
	case name == "":
		planLost(p, d, reasonLost, "the claim has annotation pv.kubernetes.io/bind-completed, but spec.volumeName is empty; set it to the volume with the data, or create the claim again without the annotation to get a new volume")
	case link == volume.LinkMissing:
		planLost(p, d, reasonLost, "volume %q of the claim is gone; create a volume of that name to recover the claim", name)
	case link == volume.LinkNone, link == volume.LinkHeld:
		planBind(p, d, v.Named, MatchRepaired)
	default:
		planLost(p, d, reasonMisbound, "volume %q of the claim references another claim, or no claim by UID; to recover the claim, set the volume's whole spec.claimRef: namespace %s, name %s, uid %s", name, v.Claim.Namespace, v.Claim.Name, v.Claim.UID)
	}
}

// planPrebound binds a claim to the volume that its spec already names.
func planPrebound(p *Plan, d *claimDraft, v *ClaimView) {
	name := v.Claim.Spec.VolumeName
	link := volume.LinkOf(v.Named, v.Claim)
	if v.Claim.DeletionTimestamp != nil && link != volume.LinkHeld {
		return // a claim being deleted is bound only if its binding had begun
	}
	switch link {
	case volume.LinkMissing:
		planPending(p, d, nil)
	case volume.LinkNone:
		if misfit := volume.Named(v.Named, v.Claim); misfit != volume.Fits {
			p.post(OnClaim, corev1.EventTypeWarning, reasonMismatch, "cannot bind to the volume that spec.volumeName names: %s", volume.Explain(misfit, v.Named, v.Claim))
			planPending(p, d, nil)
			return
		}
		planBind(p, d, v.Named, MatchNamed)
	case volume.LinkReserved, volume.LinkHeld:
		planBind(p, d, v.Named, MatchNamed)
	default:
		p.post(OnClaim, corev1.EventTypeWarning, reasonFailedBinding, "spec.volumeName names a volume that cannot be bound: %s", volume.Explain(volume.MisfitTaken, v.Named, v.Claim))
		if _, ours := v.Claim.Annotations[volume.AnnBoundByController]; ours {
			p.Problem = fmt.Errorf("claim %s/%s was given volume %q, which belongs to another claim; release the volume or create the claim again", v.Claim.Namespace, v.Claim.Name, name)
			return
		}
		planPending(p, d, nil)
	}
}

// planUnbound binds a claim to the volume chosen for it, or has one provisioned.
func planUnbound(p *Plan, d *claimDraft, v *ClaimView) {
	if v.Chosen != nil {
		p.Problem = nil
		planBind(p, d, v.Chosen, matchOf(v))
		return
	}
	if v.Claim.DeletionTimestamp != nil || p.Problem != nil {
		return
	}
	if !volume.HasClass(v.Claim) && v.Default != nil {
		d.edit().Spec.StorageClassName = ptr.To(v.Default.Name)
		p.add(WriteClaim{d.object})
		p.Again = true
		return
	}
	waits, err := volume.WaitsForConsumer(v.Class)
	_, placed := v.Claim.Annotations[volume.AnnSelectedNode]
	switch class := volume.ClassOf(v.Claim); {
	case err != nil:
		p.Problem = err
	case waits && !placed && len(v.Pods) > 0:
		p.post(OnClaim, corev1.EventTypeNormal, reasonPodScheduled, "waiting for pod %s to be scheduled", strings.Join(v.Pods, ", "))
		planPending(p, d, nil)
	case waits && !placed:
		p.post(OnClaim, corev1.EventTypeNormal, reasonFirstConsumer, "waiting for a pod that uses the claim, as StorageClass %q requires", class)
		planPending(p, d, nil)
	case class != "":
		planProvision(p, d, v, class)
	default:
		p.post(OnClaim, corev1.EventTypeNormal, reasonFailedBinding, "no volume fits the claim, and the claim names no StorageClass that could create one")
		planPending(p, d, nil)
	}
}

// planProvision gives the claim to the provisioner of its class.
func planProvision(p *Plan, d *claimDraft, v *ClaimView, class string) {
	if v.NoProvisioning {
		return
	}
	if v.Class == nil {
		p.post(OnClaim, corev1.EventTypeWarning, reasonProvisionFailed, "no volume fits the claim, and StorageClass %q, which could create one, does not exist", class)
		planPending(p, d, nil)
		return
	}
	driver, ok := volume.DriverFor(v.Class.Provisioner)
	if !ok {
		p.post(OnClaim, corev1.EventTypeWarning, reasonProvisionFailed, "no volume fits the claim, and provisioner %q of StorageClass %q creates none", v.Class.Provisioner, class)
		planPending(p, d, nil)
		return
	}
	p.RejectedReason = reasonProvisionFailed
	planPending(p, d, callNotes(d.object, v.Class.Provisioner, driver))
	p.post(OnClaim, corev1.EventTypeNormal, reasonProvisioning, "waiting for provisioner %q or an administrator to create a volume", driver)
}

// planBind makes a claim and a volume point at each other. It writes the volume first: its version is
// the lock by which one claim gets it. The claim follows, as it can name a volume only once. Fields
// that are already right are not written again.
//
// The write that sets Bound also sets annotation bind-completed. The scheduler relies on the
// annotation, the kubelet on the phase. If a kubelet reads the claim between two separate writes,
// it makes the pod wait for ten seconds.
func planBind(p *Plan, d *claimDraft, v *corev1.PersistentVolume, how Match) {
	if volume.Capacity(v) == nil {
		p.Problem = fmt.Errorf("volume %q has no spec.capacity.storage and cannot be bound to a claim; create it again with a capacity", v.Name)
		return
	}
	claim := d.object
	vol := &volumeDraft{object: v}
	vol.link(claim)
	if vol.changed {
		p.add(WriteVolume{vol.object})
	}
	if vol.object.Status.Phase != corev1.VolumeBound {
		p.add(WriteVolumeStatus{inPhase(vol.object, corev1.VolumeBound, "")})
	}
	d.link(vol.object)
	status, notes := boundStatus(d.object, vol.object), completedNotes(d.object)
	if status == nil { // also where something drops annotations that come with a status
		d.note(notes)
		notes = nil
	}
	writeClaim(p, d, status, notes)
	if len(p.Actions) > 0 {
		p.Match = how
	}
}

// writeClaim adds the writes of a claim and of its status that are needed; a nil status is
// unchanged. The notes are annotations for the claim. They go with the status, unless only the
// claim is written. A status write costs the API server less, as Tarn's admission policies do not
// check it.
func writeClaim(p *Plan, d *claimDraft, status *corev1.PersistentVolumeClaim, notes map[string]string) {
	if d.changed && status == nil {
		d.note(notes)
		notes = nil
	}
	if d.changed {
		p.add(WriteClaim{d.object})
	}
	if status != nil || len(notes) > 0 {
		p.add(WriteClaimStatus{Claim: cmp.Or(status, d.object), Notes: notes})
	}
}

// planPending sets the claim to Pending.
func planPending(p *Plan, d *claimDraft, notes map[string]string) {
	writeClaim(p, d, emptyStatus(d.object, corev1.ClaimPending), notes)
}

// planLost sets the claim to Lost, and posts an Event the first time.
func planLost(p *Plan, d *claimDraft, reason, format string, args ...any) {
	lost := d.object.Status.Phase == corev1.ClaimLost
	writeClaim(p, d, emptyStatus(d.object, corev1.ClaimLost), nil)
	if !lost {
		p.post(OnClaim, corev1.EventTypeWarning, reason, format, args...)
	}
}

func matchOf(v *ClaimView) Match {
	switch _, made := v.Chosen.Annotations[volume.AnnProvisionedBy]; {
	case v.Chosen.Spec.ClaimRef == nil:
		return MatchFree
	case made:
		return MatchMade
	}
	return MatchReserved
}
