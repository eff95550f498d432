// Package scrub makes storage fit for its next user: it empties file systems, overwrites
// or discards what is on them or on block devices, and reads back what it has done.
//
// It crosses no mount and follows no symbolic link. It knows no API object, and nothing
// of who asks: what it is given is destroyed.
package scrub
