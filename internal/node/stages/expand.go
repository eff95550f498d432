package stages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/resultdir"
	"tarn.dev/tarn/internal/volume"
)

// expandWait is how long one call to expand waits for the node expansion pod: a bit less than the
// kubelet's two minutes. The kubelet then calls again.
const expandWait = 110 * time.Second

// Growth is one call to expand.
type Growth struct {
	Driver string
	Handle string
	// Path is the path at which the volume is published.
	Path string
	// Bytes is the size requested.
	Bytes int64
}

// Expands says whether the volumes of a driver may grow: whether its PavProvisioner
// has volumeExpansion.
func (s *Stages) Expands(ctx context.Context, driver string) (bool, error) {
	p := &pavv1.PavProvisioner{}
	err := s.Cached.Get(ctx, client.ObjectKey{Name: driver}, p)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, status.Errorf(codes.Unavailable, "read PavProvisioner %q: %v", driver, err)
	}
	return p.Spec.VolumeExpansion != nil, nil
}

// Expand expands a volume in each of its stages on this node, and gives its new size. Errors are
// gRPC statuses. A failure of the pod is Internal: the kubelet then retries later, and gives up
// once the claim requests less.
func (s *Stages) Expand(ctx context.Context, g Growth) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, expandWait)
	defer cancel()
	volume, err := s.findVolume(ctx, g.Driver, g.Handle, g.Path)
	if err != nil {
		return 0, err
	}
	if g.Bytes == 0 {
		g.Bytes = capacityOf(volume)
	}
	staged := 0
	for _, readOnly := range []bool{false, true} {
		for _, name := range []string{tarnv1.StageName(volume.UID, s.NodeName, readOnly), tarnv1.HashedStageName(volume.UID, s.NodeName, readOnly)} {
			found, err := s.expandStage(ctx, name, g.Bytes)
			if err != nil {
				return 0, err
			}
			if found {
				staged++
			}
		}
	}
	if staged == 0 {
		return 0, status.Errorf(codes.NotFound, "volume %s is not staged on node %s", volume.Name, s.NodeName)
	}
	return g.Bytes, nil
}

// expandStage requests the growth of one stage, unless it has grown, and waits for the answer. It
// says whether the stage exists.
func (s *Stages) expandStage(ctx context.Context, name string, bytes int64) (found bool, err error) {
	sub, end := s.calls.subscribe(name)
	defer end()
	stage, err := s.liveStage(ctx, name)
	if err != nil || stage == nil {
		return false, err
	}
	for asked := false; ; {
		changed := sub.next()
		stage = sub.newest(stage)
		if stage == nil || deleting(stage) || stage.Status.Node.Phase != tarnv1.StageStaged {
			return true, status.Errorf(codes.Unavailable, "PavStage %s is not staged now; its volume grows once it is staged", name)
		}
		now, short, err := s.answerNow(stage, bytes)
		if err != nil {
			return true, err
		}
		switch now {
		case grown:
			return true, nil
		case failed:
			if asked || s.tellOnce(stage) {
				return true, s.growthError(stage, short)
			}
			fallthrough
		case unasked:
			if stage, err = s.ask(ctx, stage, bytes); err != nil {
				return true, err
			}
			asked = true
			continue
		}
		asked = true // this call gets the answer to an earlier request
		select {
		case <-changed:
		case <-ctx.Done():
			return true, status.Errorf(codes.Unavailable, "waiting for %s: %s", growthPod(stage), growthMessage(stage))
		}
	}
}

// answer is the progress of a stage's growth to a size; a closed set.
type answer int

const (
	unasked answer = iota // that size was not requested yet
	waiting               // the node expansion pod is or may be there
	grown                 // it has at least that size
	failed                // the last attempt has failed
)

func answerTo(stage *tarnv1.PavStage, bytes int64) answer {
	want, have := stage.Status.Node.Expansion, stage.Status.Pod.Expansion
	switch {
	case want == nil:
		return unasked
	case have == nil || have.Attempt != want.Attempt || have.Phase == tarnv1.StageExpansionRunning:
		return waiting
	case have.Phase == tarnv1.StageExpansionFailed && want.Capacity == bytes:
		return failed
	case have.Phase == tarnv1.StageExpansionSucceeded && want.Capacity >= bytes:
		return grown
	}
	return unasked
}

// answerNow is answerTo with a check of the block device if its pod ended well. A device smaller
// than requested has not grown. That attempt has failed, and short says so.
func (s *Stages) answerNow(stage *tarnv1.PavStage, bytes int64) (a answer, short string, err error) {
	if a = answerTo(stage, bytes); a != grown {
		return a, "", nil
	}
	size, err := s.noteGrowth(stage, bytes)
	switch {
	case err != nil || size >= bytes:
		return grown, "", err
	case stage.Status.Node.Expansion.Capacity != bytes:
		return unasked, "", nil
	}
	return failed, fmt.Sprintf("/pav/volume is a block device of %s after the expansion, but the claim requests %s; "+
		"the pods of volumeExpansion must make it that large, or the claim must request less", volume.Size(size), volume.Size(bytes)), nil
}

