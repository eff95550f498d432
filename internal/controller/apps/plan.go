package apps

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
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

// plan decides, and gives what to do in this order.
func plan(v *View) []action.Action {
	switch {
	case v.App == nil:
		return nil
	case v.App.DeletionTimestamp != nil:
		return planEnd(v)
	}
	var actions []action.Action
	if !held(v.App) {
		actions = append(actions, Hold{})
	}
	switch {
	case v.App.Spec.Image == "":
		return append(actions, planNothing(v)...)
	case refusal(v) != "":
		return actions
	}
	actions = append(actions, planTopology(v)...)
	for i := range v.App.Spec.Volumes {
		actions = append(actions, planVolume(v, &v.App.Spec.Volumes[i])...)
	}
	if wanted := newDeployment(v); v.Deployment == nil || !runs(v.Deployment, wanted) {
		actions = append(actions, Run{Deployment: wanted})
	}
	// Growth comes last, so that a quota that rejects it prevents nothing else.
	for i := range v.App.Spec.Volumes {
		actions = append(actions, planGrowth(v, &v.App.Spec.Volumes[i])...)
	}
	return actions
}

// planNothing stops what was deployed before the image was removed from the spec. Without an
// image, no volume can be mounted.
func planNothing(v *View) []action.Action {
	var actions []action.Action
	if ours(v.App, v.Config) {
		actions = planTopology(v)
	}
	if ours(v.App, v.Deployment) && v.Deployment.DeletionTimestamp == nil {
		actions = append(actions, stop(v))
	}
	return actions
}

// planTopology writes the topology before the first claim is created, and reports volumes that
// are no longer mounted.
func planTopology(v *View) []action.Action {
	next := topologyOf(v)
	if ours(v.App, v.Config) && v.Config.Labels[tarnv1.LabelApp] == v.App.Name && says(v.Config, next) {
		return nil
	}
	actions := []action.Action{WriteTopology{Topology: next}}
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

func planVolume(v *View, volume *tarnv1.AppVolume) []action.Action {
	claim := v.claim(volume.Name)
	switch {
	case claim == nil:
		made := newClaim(v, volume)
		if v.hadStorage(volume.Name) {
			made.Annotations[annRemade] = "true"
			return []action.Action{MakeClaim{Claim: made}, v.warn(eventRemade, fmt.Sprintf(
				"claim %s of volume %s was deleted by hand; it is created again with an empty volume; the old data may be in the trash (tarn trash list)", made.Name, volume.Name))}
		}
		return []action.Action{MakeClaim{Claim: made}, tell(made.Name, eventCreated,
			"claim %s is created for volume %s: %d GiB of class %s", made.Name, volume.Name, volume.SizeGi, *made.Spec.StorageClassName)}
	case claim.DeletionTimestamp != nil:
		return nil // it is created again once it is gone
	}
	switch is := preserved(claim); {
	case is && !volume.PreserveOnDelete:
		return []action.Action{MarkClaim{Claim: claim, Preserve: false}, tell(claim.Name, eventReleased,
			"claim %s of volume %s was preserved; from now on it is deleted with the App, because the volume lacks preserveOnDelete", claim.Name, volume.Name)}
	case !is && volume.PreserveOnDelete:
		return []action.Action{MarkClaim{Claim: claim, Preserve: true}}
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

func planGrowth(v *View, volume *tarnv1.AppVolume) []action.Action {
	claim := v.claim(volume.Name)
	// The size of an unbound claim cannot be changed; it grows once it is bound.
	if claim == nil || claim.DeletionTimestamp != nil || claim.Status.Phase != corev1.ClaimBound || !tooSmall(claim, volume) {
		return nil
	}
	return []action.Action{GrowClaim{Claim: claim, Bytes: volume.SizeGi * gi}, tell(claim.Name, eventGrowing,
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
