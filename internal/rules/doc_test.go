// Package rules keeps the house rules: who may import whom, what a plan may not
// know, how large files and functions may grow, which calls are banned. It holds
// tests only. It reads the tree as text and must not know what any package does.
//
// A rule is a function over the files of the tree, so the same function that
// judges the tree also judges the offending snippet that proves it can refuse.
package rules