// ask writes the next request. It first removes /pav/error of an earlier pod, which would otherwise
// count as the next pod's.
func (s *Stages) ask(ctx context.Context, stage *tarnv1.PavStage, bytes int64) (*tarnv1.PavStage, error) {
	if err := os.Remove(s.errorFile(stage.UID)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Errorf(codes.Unavailable, "clear /pav/error: %v", err)
	}
	asked := stage.DeepCopy()
	request := &tarnv1.StageExpansionRequest{Attempt: 1, Capacity: bytes}
	if last := stage.Status.Node.Expansion; last != nil {
		request.Attempt = last.Attempt + 1
	}
	asked.Status.Node.Expansion = request
	err := s.patchStatus(ctx, stage, asked)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil, status.Errorf(codes.Unavailable, "PavStage %s has changed while it was asked to grow", stage.Name)
	}
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "ask PavStage %s to grow: %v", stage.Name, err)
	}
	return asked, nil
}

// tellOnce says whether the failure of the stage's last attempt was not reported yet: the attempt
// may have failed between two calls.
func (s *Stages) tellOnce(stage *tarnv1.PavStage) (first bool) {
	attempt := stage.Status.Node.Expansion.Attempt
	s.learn(stage.UID, func(k *knowledge) {
		first = k.reportedFailure != attempt
		k.reportedFailure = attempt
	})
	return first
}

// growthError is the kubelet's answer for a failed attempt. short is set for an attempt whose pod
// ended well.
func (s *Stages) growthError(stage *tarnv1.PavStage, short string) error {
	s.tellOnce(stage)
	if short != "" {
		return status.Error(codes.Internal, short)
	}
	text := stage.Status.Pod.Expansion.Message
	if written := resultdir.ReadError(s.pav(stage.UID)); written != "" {
		text = written + " (" + text + ")"
	}
	return status.Errorf(codes.Internal, "%s failed: %s", growthPod(stage), text)
}

func growthPod(stage *tarnv1.PavStage) string {
	if e := stage.Status.Pod.Expansion; e != nil && e.Name != "" {
		return fmt.Sprintf("node expansion pod %s/%s", e.Namespace, e.Name)
	}
	return "node expansion of PavStage " + stage.Name
}

func growthMessage(stage *tarnv1.PavStage) string {
	if e := stage.Status.Pod.Expansion; e != nil && e.Message != "" {
		return e.Message
	}
	return "it has not ended yet"
}

// grownSize is the size that a staged volume may have by now: a block device may have grown before
// the kubelet's request.
func grownSize(kept *record) int64 {
	if !kept.Block {
		return kept.Capacity
	}
	size, err := resultdir.DeviceSize(kept.Rdev)
	if err != nil {
		return kept.Capacity // inspect reports that it is missing
	}
	return max(size, kept.Capacity)
}

// noteGrowth records the present size of a block device and returns it. A device smaller than
// requested has not grown, whatever its pod reports. For a file system the pod's report counts.
func (s *Stages) noteGrowth(stage *tarnv1.PavStage, bytes int64) (int64, error) {
	unlock := s.folders.Lock(string(stage.UID))
	defer unlock()
	kept, err := s.readRecord(stage.UID)
	if err != nil {
		return 0, status.Errorf(codes.Unavailable, "read the record of PavStage %s: %v", stage.Name, err)
	}
	if !kept.Block {
		return bytes, nil
	}
	size, err := resultdir.DeviceSize(kept.Rdev)
	if err != nil {
		return 0, status.Errorf(codes.Unavailable, "read the size of /pav/volume: %v", err)
	}
	if size < bytes {
		return size, nil
	}
	kept.Capacity = size
	if err := s.writeRecord(stage.UID, kept); err != nil {
		return 0, status.Errorf(codes.Unavailable, "write the record of PavStage %s: %v", stage.Name, err)
	}
	return size, nil
}

// requestAgain repeats the request that a node expansion pod was working on when the volume was lost.
// Its work went to the lost volume, so another attempt must expand the one that is staged again.
func requestAgain(stage *tarnv1.PavStage, n *tarnv1.PavStageNodeStatus) {
	want, have := n.Expansion, stage.Status.Pod.Expansion
	if want == nil || have == nil || have.Attempt != want.Attempt || have.Phase != tarnv1.StageExpansionRunning {
		return
	}
	n.Expansion = &tarnv1.StageExpansionRequest{Attempt: want.Attempt + 1, Capacity: want.Capacity}
}
