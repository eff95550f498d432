// Package apps makes of each App what it asks for: its claims, a Deployment that mounts
// them, and a ConfigMap that says which volumes were deployed. A claim is made once and
// then only ever found again; one whose volume is no longer asked for is detached and
// kept. Nothing but the end of an App deletes a claim:
//
//	App --hold--> topology --> claims --> Deployment        on every deploy
//	App deleted --> Deployment gone --> claims gone, but those to be preserved
//	            --> topology gone --> let go
//
// The topology is written before the first claim, and what is deleted is what it names:
// the spec says what should be, it says what may be there.
//
// It writes claims, Deployments and ConfigMaps of Apps, the finalizer and the status of
// Apps, and nothing else. What is refused, app/plan decides, as it does for the API. It
// knows no volume, no provisioner and no other controller: that a claim grows it sees in
// the claim.
package apps
