// Package autogrow grows claims whose file systems fill up. Each claim says by an annotation, or its
// class says for it, at which percentage, by how much, and up to which size.
//
//	below --full--> the claim requests more --driver, kubelet--> its capacity is the request --+
//	  ^                                                                                        |
//	  +------------------------- a reading from after that is not full ------------------------+
//
// A request of the queue is a node on which pods use such claims. The controller asks its kubelet
// once a minute and plans for each claim of the node by itself. Nothing is asked about other nodes.
//
// A step is one patch of a claim: its request, and an annotation with the time of the reading. The
// patch requires the version that was read. Of two processes or nodes that saw the same claim full,
// one gets a conflict. No step uses a reading up to the recorded one, or one from before the end of
// the step before. A process that does not know when that step ended takes the moment it first saw
// the claim.
//
// The controller writes requests of claims and its own annotation, and nothing else. It resizes no
// storage, and knows no other controller and no driver.
package autogrow
