package stages

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	words "tarn.dev/tarn/internal/volume"
)

// volumeNameOf gets the PersistentVolume's name from the kubelet's target path. That is
// <root>/pods/<pod>/volumes/kubernetes.io~csi/<volume>/mount, or for a block volume
// <root>/plugins/kubernetes.io/csi/volumeDevices/publish/<volume>/<pod>.
func volumeNameOf(target string) (name string, found bool) {
	parts := strings.Split(filepath.Clean(target), "/")
	n := len(parts)
	switch {
	case n >= 4 && parts[n-1] == "mount" && parts[n-3] == "kubernetes.io~csi":
		return parts[n-2], true
	case n >= 4 && parts[n-3] == "publish" && parts[n-4] == "volumeDevices":
		return parts[n-2], true
	}
	return "", false
}

// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get;list

// findVolume returns the PersistentVolume the kubelet means, read live.
func (s *Stages) findVolume(ctx context.Context, driver, handle, target string) (*corev1.PersistentVolume, error) {
	if name, ok := volumeNameOf(target); ok {
		volume := &corev1.PersistentVolume{}
		err := s.Live.Get(ctx, client.ObjectKey{Name: name}, volume)
		if err == nil && isOf(volume, driver, handle) {
			return volume, nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, status.Errorf(codes.Unavailable, "read PersistentVolume %s: %v", name, err)
		}
	}
	return s.searchVolume(ctx, driver, handle)
}

// searchVolume lists all PersistentVolumes, one page at a time to keep memory small.
func (s *Stages) searchVolume(ctx context.Context, driver, handle string) (*corev1.PersistentVolume, error) {
	const page = 500
	var found *corev1.PersistentVolume
	next := ""
	for {
		list := &corev1.PersistentVolumeList{}
		if err := s.Live.List(ctx, list, client.Limit(page), client.Continue(next)); err != nil {
			return nil, status.Errorf(codes.Unavailable, "list PersistentVolumes: %v", err)
		}
		for i := range list.Items {
			if !isOf(&list.Items[i], driver, handle) {
				continue
			}
			if found != nil {
				return nil, status.Errorf(codes.FailedPrecondition,
					"PersistentVolumes %s and %s both have driver %q and volumeHandle %q; give each its own volumeHandle",
					found.Name, list.Items[i].Name, driver, handle)
			}
			found = list.Items[i].DeepCopy()
		}
		next = list.Continue
		if next == "" {
			break
		}
	}
	if found == nil {
		return nil, status.Errorf(codes.NotFound, "no PersistentVolume has driver %q and volumeHandle %q", driver, handle)
	}
	return found, nil
}

func isOf(volume *corev1.PersistentVolume, driver, handle string) bool {
	source := volume.Spec.CSI
	return source != nil && source.Driver == driver && source.VolumeHandle == handle
}

// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners,verbs=list;watch

// checkProvisioner rejects a provisioner that must not stage new volumes.
func (s *Stages) checkProvisioner(ctx context.Context, name string) (*pavv1.PavProvisioner, error) {
	p := &pavv1.PavProvisioner{}
	err := s.Cached.Get(ctx, client.ObjectKey{Name: name}, p)
	if apierrors.IsNotFound(err) {
		return nil, status.Errorf(codes.FailedPrecondition,
			"PavProvisioner %q does not exist, so its volumes cannot be staged; create it", name)
	}
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "read PavProvisioner %q: %v", name, err)
	}
	if !p.DeletionTimestamp.IsZero() {
		return nil, status.Errorf(codes.FailedPrecondition,
			"PavProvisioner %q is under deletion, so its volumes are not staged any more; create it again once it is gone", name)
	}
	accepted := meta.FindStatusCondition(p.Status.Conditions, pavv1.ConditionAccepted)
	switch {
	case accepted == nil:
		return nil, status.Errorf(codes.Unavailable,
			"PavProvisioner %q has not been checked yet; if this lasts, see whether the controller runs", name)
	case accepted.Status != metav1.ConditionTrue:
		return nil, status.Errorf(codes.FailedPrecondition,
			"PavProvisioner %q is not accepted: %s; correct it", name, accepted.Message)
	}
	return p, nil
}

