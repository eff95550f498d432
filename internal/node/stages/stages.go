package stages

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/node/hangguard"
	"tarn.dev/tarn/internal/node/keymutex"
	"tarn.dev/tarn/internal/node/mounts"
)

// NodeField is the field selector with which the agent sees only its own stages.
const NodeField = "spec.nodeName"

// Config is what Stages needs; every field must be set.
type Config struct {
	// Writer writes PavStages and their status.
	Writer client.Client
	// Live bypasses the cache. It can read only pods of this node.
	Live client.Reader
	// Cached reads the PavStages of this node, and PavProvisioners.
	Cached client.Reader
	// Mounts is the mount table.
	Mounts mounts.Mounter
	// Folder contains one directory per stage, named by UID.
	Folder string
	// KubeletFolder is the kubelet's root directory; every target lies in it.
	KubeletFolder string
	// NodeName is this node.
	NodeName string
	// Now is the clock.
	Now func() time.Time
}

// Stages serves the volumes of PavProvisioners on one node.
type Stages struct {
	Config

	calls      broadcast        // events of stages, for publish and unpublish calls
	targets    keymutex.Mutex   // by target: one call at a time
	folders    keymutex.Mutex   // by stage uid: mounting against unmounting
	publishing keymutex.Counter // by stage name: publish calls in flight
	queue      queue            // stages to reconcile without an event
	ready      readyWatch
	processes  processes
	asker      hangguard.Asker // limits queries to the servers of the volumes

	mu sync.Mutex
	// known is what this process knows of the stages.
	known map[types.UID]knowledge
	// orphans are the stages that ended without this agent and have left their directories, by
	// name.
	orphans map[string][]types.UID
	// goneSince is when the pod of a target was first seen to be gone; only ReleaseAbandoned uses
	// it, without the lock.
	goneSince map[string]time.Time
}

// knowledge is what this process knows of one stage beyond its record and status. A restart of the
// agent loses it.
type knowledge struct {
	// checked is set while the volume is known to be correct.
	checked *checked
	// pods are the ends of the stage's staging pods, by UID. A stage that was lost has had several.
	// The map is never changed in place.
	pods map[types.UID]podEnd
	// reportedFailure is the failed attempt at growing that the kubelet was told of.
	reportedFailure int32
	// busySince is since when each attempt to unmount the ending stage has found its mounts busy.
	// Mounts of the unstaging pod get their own time.
	busySince time.Time
}

// podEnd is how a staging pod has ended, before the kubelet reports it.
type podEnd struct {
	// succeeded says that the container runtime reports a pod that ended well.
	succeeded bool
	// failure says how a pod ended that should stay; empty if it is not known to have ended.
	failure string
	// text is the content of /pav/error when the pod's first container failed.
	text string
}

// New returns Stages that does not work yet: see Watch and Register.
func New(config Config) (*Stages, error) {
	s := &Stages{Config: config, processes: newProcesses()}
	if err := s.ready.open(s.queue.add); err != nil {
		return nil, err
	}
	return s, nil
}

// Watch passes events about PavStages from the informer to publish and unpublish calls.
func (s *Stages) Watch(informer interface {
	AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error)
}) error {
	see := func(object any, gone bool) {
		if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		stage, ok := object.(*tarnv1.PavStage)
		if !ok {
			return
		}
		s.calls.see(stage, gone)
		if gone {
			s.noteGone(stage)
		}
	}
	_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { see(object, false) },
		UpdateFunc: func(_, object any) { see(object, false) },
		DeleteFunc: func(object any) { see(object, true) },
	})
	return err
}

// folder is the directory of the stage's record and its pav directory.
func (s *Stages) folder(uid types.UID) string {
	return filepath.Join(s.Folder, string(uid))
}

// pav is the directory that is the staging pod's /pav.
func (s *Stages) pav(uid types.UID) string {
	return filepath.Join(s.Folder, string(uid), "pav")
}

// recall gives what is known of a stage; the zero value if nothing is.
func (s *Stages) recall(stage types.UID) knowledge {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[stage]
}

// learn changes what is known of a stage.
func (s *Stages) learn(stage types.UID, change func(*knowledge)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[stage]
	change(&k)
	if s.known == nil {
		s.known = map[types.UID]knowledge{}
	}
	s.known[stage] = k
}

// forget drops what is known of a stage that ends.
func (s *Stages) forget(stage *tarnv1.PavStage) {
	s.asker.Forget(question(theVolume, stage))
	s.asker.Forget(question(theSize, stage))
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, stage.UID)
}

// lockTarget rejects a target outside the kubelet's directory, and one for which another call is
// under way.
func (s *Stages) lockTarget(target string) (unlock func(), err error) {
	if !mounts.Inside(target, s.KubeletFolder) || target == s.KubeletFolder {
		return nil, status.Errorf(codes.InvalidArgument, "target %s is not in the kubelet's directory %s; set the node agent's --kubelet-dir to the kubelet's root directory", target, s.KubeletFolder)
	}
	unlock, ok := s.targets.TryLock(target)
	if !ok {
		return nil, status.Errorf(codes.Aborted, "another call for target %s is under way", target)
	}
	return unlock, nil
}

// recorded says whether this agent can have written a target in a status. Nothing outside the
// kubelet's directory is ever mounted or unmounted.
func (s *Stages) recorded(target string) bool {
	return target == filepath.Clean(target) && target != s.KubeletFolder && mounts.Inside(target, s.KubeletFolder)
}

// deleting says whether the end of the stage is requested.
func deleting(stage *tarnv1.PavStage) bool { return !stage.DeletionTimestamp.IsZero() }

// workers is how many stages are reconciled at once. A step is short, except for two waits: a
// server that does not answer (ServerAnswer or slowAnswer), and an unmount that writes much data
// back. Enough workers must be left for the other stages then.
const workers = 16

// Register adds the node's part of the PavStage protocol to the manager. The manager's cache must
// contain only the PavStages of this node.
func (s *Stages) Register(m manager.Manager) error {
	for _, run := range []manager.RunnableFunc{s.ready.run, s.releaseLoop, s.watchMounts, s.watchServers, s.watchProcesses} {
		if err := m.Add(run); err != nil {
			return err
		}
	}
	return builder.ControllerManagedBy(m).
		Named("node-stages").
		For(&tarnv1.PavStage{}).
		WatchesRawSource(source.Func(s.queue.start)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, RateLimiter: kube.RateLimiter()}).
		Complete(reconcile.Func(s.Reconcile))
}

// Reconcile makes the next step on the node's side of a stage.
func (s *Stages) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	view, err := s.gather(ctx, request.Name)
	if err == nil {
		err = s.apply(ctx, view.Stage, plan(view))
	}
	err = errors.Join(err, s.collectOrphans(ctx, request.Name))
	return kube.Outcome(err, time.Time{}, s.Now())
}
