// Package image makes container images without Docker or a registry. It imports them into a
// cluster's runtime, and serves them to that runtime again when a pod always pulls. The images
// every cluster starts with consist of our own pause program and of packages of the Debian archive.
// They are made once for a machine and cached.
//
// It must not know how clusters are started or where they lie.
package image
