package cli

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// blocker is an obstacle to uninstalling Tarn, and how to remove it.
type blocker struct{ what, remedy string }

// uninstallStep is one step; each may be repeated without harm.
type uninstallStep string

// The steps in their order. Work that needs a running controller comes before the controllers end.
// Provisioners are deleted while the node agents run, so that the kubelets forget their drivers.
const (
	stepPools        uninstallStep = "pools"
	stepDestruction  uninstallStep = "destruction"
	stepControllers  uninstallStep = "controllers"
	stepVolumes      uninstallStep = "volumes"
	stepProvisioners uninstallStep = "provisioners"
	stepRest         uninstallStep = "rest"
)

// plannedStep is a step, and what it will do in this cluster.
type plannedStep struct {
	step uninstallStep
	what string
}

type uninstallPlan struct {
	blockers []blocker
	steps    []plannedStep
}

// next returns the first step that is not done yet; nil when all are.
func (p uninstallPlan) next(done map[uninstallStep]bool) *plannedStep {
	for i := range p.steps {
		if !done[p.steps[i].step] {
			return &p.steps[i]
		}
	}
	return nil
}

func planUninstall(in *installed, keep bool) uninstallPlan {
	p := uninstallPlan{blockers: blockers(in, keep)}
	add := func(wanted bool, step uninstallStep, format string, args ...any) {
		if wanted {
			p.steps = append(p.steps, plannedStep{step, fmt.Sprintf(format, args...)})
		}
	}
	add(len(in.pools) > 0 && !in.abandoned, stepPools, "delete %d PersistentVolumeSets and wait until the spare volumes of their pools are destroyed", len(in.pools))
	going := in.destroyed()
	if keep {
		going = in.underWay()
	}
	add(len(going) > 0 && !(keep && in.unattended()), stepDestruction, "wait until %d volumes are destroyed whose claims are gone: %s", len(going), few(in.withClaims(going)))
	given := in.surrendered()
	add(keep && len(given) > 0 && len(in.pools) == 0, stepPools, "wait until %d spare volumes are destroyed that pools have released: %s", len(given), few(given))
	add(true, stepControllers, "delete tarn-api and tarn-controller and wait until they have ended")
	kept := len(in.kept())
	left := 0
	for i := range in.records { // the records of a pool are deleted with it
		if in.abandoned || len(in.pools) == 0 || !in.onErrand(in.records[i].Spec.Claim.Namespace, in.records[i].Spec.Claim.Name) {
			left++
		}
	}
	if in.abandoned {
		left += len(in.pools) + len(in.claims) + len(in.apps)
	}
	halves := ""
	if names := in.halves(); len(names) > 0 {
		halves = fmt.Sprintf("; %d of them are only partly made or destroyed, and no controller will finish that, so delete their storage yourself: %s", len(names), strings.Join(names, ", "))
	}
	add(keep && kept+left > 0, stepVolumes, "release %d volumes: their data stays, with reclaim policy Retain%s", kept, halves)
	add(!keep && slices.ContainsFunc(in.volumes, func(v corev1.PersistentVolume) bool { return volume.Held(&v) }), stepVolumes,
		"restore the reclaim policy of other drivers' volumes in the trash")
	add(len(in.provisioners) > 0, stepProvisioners, "delete %d PavProvisioners and their CSIDrivers", len(in.provisioners))
	switch {
	case len(in.theirs) > 0:
		add(true, stepRest, "delete tarn-node, admission policies, roles and custom resources; namespace %s stays, with objects that are not Tarn's: %s",
			Namespace, strings.Join(slices.Concat(in.theirs, in.lost), ", "))
	case len(in.lost) > 0:
		add(true, stepRest, "delete tarn-node, admission policies, roles, custom resources and namespace %s, with objects that are not Tarn's: %s",
			Namespace, strings.Join(in.lost, ", "))
	default:
		add(true, stepRest, "delete tarn-node, admission policies, roles, custom resources and namespace %s", Namespace)
	}
	return p
}

// withoutTarn says what the cluster loses with each controller that runs in place of Kubernetes'
// own. off is the value of --controllers that disables Kubernetes' own.
var withoutTarn = map[string]struct{ what, off string }{
	"bind": {
		"Tarn binds claims instead of Kubernetes, and without Tarn no controller would",
		"-persistentvolume-binder-controller",
	},
	"protect": {
		"Tarn protects claims and volumes instead of Kubernetes, and all of them would keep their finalizer pvc-protection or pv-protection forever",
		"-persistentvolumeclaim-protection-controller and -persistentvolume-protection-controller",
	},
}

