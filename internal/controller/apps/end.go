package apps

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
)

// ending is what the end of an App deletes, and what it keeps.
type ending struct {
	// doomed are the claims to delete. guarded are those that a protection label keeps. kept
	// are those to be preserved.
	doomed, guarded, kept []*corev1.PersistentVolumeClaim
}

// endOf decides by what was deployed. It keeps a claim that no deploy has mounted. It also
// keeps a claim that is to be preserved by the last deploy, by the present spec or by the claim
// itself. It does not touch a claim that is not the App's.
func endOf(v *View) ending {
	var e ending
	named := map[string]bool{}
	for _, d := range v.Deployed.Volumes {
		claim := v.claim(d.Name)
		named[d.ClaimName] = true
		switch {
		case claim == nil || claim.Name != d.ClaimName:
		case d.PreserveOnDelete || v.preserves(d.Name, claim):
			e.kept = append(e.kept, claim)
		case claim.DeletionTimestamp == nil && claim.Labels[tarnv1.LabelDeletionProtection] == "true":
			e.guarded = append(e.guarded, claim)
		default:
			e.doomed = append(e.doomed, claim)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.Claims)) {
		if claim := v.Claims[name]; !named[name] && v.claim(claim.Labels[tarnv1.LabelAppVolume]) == claim {
			e.kept = append(e.kept, claim)
		}
	}
	return e
}

// preserves reports whether a volume is to be preserved by the spec or by its claim, whatever
// was deployed. The service that answers a deletion also reads the claim.
func (v *View) preserves(volume string, claim *corev1.PersistentVolumeClaim) bool {
	return preserved(claim) || slices.ContainsFunc(v.App.Spec.Volumes, func(s tarnv1.AppVolume) bool {
		return s.Name == volume && s.PreserveOnDelete
	})
}

// planEnd deletes an App in an order in which nothing is lost if it stops anywhere. First it
// marks what is to be preserved, then it deletes the pods, then the claims, then the topology.
func planEnd(v *View) []action.Action {
	if !held(v.App) {
		return nil
	}
	e := endOf(v)
	var actions []action.Action
	for _, claim := range e.kept {
		if !preserved(claim) {
			actions = append(actions, MarkClaim{Claim: claim, Preserve: true})
		}
	}
	if ours(v.App, v.Deployment) {
		if v.Deployment.DeletionTimestamp == nil {
			actions = append(actions, stop(v))
		}
		return actions // the end of the Deployment triggers the next reconcile
	}
	for _, claim := range e.doomed {
		if claim.DeletionTimestamp == nil {
			actions = append(actions, action.Delete{Object: claim, Unchanged: true}, tell(claim.Name, eventDeleted, "claim %s is deleted with the App", claim.Name).logged())
		}
	}
	if len(e.doomed)+len(e.guarded) > 0 {
		return actions
	}
	for _, claim := range e.kept {
		actions = append(actions, tell(claim.Name, eventPreserved,
			"claim %s is preserved; an App of the same name uses it again", claim.Name).logged())
	}
	if ours(v.App, v.Config) {
		actions = append(actions, action.Delete{Object: v.Config})
	}
	return append(actions, LetGo{})
}

// endMessage says what the end of an App waits for.
func endMessage(v *View) string {
	e := endOf(v)
	switch {
	case ours(v.App, v.Deployment):
		return fmt.Sprintf("its pods are being stopped; %d remain", v.Deployment.Status.Replicas)
	case len(e.guarded) > 0:
		claim := e.guarded[0]
		return fmt.Sprintf("claim %s is protected from deletion by its label %s; to lift that: kubectl label persistentvolumeclaims %s -n %s %s-",
			claim.Name, tarnv1.LabelDeletionProtection, claim.Name, claim.Namespace, tarnv1.LabelDeletionProtection)
	case len(e.doomed) > 0:
		return "these claims are being deleted: " + names(e.doomed)
	}
	return "it is being deleted"
}

func names(claims []*corev1.PersistentVolumeClaim) string {
	all := make([]string, len(claims))
	for i, claim := range claims {
		all[i] = claim.Name
	}
	return strings.Join(all, ", ")
}
