// Package steppod makes volumes with pods. It turns a section of a PavProvisioner into the pod for
// one step of one volume, and reads from a pod how the step ended.
//
// No call waits for a step. Prepare evaluates a section and gives its pod, Start creates the pod,
// and Observe reads the pod's state in a later reconcile. The pod's name is derived from a UID, so
// each call may be repeated.
//
// The package decides nothing about claims, records or stages, and writes nothing but pods. The
// controllers decide when a step is started, repeated or given up.
package steppod