// blockers returns everything that would lose data, or that only the owner of an object can decide.
func blockers(in *installed, keep bool) []blocker {
	var found []blocker
	add := func(what, remedy string, args ...any) {
		found = append(found, blocker{what, fmt.Sprintf(remedy, args...)})
	}
	for _, name := range in.alone {
		add(withoutTarn[name].what, "first enable Kubernetes' controllers: remove %s from --controllers of kube-controller-manager; then disable Tarn's: "+
			"helm upgrade tarn charts/tarn --reset-then-reuse-values --set 'controller.controllers={*,-bind,-protect}'", withoutTarn[name].off)
	}
	first := ""
	if in.abandoned {
		first = "no controller of Tarn works: install Tarn again; then "
	}
	if going := len(in.pools) + len(in.destroyed()) + len(in.claims); in.abandoned && !keep && going > 0 {
		add(fmt.Sprintf("%d pools and volumes would have to be destroyed, but no controller of Tarn works", going),
			"install Tarn again, then run the command again; or keep all data: --keep-volumes")
	}
	found = append(found, in.stagesInTheWay(first)...)
	for i := range in.apps {
		if what, remedy := in.appInTheWay(&in.apps[i], keep); what != "" {
			add(what, "%s", remedy)
		}
	}
	for i := range in.pools {
		if s := &in.pools[i]; s.Labels[tarnv1.LabelDeletionProtection] == "true" {
			add(fmt.Sprintf("pool %s is protected from deletion", s.Name), "kubectl label pvset %s %s-", s.Name, tarnv1.LabelDeletionProtection)
		}
	}
	for i := range in.claims {
		c := &in.claims[i]
		switch {
		case in.abandoned: // no controller creates its volume; the claim is released
		case !errand(c):
			add(fmt.Sprintf("a volume is being made for claim %s/%s", c.Namespace, c.Name), "wait until it is bound, or delete it: tarn explain claim %s/%s", c.Namespace, c.Name)
		case len(in.pools) == 0: // else the claims are deleted with their pools
			add(fmt.Sprintf("claim %s/%s belongs to a volume that is being recycled", c.Namespace, c.Name), "wait until that is done: tarn explain claim %s/%s", c.Namespace, c.Name)
		}
	}
	for i := range in.records {
		if r := &in.records[i]; !in.ends(r) && !in.hasVolume(r.Name) && !(keep && in.unattended()) {
			add(fmt.Sprintf("a volume is being made for claim %s/%s", r.Spec.Claim.Namespace, r.Spec.Claim.Name),
				"wait until it is bound, or delete it: tarn explain claim %s/%s", r.Spec.Claim.Namespace, r.Spec.Claim.Name)
		}
	}
	if keep {
		return found
	}
	for i := range in.volumes {
		if v := &in.volumes[i]; !in.goes(v) {
			what, remedy := in.inTheWay(v)
			add(what, "%s; to keep its data: --keep-volumes", remedy)
		}
	}
	return found
}

// stagesInTheWay names the volumes that pods use on nodes. first is what the user must do before
// the pods are deleted.
func (in *installed) stagesInTheWay(first string) (found []blocker) {
	for i := range in.stages {
		s := &in.stages[i]
		what := fmt.Sprintf("volume %s is in use on node %s", s.Spec.VolumeName, s.Spec.NodeName)
		remedy := first + "delete the pods that use it: tarn explain volume " + s.Spec.VolumeName
		// This happens after a second `kubectl delete -f`. When Tarn is installed again, it
		// unstages the volume as soon as no pod uses it, and does not repair the volume before
		// that.
		if in.abandoned && s.DeletionTimestamp != nil {
			remedy = "delete the pods that use it, and install Tarn again when their containers have ended, so that it unstages the volume: tarn explain volume " + s.Spec.VolumeName
		}
		found = append(found, blocker{what, remedy})
	}
	return found
}

// appInTheWay says why an application must be deleted first, and how; what is empty where it need
// not. An App's claims are deleted with it, so to keep the volumes the user must first say so in
// the spec. While the App exists, the controller copies that setting from the spec to the claims.
func (in *installed) appInTheWay(a *tarnv1.App, keep bool) (what, remedy string) {
	preserve := fmt.Sprintf("kubectl annotate pvc --overwrite -n %s -l %s=%s %s=true", a.Namespace, tarnv1.LabelApp, a.Name, tarnv1.AnnotationPreserve)
	end := fmt.Sprintf("kubectl delete app -n %s %s", a.Namespace, a.Name)
	deployed, going := fmt.Sprintf("application %s/%s is deployed", a.Namespace, a.Name), fmt.Sprintf("application %s/%s is being deleted", a.Namespace, a.Name)
	if in.abandoned {
		end += " --wait=false" // only the next run of this command removes its finalizer
	}
	switch {
	case a.DeletionTimestamp == nil && keep:
		return deployed, "keep its volumes: " + preserveInSpec(a) + preserve + " && " + end
	case a.DeletionTimestamp == nil && in.abandoned:
		return deployed, "no controller of Tarn works: install Tarn again; then " + end + ", which deletes its volumes too; to keep their data: --keep-volumes"
	case a.DeletionTimestamp == nil:
		return deployed, end + ", which deletes its volumes too, except those to preserve; to keep their data: --keep-volumes"
	case !in.abandoned:
		return going, "wait until that is done: tarn explain app " + a.Namespace + "/" + a.Name
	case !keep:
		return going, "no controller of Tarn works: install Tarn again, which deletes the volumes too; to keep their data: --keep-volumes"
	case len(in.stages) > 0:
		return going, "Tarn deletes its volumes when it works again; before you install it, keep them: " + preserve
	}
	return "", "" // this command releases it
}

