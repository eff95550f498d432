package pavvolume

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// A volume that is made from another one. The record names the storage that is copied. From
// Validating until Created, or until it is undone, that storage is not destroyed: the deletion of
// the source lists the records that name it, after its own phase says Deleting. The creation checks
// the source again after its own phase is written. So one of them sees the other.

// Reasons of a PavVolume that is copied, or made from another one.
const (
	// reasonSource: the data source of the claim cannot be copied any more. The claim is checked
	// anew.
	reasonSource = "SourceNotUsable"
	// reasonCopied: a volume is being made from this one. The deletion begins when that is done.
	reasonCopied = "BeingCopied"
)

// indexClaimSource is the index of the claims that wait for a volume by the claim to copy.
const indexClaimSource = "pavvolume.source"

// indexSourceStorage is the index of records by the storage that they copy, which the API server
// selects by, too.
const indexSourceStorage = volume.SourceStorage

// source is the data source of a claim, as far as it exists.
type source struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
	// node is the only node that can use the volume, empty if others can.
	node string
	// going says that the storage is being deleted.
	going bool
}

// sourceOf is the namespace and name of the claim that a claim is to be copied from; ok is false
// for any other data source.
func sourceOf(claim *corev1.PersistentVolumeClaim) (key client.ObjectKey, ok bool) {
	from, has := volume.Source(claim)
	if !has || from.Kind != volume.SourceClaim || *from.Namespace != claim.Namespace || volume.ForPopulator(claim) {
		return key, false
	}
	return client.ObjectKey{Namespace: claim.Namespace, Name: from.Name}, true
}

// gatherSource reads the source of a claim that waits for its volume. It is nil if the claim has
// none that Tarn copies.
func (r *reconciler) gatherSource(ctx context.Context, from client.Reader, claim *corev1.PersistentVolumeClaim, p *pavv1.PavProvisioner) (*source, error) {
	key, ok := sourceOf(claim)
	if !ok {
		return nil, nil
	}
	s := &source{}
	var err error
	if s.claim, err = kube.Get(ctx, from, key, &corev1.PersistentVolumeClaim{}); err != nil || s.claim == nil || s.claim.Spec.VolumeName == "" {
		return s, err
	}
	if s.volume, err = kube.Get(ctx, from, client.ObjectKey{Name: s.claim.Spec.VolumeName}, &corev1.PersistentVolume{}); err != nil || s.volume == nil {
		return s, err
	}
	record, err := kube.Get(ctx, from, client.ObjectKey{Name: s.volume.Name}, &tarnv1.PavVolume{})
	if err != nil {
		return nil, err
	}
	if record != nil {
		s.node, s.going = record.Status.NodeName, record.Status.Phase != tarnv1.VolumeCreated || record.DeletionTimestamp != nil
	} else if p != nil && p.Spec.Topology == pavv1.TopologyNode {
		s.node, err = r.nodeOf(ctx, s.volume)
	}
	return s, err
}

// nodeOf is the only node that can use a volume, empty if there is none or more than one.
func (r *reconciler) nodeOf(ctx context.Context, vol *corev1.PersistentVolume) (name string, err error) {
	if vol.Spec.NodeAffinity == nil {
		return "", nil
	}
	nodes := &corev1.NodeList{}
	if err := r.client.List(ctx, nodes); err != nil {
		return "", fmt.Errorf("listing nodes: %w", err)
	}
	for i := range nodes.Items {
		if !volume.SelectsNode(vol.Spec.NodeAffinity.Required, &nodes.Items[i]) {
			continue
		}
		if name != "" {
			return "", nil
		}
		name = nodes.Items[i].Name
	}
	return name, nil
}

// misfit says why the source cannot be copied, empty if it can. recorded is the source in the record,
// nil without one: another claim of its name has other data.
func (s *source) misfit(claim *corev1.PersistentVolumeClaim, provisioner string, recorded *tarnv1.PavVolumeSource) string {
	why := volume.CloneMisfit(claim, s.claim, s.volume, provisioner)
	switch {
	case why != "":
	case s.going:
		why = fmt.Sprintf("the volume of the PVC DataSource %s is being deleted", s.claim.Name)
	case recorded != nil && (recorded.UID != s.claim.UID || recorded.Storage != s.volume.Name):
		why = fmt.Sprintf("the PVC DataSource %s was replaced by another claim of its name", s.claim.Name)
	default:
		return ""
	}
	from, _ := volume.Source(claim)
	return fmt.Sprintf("error getting handle for DataSource Type %s by Name %s: %s", from.Kind, from.Name, why)
}

