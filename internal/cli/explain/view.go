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

// View is all that was read for one answer. Of what is asked for, one is set.
type View struct {
	Asked Object
	Now   time.Time
	// Twice says that it is the second look, made when the first found something that
	// passes within moments where a controller runs, and no object tells since when.
	Twice  bool
	Claim  *claimView
	Volume *volumeView
	Pod    *podView
	// Claims are those of the pod, in its order.
	Claims []*claimView
	// Set is a pool, and Claims are then those of its filler claims that are not bound.
	Set *tarnv1.PersistentVolumeSet
	// Maker is the PavProvisioner of a pool's class, nil if another makes its volumes.
	Maker *pavv1.PavProvisioner
	// App is an application; Claims are then those of its volumes, in its order, and
	// after them, while it is being deleted, those that it mounts no more, Pods those of
	// its pods that are told of, and Workload its Deployment, nil for none.
	App      *tarnv1.App
	Pods     []*podView
	Workload *appsv1.Deployment
	// Unread says of each object or list that could not be read why not. What is not
	// in the view and not here does not exist.
	Unread []unread
	// Controller is the lease of Tarn's controller, Deployment what runs it; nil where
	// there is none.
	Controller *coordinationv1.Lease
	Deployment *appsv1.Deployment
}

// unread is an object, or for an empty name all of a kind, that could not be read.
type unread struct {
	Object Object
	Why    string
}

// claimView is a claim and what it may wait for.
type claimView struct {
	Object Object
	// Claim is nil where there is none of the name.
	Claim *corev1.PersistentVolumeClaim
	// Class is the claim's, Classes are all.
	Class   *storagev1.StorageClass
	Classes []*storagev1.StorageClass
	// Candidates are all volumes, read where the claim has to be given one, or has lost a
	// folder that lay beside those of others.
	Candidates []corev1.PersistentVolume
	// Nearest is of Candidates the released one that came nearest, with who may still have
	// it; nil where another did, or a volume is to be made.
	Nearest *volumeView
	// Provisioners are all PavProvisioners, read for the same reason.
	Provisioners []pavv1.PavProvisioner
	// Users are the pods of its namespace that name the claim.
	Users []user
	// Events are about the claim, newest last.
	Events []corev1.Event
	// Volume is the one that the claim has or will get.
	Volume *volumeView
}

// user is a pod that uses a claim, and what would make it again.
type user struct {
	Pod *corev1.Pod
	// Workload is the outermost owner that is known; its kind is empty for none.
	Workload Object
	// View is what is told of a pod that is being deleted while its claim is; nil for
	// others.
	View *podView
}

// volumeView is a volume, made or to be made, and what makes, stages or removes it.
type volumeView struct {
	Name string
	// Volume, Record, Provisioner, Driver and Claim are nil where there are none.
	Volume      *corev1.PersistentVolume
	Record      *tarnv1.PavVolume
	Provisioner *pavv1.PavProvisioner
	Driver      *storagev1.CSIDriver
	// Class is read of a volume that is Released, which it may have recycled.
	Class *storagev1.StorageClass
	// Claim is the one that the volume names, or where there is no volume the record's.
	Claim *corev1.PersistentVolumeClaim
	// NoNamespace says that there is no namespace of the claim that a volume is reserved for.
	NoNamespace bool
	// Claimants are the claims that name a released volume that is asked for, of the namespace
	// of the claim that it was of.
	Claimants []*corev1.PersistentVolumeClaim
	// Users are the pods that name the claim, read where a volume is asked for that is to go,
	// or was lost and is there again.
	Users []user
	// Last are the pods that may still use the volume by the claim that it was of, read
	// where that is gone.
	Last []*corev1.Pod
	// Named are the claims and volumes that name the storage of a record which has no volume.
	Named []Object
	// Step is the pod of the record's step.
	Step   *podView
	Stages []stageView
	Events []corev1.Event
}

// claimRef is the claim that a volume names, or where there is no volume that which its
// record is of; nil for none.
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

// stageView is a stage with the pod of its step.
type stageView struct {
	Stage *tarnv1.PavStage
	Pod   *podView
}

// podView is a pod, its node, and what is told of it.
type podView struct {
	Pod *corev1.Pod
	// Node and Drivers are nil where they were not read or are not there; Drivers are
	// the CSI drivers that the kubelet of the node has registered.
	Node    *corev1.Node
	Drivers []string
	// NodeGone says that the pod was given a node that is not there any more.
	NodeGone bool
	Events   []corev1.Event
	// Log are the last lines of LogOf, a container.
	Log   []string
	LogOf string
}

// unseen says whether that very object, or for no name that very list, could not be read.
func (v *View) unseen(o Object) bool {
	return slices.ContainsFunc(v.Unread, func(u unread) bool { return u.Object == o })
}

// unknown says whether an object was not seen because it could not be read.
func (v *View) unknown(kind Kind, namespace, name string) bool {
	for _, u := range v.Unread {
		if o := u.Object; o.Kind == kind && (o.Name == "" || o.Name == name) && (o.Namespace == "" || o.Namespace == namespace) {
			return true
		}
	}
	return false
}
