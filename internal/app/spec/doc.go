// Package spec reads paas.toml, or the same content as JSON. In this file the developer of an
// application says what it runs and which volumes it needs.
//
// Reading is strict and complete. All problems are reported at once, each with line, column and
// what to write instead. Nothing here knows Kubernetes objects, a client or a clock.
package spec
