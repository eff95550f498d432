// Package stage runs the pods of a PavStage: the staging pod while the stage is wanted, the
// unstaging pod once its node has unmounted the volume. It is the stage controller's side of
// the protocol described on type PavStage.
//
// It knows nothing of mounts, targets and /pav. Those belong to the node agent, and the two
// meet only in the PavStage.
package stage
