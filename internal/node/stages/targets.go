package stages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"tarn.dev/tarn/internal/kube"
)

// A kubelet that was told "unavailable" remembers that the volume may be mounted. But its next
// attempt may come while no agent runs. It then fails before it calls (no socket, driver not
// registered), and the kubelet takes that as final and forgets the target.
//
// If the pod is deleted then, the kubelet never unpublishes. So the agent looks for targets whose
// pod does not exist any more: often after its own start, because only then can that happen, and
// then ever more rarely.
const (
	releaseFirst = time.Minute
	releaseMost  = 32 * time.Minute
	// releaseAfter is how long a pod must be gone. A pod deleted by force leaves the API while its
	// containers still run, and the kubelet unpublishes when it has ended them.
	releaseAfter = 5 * time.Minute
)

// PodRef names the pod of a target; empty if the kubelet did not name it.
type PodRef struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// use describes how a pod uses a target.
type use struct {
	PodRef
	// ReadOnly says that the target is mounted read-only, though its stage may not be. Files of an
	// earlier release lack it: there, the stage was read-only for all its targets or for none.
	ReadOnly bool `json:"readOnly,omitempty"`
}

// useFile is the file with the use of a target, in the stage's directory.
func (s *Stages) useFile(stage types.UID, target string) string {
	sum := sha256.Sum256([]byte(target))
	return filepath.Join(s.folder(stage), "targets", hex.EncodeToString(sum[:16])+".json")
}

// writeUse stores the target's pod and how the target is mounted, before the target is recorded.
func (s *Stages) writeUse(stage types.UID, target string, of use) error {
	path := s.useFile(stage, target)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return writeJSON(path, of)
}

// readUse gives the zero value if nothing is stored for a target.
func (s *Stages) readUse(stage types.UID, target string) (of use, err error) {
	data, err := os.ReadFile(s.useFile(stage, target))
	if errors.Is(err, os.ErrNotExist) {
		return use{}, nil
	}
	if err != nil {
		return use{}, err
	}
	return of, json.Unmarshal(data, &of)
}

// releaseLoop releases abandoned targets after the start of the agent, and then after pauses that double each time.
func (s *Stages) releaseLoop(ctx context.Context) error {
	for pause := releaseFirst; ; pause = min(2*pause, releaseMost) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if s.ReleaseAbandoned(ctx, s.Now()) {
			pause = releaseFirst / 2 // it is known soon whether it stays gone
		}
	}
}

// ReleaseAbandoned releases the targets whose pod has been gone long enough. more says whether other targets
// have a pod that is gone.
func (s *Stages) ReleaseAbandoned(ctx context.Context, now time.Time) (more bool) {
	list, err := s.used(ctx)
	if err != nil {
		return false
	}
	since := map[string]time.Time{}
	for target, stage := range list {
		if !s.podIsGone(ctx, stage, target) {
			continue
		}
		first, known := s.goneSince[target]
		if !known {
			first = now
		}
		if now.Sub(first) < releaseAfter {
			since[target] = first
			continue
		}
		log.FromContext(ctx).Info("releasing a volume whose pod is gone; the kubelet did not ask for it", "target", target)
		if err := s.releaseAbandoned(ctx, target); err != nil {
			since[target] = first
			log.FromContext(ctx).Error(err, "the volume of a deleted pod is not released yet", "target", target)
		}
	}
	s.goneSince = since
	return len(since) > 0
}

// used gives the targets of the stages that continue, or that cannot end before the target is
// released, with the UID of their stage.
func (s *Stages) used(ctx context.Context) (map[string]types.UID, error) {
	stages, err := s.cachedStages(ctx)
	used := map[string]types.UID{}
	for i := range stages {
		if waits := ptr.Deref(stages[i].Status.Node.InUse, false); deleting(&stages[i]) && !waits {
			continue
		}
		for _, target := range stages[i].Status.Node.Targets {
			used[target] = stages[i].UID
		}
	}
	return used, err
}

// podIsGone is true only if the UID of the pod is known and the API server says that the pod does
// not exist.
func (s *Stages) podIsGone(ctx context.Context, stage types.UID, target string) bool {
	ref, err := s.readUse(stage, target)
	if err != nil || ref.UID == "" {
		return false
	}
	pod, err := kube.Get(ctx, s.Live, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.Pod{})
	return err == nil && (pod == nil || pod.UID != ref.UID)
}

func (s *Stages) releaseAbandoned(ctx context.Context, target string) error {
	unlock, ok := s.targets.TryLock(target)
	if !ok {
		return errors.New("the kubelet is asking for it now")
	}
	defer unlock()
	return s.release(ctx, target, false)
}
