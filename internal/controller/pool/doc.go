// Package pool keeps as many spare volumes as a PersistentVolumeSet asks for. A spare
// is made by ordinary dynamic provisioning: a filler claim in Tarn's namespace has a
// volume made by whatever provisioner the template's class names, and the volume then
// changes hands, from that claim to nobody:
//
//	claim --bound--> marked --claim gone--> nobody's --Available--> spare
//
// marked: the reclaim policy is Retain, so that nothing destroys the volume when its
// claim goes; labels, annotations and class are the template's. nobody's: claimRef is
// cleared, and Retain stays until the volume is Available, as provisioners destroy by
// phase and policy and do not look at claimRef. Then it gets the policy it is to have.
//
// Filler claims have a class of their own, a copy of the template's: a claim of the
// template's class would be bound to a spare that is there already, and the pool would
// drink itself. Not every Available volume is a spare: a claim may name one that has
// lost its claimRef, and the guard's label holds one. A spare that has to go is given to a claim that never existed: the
// binder finds it released, and its own provisioner destroys it.
//
// It writes filler claims, filler pods, filler classes, the volumes in this passage and
// spare volumes that have to go, and the status of PersistentVolumeSets. It destroys no
// storage, and knows no other controller and no provisioner but by its class.
package pool
