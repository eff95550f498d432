package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// boundClaim says how a bound claim got its volume, and what is wrong with the volume.
func (s *story) boundClaim(c *claimView) {
	vol := c.Volume.Volume
	o := Object{Volume, "", c.Claim.Spec.VolumeName}
	if vol == nil {
		if !s.view.unknown(Volume, "", o.Name) {
			s.add(Link{Object: o, State: "missing", Next: "when the binder reconciles it; the claim is then Lost"})
			s.blame("its volume %s no longer exists", o.Name)
			s.rank = rankLost
			return
		}
		s.fine = "volume " + o.Name
		return
	}
	link := s.add(Link{Object: o, State: string(vol.Status.Phase), Since: phaseSince(vol), Message: path(c.Volume)})
	grows := s.part("")
	grows.resize(c)
	parts := []*story{grows}
	if vol.DeletionTimestamp != nil {
		link.State, link.Since = "Terminating", moment(vol.DeletionTimestamp.Time)
		parts = append(parts, s.doomed(c.Volume))
	}
	size := c.Claim.Status.Capacity[corev1.ResourceStorage]
	s.fine = fmt.Sprintf("volume %s, %s, %s", o.Name, size.String(), path(c.Volume))
	parts = append(parts, s.stages(c.Volume, c.Users)...)
	var users []string
	for _, u := range c.Users {
		if !hasEnded(u.Pod) && s.view.Asked.Kind != Pod {
			users = append(users, u.Pod.Name)
		}
	}
	if len(users) > 0 {
		s.fine += "; used by pod " + join(users)
	}
	s.weigh(parts...) // the volume must exist before it can grow
	s.autoGrow(c)
}

// autoGrow says why a claim with annotation tarn.dev/auto-grow does not grow, if the controller's
// last Event about that is a complaint. Nothing waits for it, so it is not a cause.
func (s *story) autoGrow(c *claimView) {
	last := newest(slices.DeleteFunc(slices.Clone(c.Events), func(e corev1.Event) bool { return !strings.HasPrefix(e.Reason, "AutoGrow") || !ofBinder(e) }))
	if last == nil || last.Type != corev1.EventTypeWarning {
		return
	}
	s.add(Link{Object: c.Object, State: "does not grow by itself", Since: moment(LastSeen(last)), Reason: last.Reason, Message: last.Message})
	s.fine += "; it does not grow by itself: " + last.Message
}

// doomed reports a claim's volume that is being deleted, and what keeps it. The claim's pods are
// not affected, so it is not the cause of anything.
func (s *story) doomed(v *volumeView) *story {
	part := s.part("")
	part.endingVolume(v)
	for _, l := range part.links { // the command would delete it at once, under its consumer
		l.Command = ""
	}
	part.cause, part.rank = fmt.Sprintf("its volume %s is being deleted, and still exists only because %s", v.Name, part.cause), rankDoomed
	return part
}

// path says how a volume was created and who stages it.
func path(v *volumeView) string {
	class := "without class"
	if name := volume.ClassOfVolume(v.Volume); name != "" {
		class = "class " + name
	}
	switch {
	case v.Provisioner != nil && v.Record == nil:
		return class + ", written by hand, staged by PavProvisioner " + v.Provisioner.Name
	case v.Record != nil:
		over := ""
		for _, made := range v.Record.Status.Claims {
			over += fmt.Sprintf(", over claim %s/%s", made.Namespace, made.Name)
		}
		return class + ", PavProvisioner " + v.Record.Spec.Provisioner.Name + over
	case v.Volume.Annotations[volume.AnnProvisionedBy] != "":
		return class + ", made by " + v.Volume.Annotations[volume.AnnProvisionedBy]
	case v.Volume.Spec.CSI != nil:
		return class + ", written by hand, CSI driver " + v.Volume.Spec.CSI.Driver
	}
	return class + ", written by hand"
}

