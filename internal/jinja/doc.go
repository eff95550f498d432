// Package jinja evaluates Jinja templates the way Python's Jinja 3.1 does, for
// input that nobody vouches for.
//
// It is for provisioner authors' templates: text with {{ expressions }} and
// {% statements %} over JSON-like values, with Python's arithmetic, string
// methods and formatting, Jinja's filters and tests, the filter tobash, and a
// flag, the top-level variable yaml, that turns the rendered text into a value.
//
// It must not know Kubernetes, files, the network or the clock: whatever a
// template may see comes in through vars, and no Go method or field can be
// reached from a template. Every evaluation runs under a budget of steps,
// output, depth and memory, and under a context; the vars are only read.
package jinja
