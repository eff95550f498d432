// Package recycle makes released volumes fit for their next claim: those of policy
// Recycle, and those whose annotation tarn.dev/recycle names a method. It needs no help
// of the volume's driver. The volume is given to a scrub claim in Tarn's namespace, a
// pod on that claim scrubs it, and what the pod certifies is written on the volume:
//
//	released --claim made--> claimRef to it --bound--> pod runs --certified--> claim goes --> nobody's
//	              ^                                      |
//	              +--pause-- Failed <--claim goes-- failure noted
//
// claimRef has the uid of the scrub claim, so the volume is never Available before it is
// nobody's, and a certificate or a failure has that uid too, so that it is known whether
// it is of this passage. Meanwhile the reclaim policy is Retain, which nobody acts on.
//
// Where a PavProvisioner has made the volume, and has pods of its own for the method, these
// do it instead, one after the other; Recreate is its deletion pod, then its creation pod.
// What they say is not believed: a scrub pod that changes nothing reads it back first.
//
// It writes scrub claims and scrub pods, a released volume's claimRef, phase Failed with
// its reason, Released where that was its own and is no longer so, and condition Recycled
// of a PavVolume. It touches no storage itself, and knows no other controller.
package recycle