// resize finds how far the expansion of a claim has come, if the claim asks for one.
func (s *story) resize(c *claimView) {
	wanted, has := volume.Request(c.Claim), c.Claim.Status.Capacity[corev1.ResourceStorage]
	status := c.Claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	if wanted.Cmp(has) <= 0 && status == "" {
		return
	}
	link := s.add(Link{Object: c.Object, State: cmp.Or(string(status), "resize not started"), Message: fmt.Sprintf("it has %s and asks for %s", has.String(), wanted.String())})
	what := fmt.Sprintf("it is to be expanded from %s to %s", has.String(), wanted.String())
	for _, condition := range c.Claim.Status.Conditions {
		if strings.Contains(string(condition.Type), "Resiz") && condition.Message != "" {
			link.Since, link.Reason = moment(condition.LastTransitionTime.Time), cmp.Or(condition.Reason, string(condition.Type))
			link.Message += "; " + condition.Message
			what += ": " + condition.Message
		}
	}
	s.blame("%s", what)
	defer func() { s.rank = rankGrowing }()
	record, maker := c.Volume.Record, c.Volume.Provisioner
	switch status {
	case corev1.PersistentVolumeClaimControllerResizeInfeasible, corev1.PersistentVolumeClaimNodeResizeInfeasible:
		link.Next = fmt.Sprintf("when you remove what rejects it, or request another size above %s in the claim", has.String())
		switch limit, beyond := volume.BeyondLimit(c.Claim); {
		case record != nil && beyond && link.Reason == steppod.ReasonRefused && limit.Cmp(has) <= 0: // it grows to no size
			link.Next = fmt.Sprintf("never: the claim's own limit of %s allows no larger volume and cannot be changed; create a larger claim and copy the data", limit.String())
			return
		case record != nil && beyond && link.Reason == steppod.ReasonRefused:
			link.Next = fmt.Sprintf("when the claim requests more than %s and at most its own limit of %s", has.String(), limit.String())
			link.Command = kubectl(c.Object.Namespace, "patch", "pvc", c.Object.Name, "-p", fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, limit.String()))
			return
		case record != nil:
			link.Command = kubectl("", "edit", "pavprovisioner", record.Spec.Provisioner.Name)
		case maker != nil && status == corev1.PersistentVolumeClaimControllerResizeInfeasible:
			link.Next = byHand
		case maker != nil: // expanded by hand, but not on the node
			link.Command = kubectl("", "edit", "pavprovisioner", maker.Name)
		}
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		s.nodeResize(c, link)
		return
	case "":
		s.resizeSilent(c, link)
		return
	}
	if record != nil && record.Status.Expansion != nil {
		s.expansion(c.Volume)
	} else if link.Next == "" {
		link.Next = "when the driver's resizer retries; only its log shows when"
	}
}

// byHand says when a volume grows that a PavProvisioner stages but did not create.
const byHand = "never by itself: Tarn did not make it; expand the storage by hand, then set its size in the volume"

// expansion reports the progress and the pod of a volume's expansion.
func (s *story) expansion(v *volumeView) {
	e := v.Record.Status.Expansion
	link := s.add(Link{Object: Object{Kind: pavVolume, Name: v.Record.Name}, State: "growing", Message: fmt.Sprintf("to %s, attempt %d", volume.Size(e.TargetCapacity), e.Attempts)})
	if e.LastError != nil {
		link.State = "expansion has failed"
		link.failedWith(e.LastError)
		s.blame("it cannot be expanded, attempt %d: %s", e.Failures, e.LastError.Message)
		link.Command = kubectl("", "edit", "pavprovisioner", v.Record.Spec.Provisioner.Name)
	}
	if e.NextAttemptTime != nil {
		link.Next = "retried " + when(e.NextAttemptTime, s.view.Now) + "; at once if the claim requests another size"
	}
	s.stepPod(v)
	if e.NextAttemptTime != nil {
		s.late(e.NextAttemptTime.Time)
	}
}

