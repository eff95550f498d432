// Package rules checks the house rules: which imports are allowed, what a plan may not know, how
// large files and functions may grow, which calls are banned. It contains only tests. It reads the
// tree as text and must not know what any package does.
//
// A rule is a function over the files of the tree. The same function judges the tree and the
// offending snippet that proves it can reject.
package rules
