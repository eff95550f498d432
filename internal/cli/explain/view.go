package explain

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// View is all that was read for one answer. Exactly one of Claim, Volume, Pod, Set and App is set:
// the object that the user asked for.
type View struct {
	Asked Object
	Now   time.Time
	// Twice says that this is the second read. It is made if the first finds something that a
	// running controller resolves within moments, and no object records since when it lasts.
	Twice  bool
	Claim  *claimView
	Volume *volumeView
	Pod    *podView
	// Claims are the claims of the pod, in its order.
	Claims []*claimView
	// Set is a pool. Then Claims are those of its filler claims that are not bound.
	Set *tarnv1.PersistentVolumeSet
	// Maker is the PavProvisioner of a pool's class, nil if another provisioner creates its
	// volumes.
	Maker *pavv1.PavProvisioner
	// App is an application. Then Claims are the claims of its volumes, in its order; while it is
	// being deleted, its other claims follow. Pods are a few of its pods that are not ready.
	// Workload is its Deployment, nil for none.
	App      *tarnv1.App
	Pods     []*podView
	Workload *appsv1.Deployment
	// Unread says why each object or list could not be read. An object that is neither in the view
	// nor in Unread does not exist.
	Unread []unread
	// Controller is the lease of Tarn's controller, and Deployment is its Deployment; each is nil
	// if it does not exist.
	Controller *coordinationv1.Lease
	Deployment *appsv1.Deployment
}

// unread is an object that could not be read. With an empty name it stands for all objects of a
// kind.
type unread struct {
	Object Object
	Why    string
}

// claimView is a claim and what it may wait for.
type claimView struct {
	Object Object
	// Claim is nil if no claim has that name.
	Claim *corev1.PersistentVolumeClaim
	// Class is the claim's class; Classes are all classes.
	Class   *storagev1.StorageClass
	Classes []*storagev1.StorageClass
	// Candidates are all volumes, read if the claim has no volume.
	Candidates []corev1.PersistentVolume
	// Nearest is the released volume among Candidates that came nearest, with the pods that may
	// still use it. It is nil if another volume came nearest, or if a provisioner will create one.
	Nearest *volumeView
	// Provisioners are all PavProvisioners, read if the claim has no volume.
	Provisioners []pavv1.PavProvisioner
	// Free is what is free for the class on each node, as Tarn's node agents have measured it. It is
	// read while the scheduler compares the claim with it.
	Free []freeOn
	// Users are the pods of its namespace that name the claim.
	Users []user
	// Events are the Events about the claim, newest last.
	Events []corev1.Event
	// Volume is the volume that the claim has or will get.
	Volume *volumeView
}

// freeOn is how many bytes are free on a node.
type freeOn struct {
	Node  string
	Bytes int64
}

// user is a pod that uses a claim, and what would create it again.
type user struct {
	Pod *corev1.Pod
	// Workload is the outermost known owner; its kind is empty for none.
	Workload Object
	// View has more about the pod if both it and its claim are being deleted; nil for others.
	View *podView
}

// volumeView is a volume, existing or not, and what creates, stages or removes it.
type volumeView struct {
	Name string
	// Volume, Record, Provisioner, Driver and Claim are nil if they do not exist.
	Volume      *corev1.PersistentVolume
	Record      *tarnv1.PavVolume
	Provisioner *pavv1.PavProvisioner
	Driver      *storagev1.CSIDriver
	// Class is read for a Released volume, because the class may have it recycled.
	Class *storagev1.StorageClass
	// Claim is the claim that the volume names. If there is no volume, the record names it.
	Claim *corev1.PersistentVolumeClaim
	// NoNamespace says that the namespace of the claim that a volume is reserved for does not
	// exist.
	NoNamespace bool
	// Claimants are the claims that name a released volume that the user asked for. They are in the
	// namespace of its former claim.
	Claimants []*corev1.PersistentVolumeClaim
	// Users are the pods that name the claim. They are read if the user asked for a volume that is
	// being deleted, or that was lost and is available again.
	Users []user
	// Last are the pods that may still use the volume through its former claim, read if that claim
	// is gone.
	Last []*corev1.Pod
	// Named are the claims and volumes that name the storage of a record without a volume.
	Named []Object
	// Step is the pod of the record's step.
	Step *podView
	// Backing are the claims that were made for the volume and that are not ready: not bound, being
	// deleted, or growing.
	Backing []*claimView
	Stages  []stageView
	Events  []corev1.Event
}

// claimRef returns the claim that a volume names. If there is no volume, it returns the record's
// claim; nil for none.
func (v *volumeView) claimRef() *corev1.ObjectReference {
	switch {
	case v.Volume != nil:
		return v.Volume.Spec.ClaimRef
	case v.Record != nil:
		of := v.Record.Spec.Claim
		return &corev1.ObjectReference{Namespace: of.Namespace, Name: of.Name, UID: of.UID}
	}
	return nil
}

// stageView is a stage, and the pod of its step.
type stageView struct {
	Stage *tarnv1.PavStage
	Pod   *podView
}

// podView is a pod, its node, its Events and its log.
type podView struct {
	Pod *corev1.Pod
	// Node and Drivers are nil if they were not read or do not exist. Drivers are the CSI drivers
	// that the node's kubelet has registered.
	Node    *corev1.Node
	Drivers []string
	// NodeGone says that the pod's node no longer exists.
	NodeGone bool
	// Home is the node that alone has a volume of a pod without a node.
	Home   home
	Events []corev1.Event
	// Log holds the last lines of the container LogOf.
	Log   []string
	LogOf string
}

// home is a node that alone has a volume. Its zero value stands for none. Node is nil if it does
// not exist (Gone) or was not read.
type home struct {
	Volume, Name string
	Node         *corev1.Node
	Gone         bool
}

// unseen says whether exactly this object could not be read, or exactly this list if the name is
// empty.
func (v *View) unseen(o Object) bool {
	return slices.ContainsFunc(v.Unread, func(u unread) bool { return u.Object == o })
}

// unknown says whether an object may exist all the same, because it could not be read.
func (v *View) unknown(kind Kind, namespace, name string) bool {
	for _, u := range v.Unread {
		if o := u.Object; o.Kind == kind && (o.Name == "" || o.Name == name) && (o.Namespace == "" || o.Namespace == namespace) {
			return true
		}
	}
	return false
}
