package apps

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
	appspec "tarn.dev/tarn/internal/app/spec"
)

// Events of an App.
const (
	// eventCreated: a claim was created for a volume.
	eventCreated = "VolumeCreated"
	// eventAttached: a volume that was detached or preserved is mounted again.
	eventAttached = "VolumeAttached"
	// eventDetached: a volume is not mounted any more. Its claim and data stay.
	eventDetached = "VolumeDetached"
	// eventGrowing: a volume is being made larger.
	eventGrowing = "VolumeResizing"
	// eventDeleted: the claim of a volume is deleted with the App.
	eventDeleted = "VolumeDeleted"
	// eventPreserved: the claim of a volume stays after the App is deleted.
	eventPreserved = "VolumePreserved"
	// eventReleased: the claim of a volume is not preserved any more; it will be deleted with the
	// App.
	eventReleased = "VolumePreservedNoMore"
	// eventRemade: the claim of a volume was deleted, and a new one was created without the data.
	// Use tarn undelete if you need the data.
	eventRemade = "VolumeMadeAnew"
)

// Plan is what to do, in this order.
type Plan struct {
	Actions []Action
}

// Action is one write. It is one of the types below, each of which may be repeated without
// harm.
type Action interface{ action() }

type (
	// Hold adds the finalizer to the App.
	Hold struct{}
	// LetGo removes it.
	LetGo struct{}
	// WriteTopology records in the ConfigMap what was deployed.
	WriteTopology struct{ Topology topology }
	// DropTopology deletes the ConfigMap.
	DropTopology struct{}
	// MakeClaim creates a claim.
	MakeClaim struct{ Claim *corev1.PersistentVolumeClaim }
	// MarkClaim records on a claim whether it is to outlive its App.
	MarkClaim struct {
		Claim    *corev1.PersistentVolumeClaim
		Preserve bool
	}
	// GrowClaim makes a claim request more bytes.
	GrowClaim struct {
		Claim *corev1.PersistentVolumeClaim
		Bytes int64
	}
	// DropClaim deletes this very claim.
	DropClaim struct{ Claim *corev1.PersistentVolumeClaim }
	// Run creates or corrects the Deployment.
	Run struct{ Deployment *appsv1.Deployment }
	// Stop deletes the Deployment, which exists until its pods are gone.
	Stop struct{ Deployment *appsv1.Deployment }
	// WriteStatus writes the App's status.
	WriteStatus struct{ Status tarnv1.AppStatus }
	// Post emits an Event about the App.
	Post struct{ Type, Reason, Note string }
	// Tell emits an Event of type Normal about a claim of the App, by its name. With Logged it
	// is also logged, so that it can be found after the App is gone.
	Tell struct {
		Reason, Note, Claim string
		Logged              bool
	}
)

func (Hold) action()          {}
func (LetGo) action()         {}
func (WriteTopology) action() {}
func (DropTopology) action()  {}
func (MakeClaim) action()     {}
func (MarkClaim) action()     {}
func (GrowClaim) action()     {}
func (DropClaim) action()     {}
func (Run) action()           {}
func (Stop) action()          {}
func (WriteStatus) action()   {}
func (Post) action()          {}
func (Tell) action()          {}

// tell creates a Tell.
func tell(claim, reason, format string, args ...any) Tell {
	return Tell{Reason: reason, Note: fmt.Sprintf(format, args...), Claim: claim}
}

// logged returns the Tell with Logged set.
func (t Tell) logged() Tell { t.Logged = true; return t }

// plan decides.
func plan(v *View) Plan {
	switch {
	case v.App == nil:
		return Plan{}
	case v.App.DeletionTimestamp != nil:
		return planEnd(v)
	}
	var actions []Action
	if !held(v.App) {
		actions = append(actions, Hold{})
	}
	switch {
	case v.App.Spec.Image == "":
		return Plan{append(actions, planNothing(v)...)}
	case refusal(v) != "":
		return Plan{actions}
	}
	actions = append(actions, planTopology(v)...)
	for i := range v.App.Spec.Volumes {
		actions = append(actions, planVolume(v, &v.App.Spec.Volumes[i])...)
	}
	if wanted := newDeployment(v); v.Deployment == nil || !runs(v.Deployment, wanted) {
		actions = append(actions, Run{wanted})
	}
	// Growth comes last, so that a quota that rejects it prevents nothing else.
	for i := range v.App.Spec.Volumes {
		actions = append(actions, planGrowth(v, &v.App.Spec.Volumes[i])...)
	}
	return Plan{actions}
}

// planNothing stops what was deployed before the image was removed from the spec. Without an
// image, no volume can be mounted.
func planNothing(v *View) []Action {
	var actions []Action
	if ours(v.App, v.Config) {
		actions = planTopology(v)
	}
	if ours(v.App, v.Deployment) && v.Deployment.DeletionTimestamp == nil {
		actions = append(actions, Stop{v.Deployment})
	}
	return actions
}

