package pool

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// Plan is what to do, in this order. A failed action does not stop the next ones, except within
// Together.
type Plan struct {
	Actions []Action
	// Again is when to reconcile if no event arrives; zero means never.
	Again time.Time
}

// Action is one write. It is one of the types below, each of which may be repeated without
// harm.
type Action interface{ action() }

type (
	// Hold adds the pool's finalizer to the set, LetGo removes it.
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
	// Change writes a volume, if it is unchanged since it was read.
	Change struct {
		From, To *corev1.PersistentVolume
		// Grave means that the change cannot be undone.
		Grave bool
	}
	// Remove deletes the object of a volume, if it is unchanged since it was read.
	Remove struct{ Volume *corev1.PersistentVolume }
	// WriteStatus writes the set's status.
	WriteStatus struct {
		Status tarnv1.PersistentVolumeSetStatus
	}
	// Follow writes the minimumReplicas that the scaler requests to the set.
	Follow struct{ Minimum int32 }
	// WriteScaler writes the status of a scaler.
	WriteScaler struct {
		Scaler *tarnv1.PersistentVolumeSetScaler
		Status tarnv1.PersistentVolumeSetScalerStatus
	}
	// Post emits an Event about the set.
	Post struct{ Type, Reason, Note string }
	// Together is done up to the first action that fails, because each depends on the one
	// before.
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

// grave reports whether a plan must rest on the API server's state. With a stale cache it could
// order one volume too many, or destroy a volume that has changed since.
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

// all returns the single actions of a plan.
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
