// Package resultdir reads what a pod has left in its /pav directory. The pod wrote all of it, so
// nothing is trusted. No symbolic link is followed out of the directory, only regular files are
// read, and sizes are limited.
//
// It must not know of the API server, of mounting, or of the use of a result.
package resultdir
