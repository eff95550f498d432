// Package spec reads paas.toml, the file in which the developer of an application
// says what it runs and which volumes it wants, and the same content as JSON.
//
// Reading is strict and complete: whatever is wrong is told at once, each problem
// with its line and column and with what to write instead. Nothing here knows
// Kubernetes objects, a client or a clock.
package spec
