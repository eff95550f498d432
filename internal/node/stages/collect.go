package stages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
)

// Collect unmounts and removes the directories of stages that do not exist any more. It asks the
// API server, not the cache. Call it before any volume is served.
func (s *Stages) Collect(ctx context.Context) error {
	entries, err := os.ReadDir(s.Folder)
	if errors.Is(err, os.ErrNotExist) {
		return os.MkdirAll(s.Folder, 0o700)
	}
	if err != nil || len(entries) == 0 {
		return err
	}
	alive, err := s.alive(ctx)
	if err != nil {
		return err
	}
	var failed error
	for _, e := range entries {
		if uid := types.UID(e.Name()); !alive[uid] {
			failed = errors.Join(failed, s.collect(ctx, uid))
		}
	}
	return failed
}

// alive are the existing stages of this node, from the API server, not the cache.
func (s *Stages) alive(ctx context.Context) (map[types.UID]bool, error) {
	list := &tarnv1.PavStageList{}
	if err := s.Live.List(ctx, list, client.MatchingFields{NodeField: s.NodeName}); err != nil {
		return nil, fmt.Errorf("list the PavStages of node %s: %w", s.NodeName, err)
	}
	alive := map[types.UID]bool{}
	for i := range list.Items {
		alive[list.Items[i].UID] = true
	}
	return alive, nil
}

// collect unmounts and removes the directory of a stage that no longer exists.
func (s *Stages) collect(ctx context.Context, uid types.UID) error {
	unlock := s.folders.Lock(string(uid))
	defer unlock()
	logger, folder := log.FromContext(ctx), s.folder(uid)
	logger.Info("remove the directory of a deleted stage", "folder", folder)
	err := mounts.UnmountTree(s.Mounts, folder, func(point string, busy error) {
		logger.Info("detach a mount that stays busy", "mount", point, "because", busy.Error())
	})
	if err != nil {
		return err
	}
	return mounts.RemoveTree(folder)
}

// noteGone handles the deletion of a PavStage. Its finalizers may have been removed without this
// agent, for example by the stage controller while the Node did not exist for some time. The agent
// then removes what is left here now, not at its next start.
func (s *Stages) noteGone(stage *tarnv1.PavStage) {
	s.ready.remove(s.pav(stage.UID))
	s.forget(stage)
	if _, err := os.Lstat(s.folder(stage.UID)); errors.Is(err, os.ErrNotExist) {
		return
	}
	s.putOrphans(stage.Name, stage.UID)
	s.queue.add(stage.Name)
}

// collectOrphans removes what deleted stages of that name have left. The deletion is known from an
// event, or from one answer of a server that may just have started. The mounts may be in use, so it
// asks the server once more first.
func (s *Stages) collectOrphans(ctx context.Context, name string) error {
	s.mu.Lock()
	uids := s.orphans[name]
	delete(s.orphans, name)
	s.mu.Unlock()
	if len(uids) == 0 {
		return nil
	}
	alive, err := s.alive(ctx)
	if err != nil {
		s.putOrphans(name, uids...)
		return err
	}
	var failed error
	for _, uid := range uids {
		if alive[uid] {
			continue
		}
		if err := s.collect(ctx, uid); err != nil {
			s.putOrphans(name, uid)
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func (s *Stages) putOrphans(name string, uids ...types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orphans == nil {
		s.orphans = map[string][]types.UID{}
	}
	for _, uid := range uids {
		if !slices.Contains(s.orphans[name], uid) {
			s.orphans[name] = append(s.orphans[name], uid)
		}
	}
}
