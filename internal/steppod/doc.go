// Package steppod is volumes made of pods: it turns a section of a PavProvisioner
// into the pod of one step of one volume, and reads from a pod how the step ended.
//
// A step is never waited for. Prepare evaluates a section and gives the pod it
// comes to; Start creates it; Observe reads its state on a later look. The pod's
// name is derived from a UID, so doing any of these twice is harmless.
//
// It decides nothing about claims, records or stages and writes nothing but pods:
// when a step is begun, repeated or given up is the controllers' to say.
package steppod