// nodeResize is about a volume whose storage has grown, but not yet its file system on the node.
func (s *story) nodeResize(c *claimView, link *Link) {
	link.Next = "when the kubelet of a node that uses the volume next syncs the pod, within about a minute"
	if !slices.ContainsFunc(c.Users, func(u user) bool { return u.Pod.Spec.NodeName != "" && !hasEnded(u.Pod) }) {
		link.Next = "when a pod that uses the claim is started"
		s.blame("its volume has been expanded; its file system is expanded with the next pod that uses it")
	}
	driver := ""
	if csi := c.Volume.Volume.Spec.CSI; csi != nil {
		driver = csi.Driver
	}
	for i := range c.Volume.Stages {
		g := &c.Volume.Stages[i]
		e, on := g.Stage.Status.Pod.Expansion, g.Stage.Spec.NodeName
		if e == nil || e.Phase == tarnv1.StageExpansionSucceeded {
			continue
		}
		l := s.add(Link{Object: Object{Kind: pavStage, Name: g.Stage.Name}, State: "expanding: " + string(e.Phase), Node: on, Message: e.Message})
		if e.Phase == tarnv1.StageExpansionFailed {
			l.Next = "when the kubelet retries, with backoff of at most two minutes"
			l.Command = kubectl("", "edit", "pavprovisioner", driver)
			s.blame("its volume has been expanded, but its file system cannot be on node %s: %s", on, e.Message)
		}
		runs := e.Phase == tarnv1.StageExpansionRunning
		switch before := s.cause; {
		case g.Pod == nil && runs:
			s.missingPod(Object{Pod, e.Namespace, e.Name}, on, "", true, writtenAt(g.Stage))
		case g.Pod != nil && g.Pod.Pod.Name == e.Name:
			if s.ourPod(g.Pod, tarnv1.StepNodeExpansion, driver, steppod.Observe(g.Pod.Pod, g.Stage.UID, s.view.Now)); s.cause != before {
				s.cause = "its volume has been expanded, and its file system is to follow on node " + on + ": " + s.cause
			}
			if runs {
				s.lateAfter(g.Pod.Pod, g.Stage.UID)
			}
		}
	}
}

// resizeSilent is about an expansion that no controller has begun.
func (s *story) resizeSilent(c *claimView, link *Link) {
	if e := newest(c.Events, "VolumeResizeFailed", "ExternalExpanding"); e != nil {
		link.Reason, link.Message = e.Reason, link.Message+"; "+e.Message
	}
	wanted := volume.Request(c.Claim)
	grown := c.Volume.Volume != nil && wanted.Cmp(c.Volume.Volume.Spec.Capacity[corev1.ResourceStorage]) <= 0
	if c.Volume.Provisioner != nil && c.Volume.Record == nil && !grown {
		link.Next = byHand
		return
	}
	link.Next = "when its driver's resizer begins"
	if c.Volume.Record != nil || c.Volume.Provisioner != nil {
		link.Next = "when tarn controller begins"
		s.late(writtenAt(c.Claim))
	}
}

