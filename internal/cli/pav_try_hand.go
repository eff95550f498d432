package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// prepareVolume builds a volume written by hand, and a claim that can bind only to it.
func (t *pavTry) prepareVolume(cmd *cobra.Command) error {
	// The author of --volume knows the handle of the storage. A made-up volume has a handle that no
	// other storage can have.
	madeUp := sampleVolume(t.provisionerName, t.claim, t.class)
	madeUp.Spec.CSI.VolumeHandle = t.provisionerName
	var err error
	if t.volume, err = given(cmd, "--volume", t.volumeFile, madeUp); err != nil {
		return err
	}
	if t.volumeFile != "" && t.claimFile == "" {
		t.claim.Spec.AccessModes, t.claim.Spec.VolumeMode = t.volume.Spec.AccessModes, t.volume.Spec.VolumeMode
		t.claim.Spec.Resources.Requests = t.volume.Spec.Capacity
	}
	if err := t.triable(); err != nil {
		return err
	}
	spec := &t.volume.Spec
	t.given = volumeOf{spec.CSI.Driver, spec.CSI.VolumeHandle}
	// Labels, and the annotations of Kubernetes and Tarn, decide what happens to a volume. It may
	// be scrubbed, put into the trash, added to a pool or protected from deletion.
	maps.DeleteFunc(t.volume.Annotations, func(key, _ string) bool {
		domain, _, _ := strings.Cut(key, "/")
		return strings.HasSuffix(domain, tarnv1.Group) || strings.HasSuffix(domain, "kubernetes.io")
	})
	t.volume.ObjectMeta = metav1.ObjectMeta{Name: t.provisionerName, Annotations: t.volume.Annotations}
	t.volume.Status = corev1.PersistentVolumeStatus{}
	spec.CSI.Driver = t.provisionerName
	spec.StorageClassName = ""
	spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: t.claim.Namespace, Name: t.claim.Name}
	t.claim.Spec.StorageClassName, t.claim.Spec.VolumeName = ptr.To(""), t.volume.Name
	t.preparePods()
	if t.readOnly {
		return nil
	}
	// The storage may hold a user's data, so the test must remove its file.
	t.writer.Spec.Containers[0].Command[2] = "trap 'rm -f /volume/tarn-pav-test; exit' TERM; sleep 86400 & wait"
	return nil
}

// triable says why a volume written by hand cannot be tested, nil where it can.
func (t *pavTry) triable() error {
	given := t.volume
	where := "--volume: PersistentVolume " + given.Name
	block := func(mode *corev1.PersistentVolumeMode) bool {
		return ptr.Deref(mode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock
	}
	switch {
	case given.Spec.CSI == nil || given.Spec.CSI.VolumeHandle == "":
		return fmt.Errorf("%s has no spec.csi.volumeHandle, which names the storage to stage; add it", where)
	case given.Status.Phase == corev1.VolumeBound:
		return fmt.Errorf("%s has status.phase %s: its claim may be in use, and mounting a file system twice destroys it; give storage that is not in use", where, given.Status.Phase)
	case !t.onlyRead() && (block(given.Spec.VolumeMode) || block(t.claim.Spec.VolumeMode)):
		return errors.New("a volume written by hand is tested only with volumeMode Filesystem, as the test would overwrite the first bytes of a device; a read-only volume is not written")
	}
	return nil
}

// onlyRead says whether the volume can only be read.
func (t *pavTry) onlyRead() bool {
	modes := t.claim.Spec.AccessModes
	return t.volume != nil && volume.OnlyRead(t.volume) || len(modes) == 1 && modes[0] == corev1.ReadOnlyMany
}

// volumeOf identifies a volume by driver and handle.
type volumeOf struct{ driver, handle string }

// unused returns an error that names the claim that uses the storage of --volume, nil if none does.
// The test has a driver name of its own, so Tarn cannot tell that the storage is the same.
func (t *pavTry) unused(ctx context.Context) error {
	list := &corev1.PersistentVolumeList{}
	if err := t.world.live.List(ctx, list); err != nil {
		return fmt.Errorf("checking whether the volume is in use: %w", err)
	}
	for i := range list.Items {
		v := &list.Items[i]
		if v.Spec.CSI == nil || (volumeOf{v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle}) != t.given || v.Status.Phase != corev1.VolumeBound {
			continue
		}
		return fmt.Errorf("handle %q of driver %s is PersistentVolume %s here, which claim %s/%s uses: give storage that is not in use",
			t.given.handle, t.given.driver, v.Name, v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
	}
	return nil
}

// lifeByHand returns the steps of a volume that exists before and after its claim.
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
		{"released", t.letGo},
		{"nothing left", t.nothingLeft},
	}
}

// boundByHand creates volume and claim, and waits until they are bound to each other.
func (t *pavTry) boundByHand(ctx context.Context) (string, error) {
	if err := t.unused(ctx); err != nil {
		return "", err
	}
	for _, o := range []client.Object{t.volume, t.claim} {
		if err := t.world.live.Create(ctx, o); err != nil {
			return "", fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
		}
	}
	detail, err := t.bound(ctx)
	return detail + ", handle " + t.volume.Spec.CSI.VolumeHandle, err
}

// letGo deletes the claim, checks that the volume still exists, and then deletes the volume.
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
			return fatal(fmt.Errorf("it was deleted with its claim, although its policy is Retain: %w", err))
		}
		return tryLook{done: now.Status.Phase == corev1.VolumeReleased, state: fmt.Sprintf("it is %s", now.Status.Phase)}
	})
	if err != nil {
		return "", err
	}
	return "the volume outlived its claim", t.discardVolume(ctx)
}

// discardVolume deletes the PersistentVolume written by hand, but not its storage. It may be
// repeated.
func (t *pavTry) discardVolume(ctx context.Context) error {
	if t.volume == nil {
		return nil
	}
	if err := t.world.remove(ctx, t.volume); err != nil {
		return err
	}
	return t.world.awaitGone(ctx, "the PersistentVolume", t.volume)
}
