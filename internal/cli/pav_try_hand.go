package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// prepareVolume builds a volume written by hand, and has the claim ask for it and no other.
func (t *pavTry) prepareVolume(cmd *cobra.Command) error {
	// Whose storage it is knows its handle; what is made up has one that nobody else's can be.
	t.volume = sampleVolume(t.provisionerName, t.claim, t.class)
	t.volume.Spec.CSI.VolumeHandle = t.provisionerName
	if t.volumeFile != "" {
		t.volume = &corev1.PersistentVolume{}
		if err := readObject(cmd, "--volume", t.volumeFile, "PersistentVolume", t.volume); err != nil {
			return err
		}
		given := t.volume
		switch {
		case given.Spec.CSI == nil || given.Spec.CSI.VolumeHandle == "":
			return fmt.Errorf("--volume: PersistentVolume %s has no spec.csi.volumeHandle, which says what is staged; add it", given.Name)
		case ptr.Deref(given.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock:
			return fmt.Errorf("--volume: the volumeMode of PersistentVolume %s is Block, and a test would write over the first bytes of the device; "+
				"leave --volume out and give a --claim with volumeMode Block, for a made-up handle", given.Name)
		}
		if t.claimFile == "" {
			t.claim.Spec.AccessModes = given.Spec.AccessModes
			t.claim.Spec.Resources.Requests = given.Spec.Capacity
		}
	}
	t.volume.ObjectMeta = metav1.ObjectMeta{Name: t.provisionerName, Labels: t.volume.Labels, Annotations: t.volume.Annotations}
	t.volume.Status = corev1.PersistentVolumeStatus{}
	spec := &t.volume.Spec
	spec.CSI.Driver = t.provisionerName
	spec.StorageClassName = ""
	spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: t.claim.Namespace, Name: t.claim.Name}
	t.claim.Spec.StorageClassName, t.claim.Spec.VolumeName = ptr.To(""), t.volume.Name
	t.preparePods()
	if t.volumeFile != "" { // storage of somebody's, on which nothing is to stay
		main := &t.reader.Spec.Containers[0]
		main.Command[2] += `; read=$?; rm -f /volume/tarn-pav-test; exit "$read"`
	}
	return nil
}

// lifeByHand are the steps of a volume that is there before its claim, and after it.
func (t *pavTry) lifeByHand() trySteps {
	return trySteps{
		{"accepted", t.accepted},
		{"registered", t.registered},
		{"bound", t.boundByHand},
		{"staged", t.staged},
		{"written", t.written},
		{"ready", t.ready},
		{"read", t.read},
		{"unstaged", t.unstaged},
		{"let go", t.letGo},
		{"nothing left", t.nothingLeft},
	}
}

// boundByHand makes volume and claim and waits until they have each other.
func (t *pavTry) boundByHand(ctx context.Context) (string, error) {
	for _, o := range []client.Object{t.volume, t.claim} {
		if err := t.world.live.Create(ctx, o); err != nil {
			return "", fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
		}
	}
	detail, err := t.bound(ctx)
	return detail + ", handle " + t.volume.Spec.CSI.VolumeHandle, err
}

// letGo takes the claim away, upon which the volume is there still, and then the volume.
func (t *pavTry) letGo(ctx context.Context) (string, error) {
	if err := t.world.remove(ctx, t.claim); err != nil {
		return "", err
	}
	if err := t.world.awaitGone(ctx, "the claim", t.claim); err != nil {
		return "", err
	}
	now := &corev1.PersistentVolume{}
	err := t.world.await(ctx, "the volume to be Released", func() tryLook {
		if err := t.world.cached.Get(ctx, client.ObjectKeyFromObject(t.volume), now); err != nil {
			return fatal(fmt.Errorf("it went with its claim, though its policy is Retain: %w", err))
		}
		return tryLook{done: now.Status.Phase == corev1.VolumeReleased, state: fmt.Sprintf("it is %s", now.Status.Phase)}
	})
	if err != nil {
		return "", err
	}
	return "the volume outlived its claim", t.discardVolume(ctx)
}

// discardVolume removes a volume written by hand, and nothing else. It may be done again.
func (t *pavTry) discardVolume(ctx context.Context) error {
	if t.volume == nil {
		return nil
	}
	if err := t.world.remove(ctx, t.volume); err != nil {
		return err
	}
	return t.world.awaitGone(ctx, "the PersistentVolume", t.volume)
}
