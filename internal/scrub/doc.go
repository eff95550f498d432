// Package scrub makes storage fit for its next user. It empties file systems, overwrites or
// discards their content or that of block devices, and reads the result back. It also checks
// storage that an external tool has recycled.
//
// It crosses no mount and follows no symbolic link. It knows no API object and no caller: it
// destroys what it is given, except in a check.
package scrub
