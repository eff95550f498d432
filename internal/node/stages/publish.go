package stages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/node/hangguard"
	"tarn.dev/tarn/internal/node/mounts"
	words "tarn.dev/tarn/internal/volume"
)

// publishWait is how long one publish call waits for the staging pod. The kubelet would wait two
// minutes. But until a call ends, the kubelet neither shows the user the cause of the wait nor
// finishes a deleted pod. After an answer it calls again.
const publishWait = 25 * time.Second

// heldWait is how long a call waits for the end of a stage that is still mounted for pods. The
// kubelet makes one call at a time for a volume, so it unmounts for those pods only after this
// call.
const heldWait = 5 * time.Second

// Request is one publish call.
type Request struct {
	Driver   string
	Handle   string
	Target   string
	ReadOnly bool
	// Pod is the pod of the target.
	Pod PodRef
	// Secrets are the keys of the volume's Secret, which the kubelet has read; nil if the volume
	// names none. They must appear in no message.
	Secrets map[string]string
}

// Publish makes the volume available at the target. Errors are gRPC statuses.
//
// After a final error the kubelet forgets the target; after any other error it will unpublish it.
// So nothing of the target may be left before a final error.
func (s *Stages) Publish(ctx context.Context, r Request) error {
	unlock, err := s.lockTarget(r.Target)
	if err != nil {
		return err
	}
	defer unlock()
	waiting, cancel := context.WithTimeout(ctx, publishWait)
	defer cancel()
	err = s.publish(waiting, r)
	if err == nil || !final(err) {
		return err
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if left := s.release(ctx, r.Target, false); left != nil {
		return status.Errorf(codes.Unavailable, "%s; the mount that was started is not undone yet: %s", message(err), message(left))
	}
	return err
}

// final says whether the kubelet gives up the attempt after this error.
func final(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

func message(err error) string { return status.Convert(err).Message() }

func (s *Stages) publish(ctx context.Context, r Request) error {
	// A recorded target may belong to a running pod, if the kubelet was restarted. It is served
	// again whatever the state of the provisioner.
	known, err := s.findIn(ctx, s.Cached, r.Target)
	if err != nil {
		return err
	}
	if known != nil && !deleting(known) && known.Status.Node.Phase == tarnv1.StageStaged {
		mounted, err := s.mount(ctx, known, r)
		if err != nil || mounted {
			return err
		}
	}
	volume, err := s.findVolume(ctx, r.Driver, r.Handle, r.Target)
	if err != nil {
		return err
	}
	provisioner, err := s.checkProvisioner(ctx, r.Driver)
	if err != nil {
		return err
	}
	r.ReadOnly = r.ReadOnly || words.OnlyRead(volume)
	switch {
	case volume.Spec.CSI.NodePublishSecretRef == nil:
		r.Secrets = nil
	case r.Secrets == nil:
		r.Secrets = map[string]string{} // the Secret has no keys
	}
	if err := checkSecrets(r.Secrets); err != nil {
		return err
	}
	a := attempt{Stages: s, request: r, claim: volume.Spec.ClaimRef}
	if a.want, a.joins, err = s.wanted(ctx, provisioner, volume, r); err != nil {
		return err
	}
	return a.run(ctx)
}

// attempt is one running publish call.
type attempt struct {
	*Stages
	request Request
	claim   *corev1.ObjectReference
	want    *tarnv1.PavStage
	// joins: want exists, and is not created again when it is deleted. The next call decides which
	// stage to use.
	joins bool
	sub   *subscription
	// joined are the stages this call has waited for. If one fails, so does the call. A stage that
	// had failed before is only waited for until it is deleted.
	joined map[types.UID]bool
}

func (a *attempt) run(ctx context.Context) error {
	name := a.want.Name
	release := a.publishing.Hold(name)
	defer func() { release(); a.queue.add(name) }() // the worker ends an unused stage
	var end func()
	a.sub, end = a.calls.subscribe(name)
	defer end()
	a.joined = map[types.UID]bool{}
	held := time.NewTimer(heldWait)
	defer held.Stop()

	known := &tarnv1.PavStage{}
	if a.joins {
		known = a.want
	} else if err := a.Cached.Get(ctx, client.ObjectKey{Name: name}, known); err != nil {
		known = nil
	}
	for {
		changed := a.sub.next()
		var wait bool
		var err error
		known, wait, err = a.step(ctx, a.sub.newest(known))
		if ctx.Err() != nil {
			return a.late(known, ctx.Err())
		}
		if err != nil || known == nil && !wait {
			return err
		}
		if !wait {
			continue
		}
		var answer <-chan time.Time
		if known != nil && deleting(known) && ptr.Deref(known.Status.Node.InUse, false) {
			answer = held.C
		}
		select {
		case <-changed:
		case <-answer:
			return a.late(known, context.DeadlineExceeded)
		case <-ctx.Done():
			return a.late(known, ctx.Err())
		}
	}
}

// step does the next step for the stage and returns its latest known state. The call is done if
// that is nil and wait is false.
func (a *attempt) step(ctx context.Context, known *tarnv1.PavStage) (now *tarnv1.PavStage, wait bool, err error) {
	if known == nil && a.joins {
		return nil, false, status.Errorf(codes.Unavailable, "PavStage %s has ended; the volume is staged again when the kubelet retries", a.want.Name)
	}
	if known == nil {
		known, err = a.create(ctx)
		return known, known == nil, err
	}
	if text, failed := a.sub.failure(known.UID); failed && a.joined[known.UID] {
		return nil, false, status.Error(codes.Internal, text)
	}
	if deleting(known) || known.Status.Node.Phase == tarnv1.StageFailed {
		return known, true, nil
	}
	if known.Spec.VolumeUID != a.want.Spec.VolumeUID || known.Spec.NodeName != a.NodeName {
		return nil, false, status.Errorf(codes.Internal, "PavStage %s is for another volume or node; delete it", known.Name)
	}
	if err := a.checkClaim(ctx, known); err != nil {
		return nil, false, err
	}
	if !a.joined[known.UID] {
		if err := a.provide(ctx, known); err != nil {
			return nil, false, err
		}
	}
	a.joined[known.UID] = true
	if !slices.Contains(known.Status.Node.Targets, a.request.Target) {
		known, err = a.addTarget(ctx, known)
		return known, known == nil, err
	}
	if known.Status.Node.Phase == tarnv1.StageLost && recoveryOf(known) == tarnv1.RecoveryNone {
		delete(a.joined, known.UID)
		return known, true, a.lose(ctx, known, known.Status.Node.Loss.Message)
	}
	if known.Status.Node.Phase != tarnv1.StageStaged {
		return known, true, nil
	}
	mounted, err := a.mount(ctx, known, a.request)
	if err != nil || mounted {
		return nil, false, err
	}
	delete(a.joined, known.UID) // its volume is lost, which is no failure of this call
	return known, true, nil
}

// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages/status,verbs=patch

// create creates the stage, or returns the existing one.
func (a *attempt) create(ctx context.Context) (*tarnv1.PavStage, error) {
	stage := a.want.DeepCopy()
	err := a.Writer.Create(ctx, stage)
	if apierrors.IsAlreadyExists(err) {
		return a.liveStage(ctx, a.want.Name)
	}
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "create PavStage %s: %v", stage.Name, err)
	}
	return stage, nil
}