// preserveInSpec returns the command that has an App's volumes preserved, ready to be followed by
// another command. It is empty where the spec says so for all volumes already.
func preserveInSpec(a *tarnv1.App) string {
	var changes []string
	for i := range a.Spec.Volumes {
		if !a.Spec.Volumes[i].PreserveOnDelete {
			changes = append(changes, fmt.Sprintf(`{"op": "add", "path": "/spec/volumes/%d/preserveOnDelete", "value": true}`, i))
		}
	}
	if len(changes) == 0 {
		return ""
	}
	return fmt.Sprintf("kubectl patch app -n %s %s --type=json -p '[%s]' && ", a.Namespace, a.Name, strings.Join(changes, ", "))
}

// inTheWay says why a volume is not deleted by itself, and how to delete it.
func (in *installed) inTheWay(v *corev1.PersistentVolume) (what, remedy string) {
	ref := v.Spec.ClaimRef
	switch {
	case volume.DeletionProtected(v) && (ref == nil || leftBehind(v)): // other obstacles are reported when that is lifted
		return fmt.Sprintf("volume %s is protected from deletion", v.Name),
			fmt.Sprintf("kubectl label pv %s %s-", v.Name, tarnv1.LabelDeletionProtection)
	case in.forgotten(v) && (ref == nil || leftBehind(v)):
		return fmt.Sprintf("volume %s was left by an earlier Tarn, and no record says how to destroy its storage", v.Name),
			fmt.Sprintf("kubectl delete pv %s, and delete its storage yourself", v.Name)
	case ref == nil:
		return fmt.Sprintf("volume %s is free", v.Name), "kubectl delete pv " + v.Name
	case volume.ReleasedFrom(v) && volume.Held(v):
		return fmt.Sprintf("volume %s, once of claim %s/%s, is in the trash", v.Name, ref.Namespace, ref.Name),
			fmt.Sprintf("tarn undelete volume %[1]s, or tarn trash purge %[1]s --yes", v.Name)
	case leftBehind(v) && v.Annotations[volume.AnnProvisionedBy] == "":
		return fmt.Sprintf("volume %s, once of claim %s/%s, was written by hand", v.Name, ref.Namespace, ref.Name),
			"kubectl delete pv " + v.Name + ", which leaves its data"
	case leftBehind(v):
		return fmt.Sprintf("volume %s, once of claim %s/%s, is kept by its policy", v.Name, ref.Namespace, ref.Name),
			fmt.Sprintf(`to have it destroyed: kubectl patch pv %s -p '{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}'`, v.Name)
	}
	return fmt.Sprintf("volume %s belongs to claim %s/%s", v.Name, ref.Namespace, ref.Name),
		fmt.Sprintf("kubectl delete pvc -n %s %s", ref.Namespace, ref.Name)
}

// goes says whether a volume needs no action by the user. It is being destroyed, it is deleted with
// its pool, or it is bound and another driver's, which Tarn only releases.
func (in *installed) goes(v *corev1.PersistentVolume) bool {
	switch {
	case volume.DeletionProtected(v) && ofTarn(v, in.drivers()): // nothing destroys it
		return false
	case v.DeletionTimestamp != nil && v.Status.Phase != corev1.VolumeBound:
		return true
	case in.spare(v), len(in.pools) > 0 && v.Spec.ClaimRef != nil && in.onErrand(v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name):
		return true
	case superfluous(v): // it is destroyed once a binder sets its phase to Released
		return !in.forgotten(v)
	case !ofTarn(v, in.drivers()):
		return !volume.ReleasedFrom(v)
	}
	destroyed := v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete && v.Annotations[volume.AnnProvisionedBy] != ""
	return leftBehind(v) && destroyed && !in.forgotten(v)
}

// leftBehind says whether a volume's claim is gone. That includes a Failed volume, which the
// controllers retry.
func leftBehind(v *corev1.PersistentVolume) bool {
	failed := v.Status.Phase == corev1.VolumeFailed && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID != ""
	return failed || volume.ReleasedFrom(v)
}

