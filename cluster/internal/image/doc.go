// Package image makes container images without Docker and without a registry, puts them into a cluster's runtime, and serves them to
// that runtime again when a pod insists on pulling. The images every cluster starts with are made of our own pause program and of packages of
// the Debian archive, once for a machine, and kept in the cache.
//
// It must not know how clusters are started or where they lie.
package image
