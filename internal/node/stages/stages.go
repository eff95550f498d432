package stages

import (
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
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

	hub     hub
	targets keymutex.Mutex   // by target: one call at a time
	folders keymutex.Mutex   // by stage uid: mounting against unmounting
	held    keymutex.Counter // by stage name: publish calls in flight
	wakes   wakes            // stages to reconcile without an event
	ready   readyWatch
	firsts  firsts
	looks   hangguard.Asker // what the servers of the volumes are asked

	mu sync.Mutex
	// trusted are the stages whose volume this process has found correct, with the signs by which
	// to doubt that.
	trusted map[types.UID]watched
	// died are the staging pods, by UID, that the kernel or the container runtime reports as ended
	// although they should stay.
	died map[types.UID]death
	// words are the error texts of staging pods when their first container failed, by the pod's
	// UID.
	words map[types.UID]firstWord
	// ended are the staging pods, by UID, that the container runtime reports as ended well, with
	// the UID of their stage.
	ended map[types.UID]types.UID

	// orphans are the stages that ended without this agent and have left their directories, by
	// name.
	orphans map[string][]types.UID

	// toldFailed is, by stage, the failed attempt at growing that the kubelet was told of.
	toldFailed map[types.UID]int32

	// busySince is since when each attempt to unmount an ending stage has found its mounts busy.
	busySince map[types.UID]time.Time

	// goneSince is when the pod of a target was first seen to be gone; only Reap uses it.
	goneSince map[string]time.Time
}

// New returns Stages that does not work yet: see Watch and Register.
func New(config Config) (*Stages, error) {
	s := &Stages{
		Config:    config,
		trusted:   map[types.UID]watched{},
		died:      map[types.UID]death{},
		words:     map[types.UID]firstWord{},
		ended:     map[types.UID]types.UID{},
		orphans:   map[string][]types.UID{},
		busySince: map[types.UID]time.Time{},
		firsts:    newFirsts(),
	}
	if err := s.ready.open(s.wakeUp); err != nil {
		return nil, err
	}
	return s, nil
}

// Watch passes events about PavStages from the informer to publish and unpublish calls.
func (s *Stages) Watch(informer interface {
	AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error)
}) error {
	for _, handler := range []toolscache.ResourceEventHandler{s.hub.handler(), toolscache.ResourceEventHandlerFuncs{DeleteFunc: s.noteGone}} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	return nil
}

// folder is the directory of the stage's record and its pav directory.
func (s *Stages) folder(uid types.UID) string {
	return filepath.Join(s.Folder, string(uid))
}

// pav is the directory that is the staging pod's /pav.
func (s *Stages) pav(uid types.UID) string {
	return filepath.Join(s.Folder, string(uid), "pav")
}

// wakeUp enqueues the stage without an event. It never blocks.
func (s *Stages) wakeUp(name string) { s.wakes.add(name) }

// recorded says whether this agent can have written a target in a status. Nothing outside the
// kubelet's directory is ever mounted or unmounted.
func (s *Stages) recorded(target string) bool {
	return target == filepath.Clean(target) && target != s.KubeletFolder && mounts.Inside(target, s.KubeletFolder)
}

// deleting says whether the end of the stage is requested.
func deleting(stage *tarnv1.PavStage) bool { return !stage.DeletionTimestamp.IsZero() }
