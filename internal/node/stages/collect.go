package stages

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
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
	var failed error
	for _, e := range entries {
		if uid := types.UID(e.Name()); !alive[uid] {
			failed = errors.Join(failed, s.collect(ctx, uid))
		}
	}
	return failed
}

// collect unmounts and removes the folder of a stage that is gone.
func (s *Stages) collect(ctx context.Context, uid types.UID) error {
	unlock := s.folders.Lock(string(uid))
	defer unlock()
	logger, folder := log.FromContext(ctx), s.folder(uid)
	logger.Info("remove the folder of a stage that is gone", "folder", folder)
	err := mounts.UnmountTree(s.Mounts, folder, func(point string, busy error) {
		logger.Info("detach a mount that stays busy", "mount", point, "because", busy.Error())
	})
	if err != nil {
		return err
	}
	return mounts.RemoveTree(folder)
}

// noteGone hears of a PavStage that is gone. One whose finalizers were taken off by
// somebody else, as by the stage controller when the node's object was gone for a while,
// has ended without this agent; what it has here goes now, not at the next start.
func (s *Stages) noteGone(object any) {
	if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	stage, ok := object.(*tarnv1.PavStage)
	if !ok {
		return
	}
	s.ready.remove(s.pav(stage.UID))
	s.forget(stage)
	if _, err := os.Lstat(s.folder(stage.UID)); errors.Is(err, os.ErrNotExist) {
		return
	}
	s.mu.Lock()
	s.orphans[stage.Name] = append(s.orphans[stage.Name], stage.UID)
	s.mu.Unlock()
	s.wakeUp(stage.Name)
}

// collectOrphans removes what stages of that name have left that are gone.
func (s *Stages) collectOrphans(ctx context.Context, name string) error {
	s.mu.Lock()
	uids := s.orphans[name]
	delete(s.orphans, name)
	s.mu.Unlock()
	var failed error
	for _, uid := range uids {
		if err := s.collect(ctx, uid); err != nil {
			s.mu.Lock()
			s.orphans[name] = append(s.orphans[name], uid)
			s.mu.Unlock()
			failed = errors.Join(failed, err)
		}
	}
	return failed
}
