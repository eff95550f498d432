//go:build e2e

package e2e

import (
	corev1 "k8s.io/api/core/v1"
)

// ofReleased makes volumes that a binder, before it stopped, has marked as Released. Since then
// they belong to a claim or are free. It gives the wanted answers for them.
func (m *muted) ofReleased() []silence {
	m.t.Helper()
	given, has, bound := m.claimWith("given", ofClass(m.name+"-by-hand")), m.naming("has", m.name+"-has"), m.claims["unnamed"]
	var all []silence
	for _, c := range []struct {
		name string
		of   *corev1.PersistentVolumeClaim // the claim that has it by uid
		want string
		edit func(*corev1.PersistentVolume)
	}{
		{"freed", nil, "it no longer names a claim, and no binder has reconciled it since", nil},
		{"kept-for", nil, "it is reserved for claim " + m.name + "/to-come, and no binder has reconciled it since", func(vol *corev1.PersistentVolume) {
			vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: m.name, Name: "to-come"}
		}},
		{"given", given, "claim " + m.name + "/given was given it, and no binder has reconciled it since", nil},
		{"has", has, "claim " + m.name + "/has has it, and no binder has reconciled it since", nil},
		{"stray", bound, "claim " + m.name + "/unnamed has another volume, and no binder has reconciled it since", nil},
		{"surplus", bound, "claim " + m.name + "/unnamed has another volume, and csi.example.org has not destroyed the storage yet", func(vol *corev1.PersistentVolume) {
			driven(vol)
			vol.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "csi.example.org"}
			vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		}},
	} {
		vol := m.byHand(c.name, func(vol *corev1.PersistentVolume) {
			if c.of != nil {
				vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: m.name, Name: c.of.Name, UID: c.of.UID}
			}
			if c.edit != nil {
				c.edit(vol)
			}
		})
		m.patch(vol, fields{"status": fields{"phase": corev1.VolumeReleased}}, true)
		all = append(all, silence{kind: "volume", name: vol.Name, want: []string{"is Released: " + c.want}})
	}
	return all
}
