package pool

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// Plan is what to do, in this order. What one action comes to does not matter to the
// others, but for those that are Together.
type Plan struct {
	Actions []Action
	// Again is when to look again though no event tells; zero means not at all.
	Again time.Time
}

// Action is one write. It is one of the types below, each of which may be done twice
// without harm.
type Action interface{ action() }

type (
	// Hold puts the pool's finalizer on the set, LetGo takes it off.
	Hold  struct{}
	LetGo struct{}
	// MakeClass creates the filler class, DropClass deletes it.
	MakeClass struct{ Class *storagev1.StorageClass }
	DropClass struct{ Class *storagev1.StorageClass }
	// Order creates a filler claim.
	Order struct{ Claim *corev1.PersistentVolumeClaim }
	// Dismiss deletes a filler claim.
	Dismiss struct{ Claim *corev1.PersistentVolumeClaim }
	// StartPod creates a filler pod, StopPod deletes one.
	StartPod struct{ Pod *corev1.Pod }
	StopPod  struct{ Pod *corev1.Pod }
	// Change writes a volume that must be as it was when it was read.
	Change struct {
		From, To *corev1.PersistentVolume
		// Grave says that it cannot be taken back.
		Grave bool
	}
	// Remove deletes the object of a volume that must be as it was when it was read.
	Remove struct{ Volume *corev1.PersistentVolume }
	// WriteStatus writes the set's status.
	WriteStatus struct {
		Status tarnv1.PersistentVolumeSetStatus
	}
	// Follow writes the set's minimumReplicas, as its scaler has them.
	Follow struct{ Minimum int32 }
	// WriteScaler writes the status of a scaler.
	WriteScaler struct {
		Scaler *tarnv1.PersistentVolumeSetScaler
		Status tarnv1.PersistentVolumeSetScalerStatus
	}
	// Post posts an Event about the set.
	Post struct{ Type, Reason, Note string }
	// Together is done up to the first action that fails: each rests on the one before.
	Together []Action
)

func (Hold) action()        {}
func (LetGo) action()       {}
func (MakeClass) action()   {}
func (DropClass) action()   {}
func (Order) action()       {}
func (Dismiss) action()     {}
func (StartPod) action()    {}
func (StopPod) action()     {}
func (Change) action()      {}
func (Remove) action()      {}
func (WriteStatus) action() {}
func (Follow) action()      {}
func (WriteScaler) action() {}
func (Post) action()        {}
func (Together) action()    {}

// grave says that a plan must rest on what the API server has: a cache that is behind
// would make a volume too many, or destroy one that is not what it was.
func (p Plan) grave() bool {
	return slices.ContainsFunc(p.all(), func(a Action) bool {
		switch a := a.(type) {
		case Order, Dismiss, Remove, LetGo:
			return true
		case Change:
			return a.Grave
		}
		return false
	})
}

// all gives the single actions of a plan.
func (p Plan) all() []Action {
	var all []Action
	for _, a := range p.Actions {
		if several, ok := a.(Together); ok {
			all = append(all, several...)
		} else {
			all = append(all, a)
		}
	}
	return all
}

func (p *Plan) add(actions ...Action) { p.Actions = append(p.Actions, actions...) }