// findByTarget returns the stage whose status records the target, or nil. A target that was just
// recorded may not be in the cache yet, so nil needs the API server's confirmation.
func (s *Stages) findByTarget(ctx context.Context, target string) (*tarnv1.PavStage, error) {
	found, err := s.findIn(ctx, s.Cached, target)
	if err == nil && found == nil {
		found, err = s.findIn(ctx, s.Live, target, client.MatchingFields{NodeField: s.NodeName})
	}
	return found, err
}

func (s *Stages) findIn(ctx context.Context, reader client.Reader, target string, opts ...client.ListOption) (*tarnv1.PavStage, error) {
	list := &tarnv1.PavStageList{}
	if err := reader.List(ctx, list, opts...); err != nil {
		return nil, status.Errorf(codes.Unavailable, "list the PavStages of node %s: %v", s.NodeName, err)
	}
	for i := range list.Items {
		if list.Items[i].Spec.NodeName == s.NodeName && slices.Contains(list.Items[i].Status.Node.Targets, target) {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// wanted gives the stage that a call is for. All pods of a node share one, unless the provisioner
// stages read-only pods separately. That is decided when a stage is created. A stage may be of the
// other kind, if it was created before an upgrade or an edit of the provisioner.
//
// The call joins such a stage if it has the target already. It also does if both pod and stage are
// read-only and the volume has no other stage. A stage with a name from an earlier release is used
// until it ends.
func (s *Stages) wanted(ctx context.Context, p *pavv1.PavProvisioner, volume *corev1.PersistentVolume, r Request) (want *tarnv1.PavStage, joins bool, err error) {
	readOnly := words.OnlyRead(volume) || r.ReadOnly && steppod.StagesApart(p)
	want = tarnv1.NewStage(tarnv1.ProvisionerReference{Name: p.Name, UID: p.UID}, volume.Name, volume.UID, s.NodeName, readOnly)
	former, err := s.liveStage(ctx, tarnv1.HashedStageName(volume.UID, s.NodeName, readOnly))
	if err != nil || former != nil {
		return former, true, err
	}
	if !r.ReadOnly {
		return want, false, nil
	}
	other, err := s.stageOf(ctx, volume, !readOnly)
	if err != nil || other == nil {
		return want, false, err
	}
	if slices.Contains(other.Status.Node.Targets, r.Target) {
		return other, true, nil
	}
	if !other.Spec.ReadOnly || deleting(other) || other.Status.Node.Phase == tarnv1.StageFailed {
		return want, false, nil
	}
	shared, err := s.liveStage(ctx, want.Name)
	if err != nil || shared != nil {
		return want, false, err
	}
	return other, true, nil
}

// stageOf reads the stage of a volume on this node, under either name; nil if there is none.
func (s *Stages) stageOf(ctx context.Context, volume *corev1.PersistentVolume, readOnly bool) (*tarnv1.PavStage, error) {
	stage, err := s.liveStage(ctx, tarnv1.StageName(volume.UID, s.NodeName, readOnly))
	if err != nil || stage != nil {
		return stage, err
	}
	return s.liveStage(ctx, tarnv1.HashedStageName(volume.UID, s.NodeName, readOnly))
}

// describe names the stage and what it waits for.
func describe(stage *tarnv1.PavStage) string {
	text := fmt.Sprintf("PavStage %s of volume %s", stage.Name, stage.Spec.VolumeName)
	pod := stage.Status.Pod
	if pod.Name != "" {
		text += fmt.Sprintf(", pod %s/%s", pod.Namespace, pod.Name)
	}
	phase := string(pod.Phase)
	if phase == "" {
		phase = "not started by the controller yet"
	}
	text += ": " + phase
	for _, message := range []string{pod.Message, stage.Status.Node.Message} {
		if message != "" {
			text += ": " + message
		}
	}
	return text
}
