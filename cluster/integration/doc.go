// Package integration brings real clusters up and down, breaks them, and looks at what they leave on the machine. It needs root and
// a build (`make build`); it must not know how tarn-cluster works inside, only what its commands promise.
package integration
