// Package retention keeps the data of a released volume for as long as its retention says, so
// that tarn undelete can recreate its claim on it:
//
//	claimed --held--> (claim gone) --> trashed --time--> over
//	   ^                                  |
//	   +------------ undelete ------------+
//
// The driver of a volume destroys it as soon as it is Released with policy Delete, and some
// drivers are not Tarn's. So the controller gives a volume with a retention policy Retain as
// soon as a claim has it. It records the claim and the volume's own policy in annotations. When
// the retention is over, the controller restores that policy. Deletion or recycling then
// happens as usual.
//
// The controller writes reclaim policies and its own annotations and label of
// PersistentVolumes, and nothing else. It destroys nothing, and knows no other controller and
// no provisioner.
package retention
