// Package plan decides what a call on an application comes to: what a deploy would
// create, keep, grow, detach or refuse, whether it may be scaled, how far a volume may
// grow, and what is answered. The REST server and the command line both ask it, so that
// they say the same in the same words.
//
// It decides by what is passed to it, the live claims above all; it knows no client, no
// clock and no HTTP.
package plan
