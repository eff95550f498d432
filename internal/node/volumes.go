package node

import (
	"context"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/results"
	"tarn.dev/tarn/internal/node/stages"
)

// Keys of the volume context, in which the kubelet names the pod of a volume.
const (
	keyEphemeral = "csi.storage.k8s.io/ephemeral"
	keyPodName   = "csi.storage.k8s.io/pod.name"
	keyNamespace = "csi.storage.k8s.io/pod.namespace"
	keyPodUID    = "csi.storage.k8s.io/pod.uid"
)

// volumes sends each call to the part that serves its driver.
type volumes struct {
	stages  *stages.Stages
	results *results.Results
	// stepEnded is called when the pod of a step has ended on the node.
	stepEnded func()
}

// Publish implements driver.Volumes.
func (v *volumes) Publish(ctx context.Context, driver string, request *csi.NodePublishVolumeRequest) error {
	target := filepath.Clean(request.GetTargetPath())
	told := request.GetVolumeContext()
	inline := told[keyEphemeral] == "true"
	if driver == tarnv1.ResultsDriver {
		if !inline {
			return status.Errorf(codes.InvalidArgument, "driver %s serves only inline volumes; a PersistentVolume needs the driver of a PavProvisioner", driver)
		}
		return v.results.Publish(ctx, results.Request{
			VolumeID:  request.GetVolumeId(),
			Target:    target,
			Namespace: told[keyNamespace],
			Pod:       told[keyPodName],
			UID:       types.UID(told[keyPodUID]),
		})
	}
	if inline {
		return status.Errorf(codes.InvalidArgument, "PavProvisioner %s does not serve inline volumes; use a PersistentVolumeClaim", driver)
	}
	return v.stages.Publish(ctx, stages.Request{
		Driver:   driver,
		Handle:   request.GetVolumeId(),
		Target:   target,
		ReadOnly: request.GetReadonly(),
		Pod:      stages.PodRef{Namespace: told[keyNamespace], Name: told[keyPodName], UID: types.UID(told[keyPodUID])},
		Secrets:  request.GetSecrets(),
	})
}

// Expands implements driver.Volumes.
func (v *volumes) Expands(ctx context.Context, driver string) (bool, error) {
	if driver == tarnv1.ResultsDriver {
		return false, nil
	}
	return v.stages.Expands(ctx, driver)
}

// Expand implements driver.Volumes.
func (v *volumes) Expand(ctx context.Context, driver string, request *csi.NodeExpandVolumeRequest) (int64, error) {
	if driver == tarnv1.ResultsDriver {
		return 0, status.Errorf(codes.InvalidArgument, "driver %s serves only inline volumes, which cannot be expanded", driver)
	}
	return v.stages.Expand(ctx, stages.Growth{
		Driver: driver,
		Handle: request.GetVolumeId(),
		Path:   filepath.Clean(request.GetVolumePath()),
		Bytes:  request.GetCapacityRange().GetRequiredBytes(),
	})
}

// Unpublish implements driver.Volumes.
func (v *volumes) Unpublish(ctx context.Context, driver string, request *csi.NodeUnpublishVolumeRequest) error {
	target := filepath.Clean(request.GetTargetPath())
	if driver == tarnv1.ResultsDriver {
		defer v.stepEnded()
		return v.results.Unpublish(ctx, request.GetVolumeId(), target)
	}
	return v.stages.Unpublish(ctx, target)
}