// provide makes the directory of a stage that waits for its staging pod, with the volume's Secret
// in it. A stage that has a Secret already gets its present keys: of all pods, the last one counts.
// A lost stage gets it for its next staging pod, because a node that loses its mounts loses it too.
func (a *attempt) provide(ctx context.Context, stage *tarnv1.PavStage) error {
	unlock := a.folders.Lock(string(stage.UID))
	defer unlock()
	current, err := readStage(ctx, a.Cached, stage.Name)
	if err != nil {
		return err
	}
	if current != nil && current.UID == stage.UID && deleting(current) {
		return nil // the worker may have removed all of it already
	}
	phase := stage.Status.Node.Phase
	waits := phase == "" || phase == tarnv1.StageWaiting
	if a.request.Secrets != nil {
		kept, err := a.hasSecrets(stage.UID)
		if err == nil && (waits || kept || phase == tarnv1.StageLost) {
			err = a.keepSecrets(stage.UID, a.request.Secrets)
		}
		if err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
	}
	if !waits {
		return nil
	}
	if err := a.makeFolder(stage.UID); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	a.queue.add(stage.Name) // the worker watches the directory from now on
	return nil
}

// liveStage reads a stage from the API server; nil if it does not exist.
func (s *Stages) liveStage(ctx context.Context, name string) (*tarnv1.PavStage, error) {
	return readStage(ctx, s.Live, name)
}

func readStage(ctx context.Context, reader client.Reader, name string) (*tarnv1.PavStage, error) {
	stage := &tarnv1.PavStage{}
	err := reader.Get(ctx, client.ObjectKey{Name: name}, stage)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "read PavStage %s: %v", name, err)
	}
	return stage, nil
}

// addTarget records the target, unless the stage has changed since it was read.
func (a *attempt) addTarget(ctx context.Context, known *tarnv1.PavStage) (*tarnv1.PavStage, error) {
	if err := a.writeUse(known.UID, a.request.Target, use{PodRef: a.request.Pod, ReadOnly: a.request.ReadOnly}); err != nil {
		return nil, status.Errorf(codes.Unavailable, "record which pod the target is for: %v", err)
	}
	stage := known.DeepCopy()
	stage.Status.Node.Targets = append(stage.Status.Node.Targets, a.request.Target)
	stage.Status.Node.Taken = stage.Spec.AheadFor != nil
	if stage.Status.Node.Phase == "" {
		stage.Status.Node.Phase = tarnv1.StageWaiting
	}
	err := a.patchStatus(ctx, known, stage)
	if apierrors.IsNotFound(err) {
		a.noteGone(known) // its event may have come before what was kept for it just now
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return a.liveStage(ctx, a.want.Name)
	}
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "record the target in PavStage %s: %v", stage.Name, err)
	}
	return stage, nil
}

