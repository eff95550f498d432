// Package jinja compares the speed of the template engine with gonja v2, the other Jinja engine in
// Go. It is a module of its own, so that gonja stays out of the product's dependencies. It must not
// contain tests of behaviour; those are with the engine.
//
//	go test -bench . -benchmem
package jinja
