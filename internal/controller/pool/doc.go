// Package pool keeps as many spare volumes as a PersistentVolumeSet asks for. Ordinary dynamic
// provisioning creates a spare. The controller creates a filler claim in Tarn's namespace, and
// the provisioner of the template's class makes a volume for it. The controller then detaches
// the volume from that claim:
//
//	claim --bound--> marked --claim gone--> freed --Available--> spare
//
// marked: the reclaim policy is Retain, so that the volume survives the deletion of its claim.
// Labels, annotations and class are the template's.
//
// freed: claimRef is cleared. Retain stays until the volume is Available, because provisioners
// destroy by phase and policy and ignore claimRef. Then the volume gets its intended policy.
//
// Filler claims have a class of their own, a copy of the template's. In the template's class
// the binder would bind a filler claim to an existing spare, and the pool would consume itself.
// Not every Available volume is a spare. A claim may name a volume that has lost its claimRef,
// and the label for deletion protection keeps one. To remove a spare, the controller points its
// claimRef at a claim that does not exist. The binder then finds the volume released, and its
// own provisioner destroys it.
//
// The controller writes filler claims, filler pods and filler classes, the volumes on this way,
// spare volumes to be removed, and the status of PersistentVolumeSets. It destroys no storage,
// and knows no other controller. It knows a provisioner only by its class.
package pool