// patchStatus writes the difference, unless something else was written since.
func (s *Stages) patchStatus(ctx context.Context, old, changed *tarnv1.PavStage) error {
	err := s.Writer.Status().Patch(ctx, changed, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
	if err == nil {
		s.calls.tell(changed) // a call that waits for this need not wait for its event too
	}
	return err
}

// mount bind-mounts the staged volume at the target. A volume that is no longer what was staged is
// not mounted.
func (s *Stages) mount(ctx context.Context, stage *tarnv1.PavStage, r Request) (mounted bool, err error) {
	unlock := s.folders.Lock(string(stage.UID))
	defer unlock()
	current, err := readStage(ctx, s.Cached, stage.Name)
	if err != nil {
		return false, err
	}
	if current == nil || current.UID == stage.UID && deleting(current) {
		return false, nil // the worker may have unmounted all of it already
	}
	volume, _, lost, err := s.open(stage)
	if errors.Is(err, hangguard.ErrNoAnswer) {
		return false, status.Error(codes.Unavailable, noAnswer(stage))
	}
	if err != nil {
		return false, status.Errorf(codes.Unavailable, "read the state of volume %s: %v", stage.Spec.VolumeName, err)
	}
	if volume != nil {
		defer func() { _ = volume.File.Close() }()
	}
	if lost != nil {
		s.doubt(stage.UID, stage.Name) // the worker handles it; this call waits for the result
		return false, nil
	}
	if err := mounts.EnsureBind(s.Mounts, volume.File, r.Target, r.ReadOnly || stage.Spec.ReadOnly); err != nil {
		return false, status.Errorf(codes.Unavailable, "mount volume %s: %v", stage.Spec.VolumeName, err)
	}
	return true, nil
}

// noAnswer is the message about a server that hangs. The server may only be slow, so the agent
// changes nothing.
func noAnswer(stage *tarnv1.PavStage) string {
	return "the server of volume " + stage.Spec.VolumeName + " does not answer; check what the staging pod or the storage waits for"
}

// lose marks a stage whose volume is lost as failed. The worker then ends it, so that the volume
// can be staged again.
func (s *Stages) lose(ctx context.Context, stage *tarnv1.PavStage, why string) error {
	err := s.setNode(ctx, stage.DeepCopy(), func(n *tarnv1.PavStageNodeStatus) {
		n.Phase, n.Message = tarnv1.StageFailed, lostMessage(why)
	})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // it has changed; the next step reads its new state
	}
	if err != nil {
		return status.Errorf(codes.Unavailable, "record that volume %s is lost: %v", stage.Spec.VolumeName, err)
	}
	return nil
}

func lostMessage(why string) string {
	return "the staged volume is lost: " + why + "; it is staged again"
}

// late is the answer after the timeout.
func (a *attempt) late(known *tarnv1.PavStage, cause error) error {
	text := fmt.Sprintf("waiting for PavStage %s", a.want.Name)
	if known != nil {
		text = "waiting for " + describe(known)
		if deleting(known) {
			text = "waiting for the end of an earlier stage: " + describe(known)
		} else if a.asker.Overdue(question(theVolume, known)) {
			text += ": " + noAnswer(known)
		}
	}
	if errors.Is(cause, context.Canceled) {
		return status.Error(codes.Canceled, text)
	}
	return status.Error(codes.Unavailable, text)
}

// checkClaim rejects a first pod on a claim that is being deleted, as the stage shows. Usually the
// scheduler has rejected the pod already. It has not if it decided before the deletion, or if the
// pod names its node. A pod that has ever started is served: the claim is kept for it, and the node
// may be restarting under it.
func (a *attempt) checkClaim(ctx context.Context, stage *tarnv1.PavStage) error {
	ref := a.request.Pod
	if a.claim == nil || a.claim.UID == "" || stage.Status.Pod.ClaimDeleted != a.claim.UID || ref.Name == "" {
		return nil // the kubelet mounts no volume without a claim, and says whose it is
	}
	pod, err := kube.Get(ctx, a.Live, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.Pod{})
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	if pod != nil && pod.UID == ref.UID && words.Started(pod) {
		return nil
	}
	return status.Errorf(codes.FailedPrecondition, "can't start pod %s/%s because it's using claim %s/%s that is being deleted",
		ref.Namespace, ref.Name, a.claim.Namespace, a.claim.Name)
}
