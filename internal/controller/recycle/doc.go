// Package recycle makes released volumes fit for their next claim. It handles volumes with
// policy Recycle, and volumes whose annotation tarn.dev/recycle names a method. It needs no
// help from the volume's driver. The controller binds the volume to a scrub claim in Tarn's
// namespace, and a pod on that claim scrubs it. The pod's certificate is written on the volume:
//
//	released --claim made--> claimRef to it --bound--> pod runs --certified--> claim gone --> freed
//	              ^                                      |
//	              +--pause-- Failed <--claim gone-- failure recorded
//
// claimRef has the UID of the scrub claim, so the volume does not become Available before it is
// freed. A certificate or a failure has that UID too, which shows whether it belongs to this
// passage. Meanwhile the reclaim policy is Retain, on which no controller acts.
//
// If a PavProvisioner has made the volume and has pods of its own for the method, these do the
// work, one after the other. For Recreate they are its deletion pod, then its creation pod. The
// controller does not trust their result: a scrub pod that changes nothing verifies it first.
//
// The controller writes scrub claims, scrub pods and the claimRef of released volumes. It
// writes phase Failed with its reason, and Released again when its own failure is over. It also
// writes condition Recycled of a PavVolume. It touches no storage itself, and knows no other
// controller.
package recycle