// spare says whether a volume is deleted with the pool that had it created.
func (in *installed) spare(v *corev1.PersistentVolume) bool {
	return v.Spec.ClaimRef == nil && slices.ContainsFunc(in.pools, func(set tarnv1.PersistentVolumeSet) bool {
		return v.Annotations[tarnv1.AnnotationPoolUID] == string(set.UID) && set.Annotations[tarnv1.AnnotationOrphan] != "true"
	})
}

// superfluous says whether a pool has given a volume up for deletion.
func superfluous(v *corev1.PersistentVolume) bool {
	return volume.GivenUp(v, Namespace) && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
}

// kept returns the volumes that remain after the pools are gone.
func (in *installed) kept() []corev1.PersistentVolume {
	surrendered := in.surrendered()
	return slices.DeleteFunc(slices.Clone(in.volumes), func(v corev1.PersistentVolume) bool {
		r := in.recordOf(v.Name)
		return !in.abandoned && in.spare(&v) || slices.Contains(surrendered, v.Name) || r != nil && r.Status.Phase == tarnv1.VolumeDeleting
	})
}

// surrendered names the volumes that pools have given up and that are not destroyed yet. They have
// never had a claim, so they are destroyed even where volumes are to be kept.
func (in *installed) surrendered() []string {
	var names []string
	for i := range in.volumes {
		if v := &in.volumes[i]; superfluous(v) && !in.abandoned && !in.forgotten(v) && !volume.DeletionProtected(v) {
			names = append(names, v.Name)
		}
	}
	return names
}

// forgotten says that no record tells how a volume was created, so nothing can destroy its storage.
// An earlier Tarn left the volume behind when it was uninstalled.
func (in *installed) forgotten(v *corev1.PersistentVolume) bool {
	return v.Annotations[tarnv1.AnnotationRecord] != "" &&
		in.recordOf(v.Name) == nil
}

// recordOf returns the record of how a volume was created; nil where there is none.
func (in *installed) recordOf(name string) *tarnv1.PavVolume {
	if i := slices.IndexFunc(in.records, func(r tarnv1.PavVolume) bool { return r.Name == name }); i >= 0 {
		return &in.records[i]
	}
	return nil
}

// ends says whether a record is deleted by itself: its volume is being destroyed, or it belongs to
// a pool.
func (in *installed) ends(r *tarnv1.PavVolume) bool {
	return r.DeletionTimestamp != nil || r.Status.Phase == tarnv1.VolumeDeleting || r.Status.Phase == tarnv1.VolumeUndoing ||
		len(in.pools) > 0 && in.onErrand(r.Spec.Claim.Namespace, r.Spec.Claim.Name)
}

// underWay names the volumes that a controller is destroying. It must finish even where volumes are
// to be kept, because a partly destroyed volume is useless. Volumes that pools have given up are
// not included; another step waits for them.
func (in *installed) underWay() []string {
	var names []string
	surrendered := in.surrendered()
	for i := range in.records {
		r := &in.records[i]
		begun := r.Status.Phase == tarnv1.VolumeDeleting || r.Status.Phase == tarnv1.VolumeUndoing
		if (begun || r.DeletionTimestamp != nil && !in.hasVolume(r.Name)) && !slices.Contains(surrendered, r.Name) {
			names = append(names, r.Name)
		}
	}
	return names
}

// halves names the partly created or destroyed volumes that no controller will finish.
func (in *installed) halves() []string {
	var names []string
	for i := range in.records {
		r := &in.records[i]
		switch r.Status.Phase {
		case tarnv1.VolumeCreating, tarnv1.VolumeCreated: // else its volume is complete
			if in.hasVolume(r.Name) {
				continue
			}
		case tarnv1.VolumeUndoing, tarnv1.VolumeDeleting:
		default: // nothing was begun
			continue
		}
		if in.unattended() {
			names = append(names, r.Name)
		}
	}
	return names
}

// unattended says that no controller continues what was begun: none was running, or this command
// has ended it.
func (in *installed) unattended() bool { return in.abandoned || in.ended }

func (in *installed) hasVolume(name string) bool {
	return slices.ContainsFunc(in.volumes, func(v corev1.PersistentVolume) bool { return v.Name == name })
}

// destroyed names the volumes that a running controller must destroy, once nothing blocks the plan.
func (in *installed) destroyed() []string {
	var names []string
	for i := range in.records {
		names = append(names, in.records[i].Name)
	}
	for i := range in.volumes {
		if v := &in.volumes[i]; ofTarn(v, in.drivers()) && !slices.Contains(names, v.Name) {
			names = append(names, v.Name)
		}
	}
	return names
}
