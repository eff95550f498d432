// Package plan decides what a call on an application does. It decides what a deploy would create,
// keep, grow, detach or refuse. It decides whether an application may be scaled and how far a
// volume may grow, and it makes the answers. The REST server and the command line both use it, so
// they agree in every word.
//
// It decides by its arguments, above all the live claims. It knows no client, no clock and no HTTP.
package plan