// planTopology writes the topology before the first claim is created, and reports volumes that
// are no longer mounted.
func planTopology(v *View) []Action {
	next := topologyOf(v)
	if ours(v.App, v.Config) && v.Config.Labels[tarnv1.LabelApp] == v.App.Name && says(v.Config, next) {
		return nil
	}
	actions := []Action{WriteTopology{next}}
	for _, d := range next.Volumes {
		switch was := v.Deployed.mounts(d.Name); {
		case was && d.MountPath == "":
			actions = append(actions, tell(d.ClaimName, eventDetached,
				"volume %s is no longer mounted; its claim %s is kept until the App is deleted", d.Name, d.ClaimName))
		case !was && d.MountPath != "" && v.claim(d.Name) != nil:
			actions = append(actions, tell(d.ClaimName, eventAttached,
				"volume %s is mounted again, with the data of its claim %s", d.Name, d.ClaimName))
		}
	}
	return actions
}

func planVolume(v *View, volume *tarnv1.AppVolume) []Action {
	claim := v.claim(volume.Name)
	switch {
	case claim == nil:
		made := newClaim(v, volume)
		if v.hadStorage(volume.Name) {
			made.Annotations[annRemade] = "true"
			return []Action{MakeClaim{made}, Post{corev1.EventTypeWarning, eventRemade, fmt.Sprintf(
				"claim %s of volume %s was deleted by hand; it is created again with an empty volume; the old data may be in the trash (tarn trash list)", made.Name, volume.Name)}}
		}
		return []Action{MakeClaim{made}, tell(made.Name, eventCreated,
			"claim %s is created for volume %s: %d GiB of class %s", made.Name, volume.Name, volume.SizeGi, *made.Spec.StorageClassName)}
	case claim.DeletionTimestamp != nil:
		return nil // it is created again once it is gone
	}
	switch is := preserved(claim); {
	case is && !volume.PreserveOnDelete:
		return []Action{MarkClaim{claim, false}, tell(claim.Name, eventReleased,
			"claim %s of volume %s was preserved; from now on it is deleted with the App, because the volume lacks preserveOnDelete", claim.Name, volume.Name)}
	case !is && volume.PreserveOnDelete:
		return []Action{MarkClaim{claim, true}}
	}
	return nil
}

// hadStorage reports whether a volume without a claim was mounted, and had a claim with data by
// the last status.
func (v *View) hadStorage(volume string) bool {
	return v.Deployed.mounts(volume) && slices.ContainsFunc(v.App.Status.Volumes, func(s tarnv1.AppVolumeStatus) bool {
		return s.Name == volume && s.Capacity != nil
	})
}

func planGrowth(v *View, volume *tarnv1.AppVolume) []Action {
	claim := v.claim(volume.Name)
	// The size of an unbound claim cannot be changed; it grows once it is bound.
	if claim == nil || claim.DeletionTimestamp != nil || claim.Status.Phase != corev1.ClaimBound || !tooSmall(claim, volume) {
		return nil
	}
	return []Action{GrowClaim{claim, volume.SizeGi * gi}, tell(claim.Name, eventGrowing,
		"claim %s of volume %s is resized to %d GiB", claim.Name, volume.Name, volume.SizeGi)}
}

// tooSmall reports whether a claim must request more. A claim may have been given more than it
// requests, such as a spare of a pool; that counts.
func tooSmall(claim *corev1.PersistentVolumeClaim, volume *tarnv1.AppVolume) bool {
	return max(requested(claim), capacityOf(claim)) < volume.SizeGi*gi
}

// refusal says why the spec cannot be applied, or why the API server rejected it; empty if
// neither. Nothing is done then, so running pods continue unchanged.
func refusal(v *View) string {
	app, w := v.App, v.world()
	if v.Refused != "" {
		return v.Refused
	}
	if v.Config != nil && !ours(app, v.Config) {
		return taken("ConfigMap", ownName(app))
	}
	if v.Deployment != nil && !ours(app, v.Deployment) {
		return taken("Deployment", ownName(app))
	}
	for _, volume := range app.Spec.Volumes {
		name := appspec.ClaimName(app.Name, volume.Name)
		if claim := v.Claims[name]; claim != nil && !appplan.Owned(claim, app.Name, volume.Name) {
			return fmt.Sprintf("volume '%s' cannot be created: claim '%s' exists and does not belong to app '%s', so it is not touched; give the volume another name, or label the claim %s=%s,%s=%s to hand it over",
				volume.Name, name, app.Name, tarnv1.LabelApp, app.Name, tarnv1.LabelAppVolume, volume.Name)
		}
	}
	if replicas(app) > 1 {
		if err := appplan.Scale(w, replicas(app)); err != nil {
			return err.Message
		}
	}
	for _, volume := range app.Spec.Volumes {
		claim := v.claim(volume.Name)
		if claim == nil || !tooSmall(claim, &volume) {
			continue
		}
		if err := w.Expandable(claim, volume.Name); err != nil {
			return err.Message
		}
	}
	return ""
}

func taken(kind, name string) string {
	return fmt.Sprintf("%s %s exists and does not belong to this App, so it is not touched; delete it, or give the App another name", kind, name)
}