// lostClaim says why a claim is Lost, and how to restore it.
func (s *story) lostClaim(c *claimView) {
	vol, name := c.Volume.Volume, c.Claim.Spec.VolumeName
	o := Object{Volume, "", name}
	switch {
	case name == "":
		s.giveUp(c, s.links[len(s.links)-1])
		s.blame("it was bound once and no longer names a volume")
	case vol == nil && s.view.unknown(Volume, "", name):
		s.blame("its volume %s is gone or no longer its own", name)
	case vol == nil:
		link := s.add(Link{Object: o, State: "missing", Next: "when a PersistentVolume of that name exists again, free or reserved for this claim; the claim is then Bound again, with the data on it"})
		s.blame("its volume %s was deleted while the claim was bound to it", name)
		if manifest, ok := lostVolume(c); ok {
			link.Message, link.offer = "its storage still exists: PavVolume "+name+" records it", "the command creates the PersistentVolume again"
			link.Command = "kubectl create -f - <<'EOF'\n" + manifest + "EOF"
			return
		}
		switch r := c.Volume.Record; {
		case r == nil && ofHostPath(c) && name == "pvc-"+string(c.Claim.UID):
			s.lostFolder(c, link)
		case s.view.unknown(pavVolume, "", name):
			link.Message = "create it again from a backup; explain cannot tell whether its storage still exists"
		case r != nil:
			link.Message = "create it again from a backup; PavVolume " + name + " describes its storage"
		default:
			link.Message = "create it again from a backup"
			s.giveUp(c, link)
		}
	default:
		s.misbound(c, o)
	}
}

// misbound is about a claim whose volume is bound to another claim.
func (s *story) misbound(c *claimView, o Object) {
	ref := c.Volume.Volume.Spec.ClaimRef
	link := s.add(Link{Object: o, State: string(c.Volume.Volume.Status.Phase), Since: phaseSince(c.Volume.Volume), Next: "when the volume names this claim again, by its UID"})
	switch volume.LinkOf(c.Volume.Volume, c.Claim) {
	case volume.LinkNone, volume.LinkHeld:
		link.Next = "within moments"
		s.binderSilent(c, "volume "+o.Name+" is reserved for it again")
		return
	}
	named := Object{Claim, ref.Namespace, ref.Name}.fullName()
	if ref.UID != "" {
		named += fmt.Sprintf(", uid %q", ref.UID)
	}
	if ref.Namespace == "" {
		named += ", without a namespace, as spec.claimRef.namespace is missing"
	}
	link.Message = "it names claim " + named
	s.blame("its volume %s names another claim, %s", o.Name, named)
	if destroyed := c.Volume.Volume.DeletionTimestamp != nil || c.Volume.Record != nil && c.Volume.Record.Status.Phase != tarnv1.VolumeCreated; s.gone(c.Volume) && !destroyed {
		link.Message += ", which does not exist"
		s.giveBack(link, c)
	}
}

// lostVolume returns the manifest of a volume of Tarn's that was removed by force, made from its
// record.
func lostVolume(c *claimView) (string, bool) {
	r := c.Volume.Record
	if r == nil || r.Status.Phase != tarnv1.VolumeCreated || r.Status.Handle == "" || r.Spec.Claim.UID != c.Claim.UID {
		return "", false
	}
	class := &storagev1.StorageClass{}
	if json.Unmarshal(r.Spec.ClassSnapshot.Raw, class) != nil || r.Status.NodeName != "" {
		return "", false // a volume of one node: only the volume knew the node's label
	}
	csi := map[string]any{"driver": r.Spec.Provisioner.Name, "volumeHandle": r.Status.Handle}
	if len(class.Parameters) > 0 {
		csi["volumeAttributes"] = class.Parameters
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "PersistentVolume",
		"metadata": map[string]any{
			"name":        r.Name,
			"finalizers":  []string{volume.FinalizerExternal},
			"annotations": map[string]string{volume.AnnProvisionedBy: r.Spec.Provisioner.Name, tarnv1.AnnotationRecord: string(r.UID)},
		},
		"spec": map[string]any{
			"capacity":    map[string]string{"storage": volume.Size(r.Status.Capacity)},
			"accessModes": r.Spec.AccessModes, "volumeMode": r.Spec.VolumeMode, "storageClassName": class.Name,
			"mountOptions": append([]string{}, class.MountOptions...), "persistentVolumeReclaimPolicy": ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			"claimRef": map[string]string{"namespace": c.Object.Namespace, "name": c.Object.Name, "uid": string(c.Claim.UID)},
			"csi":      csi,
		},
	})
	return string(text), err == nil
}
