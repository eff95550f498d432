// Package retention keeps the data of a released volume for as long as its retention
// says, so that its claim can be made anew on it (tarn undelete):
//
//	claimed --held--> (claim gone) --> trashed --time--> over
//	   ^                                  |
//	   +------------ undelete ------------+
//
// Whoever made a volume destroys it as soon as it is Released and its policy is Delete,
// and some of them are not Tarn's. So a volume with a retention has policy Retain from
// the moment it is a claim's; the policy it is to have, and the claim, are noted on it.
// When its time in the trash is over it gets that policy, and deletion, recycling and
// retention go their ordinary ways.
//
// It writes reclaim policies and its own annotations and label of PersistentVolumes,
// and nothing else. It destroys nothing, and knows no other controller and no
// provisioner.
package retention
