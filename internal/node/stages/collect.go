package stages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
)

// Collect unmounts and removes the folders of stages that do not exist any more, as
// the API server says, not the cache. It is called before any volume is served.
func (s *Stages) Collect(ctx context.Context) error {
	entries, err := os.ReadDir(s.Folder)
	if errors.Is(err, os.ErrNotExist) {
		return os.MkdirAll(s.Folder, 0o700)
	}
	if err != nil || len(entries) == 0 {
		return err
	}
	list := &tarnv1.PavStageList{}
	if err := s.Live.List(ctx, list, client.MatchingFields{NodeField: s.NodeName}); err != nil {
		return fmt.Errorf("list the PavStages of node %s: %w", s.NodeName, err)
	}
	alive := map[types.UID]bool{}
	for i := range list.Items {
		alive[list.Items[i].UID] = true
	}
	logger := log.FromContext(ctx)
	var failed error
	for _, e := range entries {
		if alive[types.UID(e.Name())] {
			continue
		}
		folder := filepath.Join(s.Folder, e.Name())
		logger.Info("remove the folder of a stage that is gone", "folder", folder)
		err := mounts.UnmountTree(s.Mounts, folder, func(point string, busy error) {
			logger.Info("detach a mount that stays busy", "mount", point, "because", busy.Error())
		})
		if err == nil {
			err = mounts.RemoveTree(folder)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}
