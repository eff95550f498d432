// Package resultdir reads what a pod has left in its /pav folder. Everything there was
// written by the pod and is trusted with nothing: no symbolic link is followed out of
// the folder, only regular files are read, and sizes are limited.
//
// It must not know of the API server, of mounting, or of what a result is good for.
package resultdir
