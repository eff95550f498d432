// Package expand makes volumes larger when their claims request it. It does the controller's part
// of Kubernetes' resize protocol for volumes that Tarn created. It runs expansion pods, raises the
// capacity of the PersistentVolume, and reports the state in the claim's status. The kubelet asks
// for the work that remains on nodes.
//
// While a PavVolume is Created, the package writes its status.expansion and capacity, and the
// capacity of its PersistentVolume. It writes the resize fields of the claim's status too, unless a
// node is working on the resize.
//
// It rejects the expansion of volumes without a PavVolume. There is no record to keep a journal in,
// and no template that says how they were created. An administrator expands them by hand. Once
// spec.capacity has the new size, the claim's resize continues on the nodes, or ends.
//
// It knows no other controller.
package expand