// unsourced says why no volume is made from the data source of a claim, empty if it has none or one
// can be made.
func unsourced(v *View) string {
	from, has := volume.Source(v.Claim)
	if !has {
		return ""
	}
	name := v.Provisioner.Name
	switch {
	case !steppod.ReadsSource(v.Provisioner):
		return fmt.Sprintf("PavProvisioner %q cannot create a volume from a data source, because no template of its spec.volumeCreation reads variable source; create the claim again without spec.dataSource", name)
	case *from.Namespace != v.Claim.Namespace:
		return fmt.Sprintf("PavProvisioner %q cannot create a volume from a data source of another namespace; create the claim again without spec.dataSourceRef.namespace", name)
	case from.Kind != volume.SourceClaim:
		return fmt.Sprintf("PavProvisioner %q cannot create a volume from a %s; create the claim again with a PersistentVolumeClaim as spec.dataSource, or without one", name, from.Kind)
	}
	return v.Source.misfit(v.Claim, name, nil)
}

// lostSource says why the source of a record that has nothing in the works cannot be copied.
func lostSource(v *View) string {
	if v.Record.Spec.Source == nil {
		return ""
	}
	if v.Source == nil {
		return "the claim has another data source"
	}
	return v.Source.misfit(v.Claim, v.Record.Spec.Provisioner.Name, v.Record.Spec.Source)
}

// confirmSource reads live whether the source of a record can be copied. Otherwise it returns a
// StepError.
func (r *reconciler) confirmSource(ctx context.Context, v *View) error {
	if v.Record.Spec.Source == nil {
		return nil
	}
	s, err := r.gatherSource(ctx, r.reader, v.Claim, v.Provisioner)
	if err != nil {
		return err
	}
	live := *v
	live.Source = s
	if why := lostSource(&live); why != "" {
		return &steppod.StepError{Step: tarnv1.StepCreation, Reason: reasonSource, Message: why}
	}
	return nil
}

// followsSource says whether the volume is made where its source lies, because only that node can
// use it. The volume is then tied to that node, and the scheduler follows it, whichever node it
// selected.
func followsSource(record *tarnv1.PavVolume) bool {
	return record.Spec.Source != nil && record.Spec.Source.NodeName != ""
}

// confirmUncopied checks live whether a volume is being made from this one. If so, the deletion
// waits for an event of that volume.
func (r *reconciler) confirmUncopied(ctx context.Context, v *View) (copied bool, err error) {
	records := &tarnv1.PavVolumeList{}
	if err := r.reader.List(ctx, records, client.MatchingFields{indexSourceStorage: v.Name}); err != nil {
		return false, fmt.Errorf("listing the PavVolumes that are made from %s: %w", v.Name, err)
	}
	for i := range records.Items {
		if other := &records.Items[i]; volume.Copies(other) {
			_, err := r.apply(ctx, v, inUse(v, reasonCopied, fmt.Sprintf("volume %s of claim %s/%s is being made from this one; the deletion begins when that is done",
				other.Name, other.Spec.Claim.Namespace, other.Spec.Claim.Name)))
			return true, err
		}
	}
	return false, nil
}

// waitingForSource gives the index values of a claim in indexClaimSource.
func waitingForSource(claim *corev1.PersistentVolumeClaim) string {
	if key, ok := sourceOf(claim); ok {
		return key.String()
	}
	return ""
}

// mapCopied enqueues the volume that a record copies, whose deletion may wait.
func mapCopied(_ context.Context, o client.Object) []reconcile.Request {
	if record, ok := o.(*tarnv1.PavVolume); ok && record.Spec.Source != nil {
		return []reconcile.Request{request(record.Spec.Source.Storage)}
	}
	return nil
}

// mapSource enqueues the claims that are to be copied from a claim, or from the claim of a volume.
func (r *reconciler) mapSource(ctx context.Context, o client.Object) []reconcile.Request {
	key := client.ObjectKeyFromObject(o)
	switch o := o.(type) {
	case *corev1.PersistentVolume:
		if o.Spec.ClaimRef == nil {
			return nil
		}
		key = client.ObjectKey{Namespace: o.Spec.ClaimRef.Namespace, Name: o.Spec.ClaimRef.Name}
	case *tarnv1.PavVolume:
		key = client.ObjectKey{Namespace: o.Spec.Claim.Namespace, Name: o.Spec.Claim.Name}
	}
	return r.waiting(ctx, client.MatchingFields{indexClaimSource: key.String()})
}

// capacity is the least capacity of a volume that holds what its source holds.
func (s *source) capacity() int64 {
	return volume.Bytes(s.volume.Spec.Capacity[corev1.ResourceStorage])
}
