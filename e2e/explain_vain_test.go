//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A volume may be meant for a claim that can never have it.
func TestExplainSaysThatAClaimCannotHaveTheVolumeThatIsThereForIt(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-vain")
	asking := func(want string) func(*corev1.PersistentVolumeClaim) {
		return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.Resources.Requests = size(want) }
	}
	t.Run("reserved by name", func(t *testing.T) {
		sub := s.part(t)
		class := sub.classWith("-none", "kubernetes.io/no-provisioner")
		vol := sub.byHand("small", func(vol *corev1.PersistentVolume) {
			vol.Spec.StorageClassName, vol.Spec.ClaimRef = class, &corev1.ObjectReference{Namespace: s.name, Name: "small"}
		})
		claim := sub.claimWith("small", ofClass(class), asking("4Mi"))
		sub.explains("volume", vol.Name, "it is reserved for claim "+s.name+"/small, which it does not fit: volume \""+vol.Name+"\" has 2Mi, the claim asks for 4Mi")
		e := sub.explainsClaim("small", "its class "+class+" makes no volumes, and no free one fits")
		if !slices.ContainsFunc(e.Links, func(l link) bool {
			return strings.Contains(l.Message, "it is reserved for the claim, which it does not fit")
		}) {
			t.Errorf("it is not told that the volume is reserved: %+v", e.Links)
		}
		sub.does(e.command())
		if again := sub.bound(claim); again.Spec.VolumeName != vol.Name {
			t.Errorf("the claim has %q after the command, want %s", again.Spec.VolumeName, vol.Name)
		}
	})
	t.Run("made for it", func(t *testing.T) {
		sub := s.part(t)
		claim := sub.claimWith("made", ofClass(sub.classWith("-other", "csi.example.org")), asking("4Mi"))
		vol := sub.byHand("made", func(vol *corev1.PersistentVolume) {
			vol.Name, vol.Finalizers, vol.Spec.StorageClassName = "pvc-"+string(claim.UID), []string{"example.org/backup"}, *claim.Spec.StorageClassName
			vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: s.name, Name: "made", UID: claim.UID}
		})
		t.Cleanup(func() { sub.unhold(vol) })
		const vain = "the volume that was made for it does not fit it: volume "
		if e := sub.explainsClaim("made", vain, " has 2Mi, the claim asks for 4Mi"); len(e.commands()) > 0 {
			t.Errorf("the commands are %q", e.commands())
		}
		sub.explains("volume", vol.Name, "it is reserved for claim "+s.name+"/made, which it does not fit")
		sub.delete(vol)
		sub.does(sub.explainsClaim("made", vain, " is being deleted").command())
		again := claim.DeepCopy()
		if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(claim), again); err != nil || again.UID == claim.UID {
			t.Errorf("the claim is not made anew: %v", err)
		}
	})
}
