// Package expand makes volumes larger when their claims ask for it. It does the
// controller's half of Kubernetes' resize protocol for volumes that Tarn has made: it
// runs expansion pods, raises the capacity of the PersistentVolume, and says in the
// claim's status how things stand; what is left to do on nodes is the kubelet's to ask
// for.
//
// It writes, while a PavVolume is Created, its status.expansion and capacity, the
// capacity of its PersistentVolume, and of the claim's status what is about resizing,
// unless a node is at work. Volumes without a PavVolume are refused: nothing could be
// journaled for them, and no template of theirs says how they were made. They grow by
// hand: once spec.capacity says so, the claim's resize goes on to the nodes, or ends. It
// knows no other controller.
package expand
