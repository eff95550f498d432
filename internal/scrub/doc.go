// Package scrub makes storage fit for its next user: it empties file systems, overwrites
// or discards what is on them or on block devices, and reads back what it has done, or
// what somebody else says to have done.
//
// It crosses no mount and follows no symbolic link. It knows no API object, and nothing
// of who asks: what it is given is destroyed, unless it is only to be checked.
package scrub
