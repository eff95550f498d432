// Package apps creates what each App asks for: its claims, a Deployment that mounts them, and a
// ConfigMap that says which volumes were deployed. A claim is created once and then reused. If
// the spec no longer names a volume, its claim is detached and kept. Only the end of an App
// deletes claims:
//
//	App --hold--> topology --> claims --> Deployment        on every deploy
//	App deleted --> Deployment gone --> claims gone, except preserved ones
//	            --> topology gone --> finalizer removed
//
// The topology is written before the first claim, and the end of an App deletes what it names.
// The spec says what should exist, the topology says what may exist.
//
// The controller writes claims, Deployments and ConfigMaps of Apps, their finalizer and their
// status, and nothing else. app/plan decides what is rejected, as it does for the API. The
// controller knows no volume, no provisioner and no other controller. It sees in the claim that
// a volume is being expanded.
package apps
