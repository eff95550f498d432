package stages

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"tarn.dev/tarn/internal/node/resultdir"
)

// readyWatch watches for /pav/ready, by inotify, in the directories of stages that wait.
type readyWatch struct {
	watcher *fsnotify.Watcher
	wake    func(stage string)

	mu    sync.Mutex
	names map[string]string // pav directory -> stage's name
}

func (w *readyWatch) open(wake func(string)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	w.watcher, w.wake, w.names = watcher, wake, map[string]string{}
	return nil
}

// add begins to watch a directory. If ready exists already, the stage is enqueued at once.
func (w *readyWatch) add(pav, stage string) error {
	w.mu.Lock()
	_, known := w.names[pav]
	w.names[pav] = stage
	w.mu.Unlock()
	if known {
		return nil
	}
	if err := w.watcher.Add(pav); err != nil {
		w.forget(pav)
		return err
	}
	if resultdir.Ready(pav) {
		w.wake(stage)
	}
	return nil
}

func (w *readyWatch) remove(pav string) {
	if w.forget(pav) {
		_ = w.watcher.Remove(pav) // fails only if the directory, and so the watch, was removed
	}
}

func (w *readyWatch) forget(pav string) (known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, known = w.names[pav]
	delete(w.names, pav)
	return known
}

// run passes events on until ctx ends.
func (w *readyWatch) run(ctx context.Context) error {
	defer func() { _ = w.watcher.Close() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, open := <-w.watcher.Events:
			if !open {
				return nil
			}
			// A pod may find an existing file, and touch it.
			if filepath.Base(e.Name) == "ready" && e.Has(fsnotify.Create|fsnotify.Write|fsnotify.Chmod) {
				w.tell(filepath.Dir(e.Name))
			}
		case err, open := <-w.watcher.Errors:
			if !open {
				return nil
			}
			log.FromContext(ctx).Error(err, "inotify lost events; all waiting stages are checked")
			w.tellAll()
		}
	}
}

func (w *readyWatch) tell(pav string) {
	w.mu.Lock()
	stage, known := w.names[pav]
	w.mu.Unlock()
	if known {
		w.wake(stage)
	}
}

func (w *readyWatch) tellAll() {
	w.mu.Lock()
	names := make([]string, 0, len(w.names))
	for _, name := range w.names {
		names = append(names, name)
	}
	w.mu.Unlock()
	for _, name := range names {
		w.wake(name)
	}
}
