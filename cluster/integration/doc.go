// Package integration starts and removes real clusters, breaks them, and checks what they leave on
// the machine. It needs root and a build (`make build`). It must not know how tarn-cluster works
// inside, only what its commands promise.
package integration
