// Package deploy carries the objects Tarn needs in a cluster beside its custom
// resources: namespace, service accounts, roles, admission policies and the CSI
// driver of /pav. `tarn install` applies them. It knows nothing of clients.
package deploy

import "embed"

// FS holds YAML files, each of one or more documents. The files in rbac/ are made
// by `make generate` from the markers beside the code that needs each right.
//
//go:embed base.yaml rbac/*.yaml policies/*.yaml
var FS embed.FS

// FinalizersPolicy is the name of the policy, and of its binding, by which claims and
// volumes are born with the finalizers of protection.
const FinalizersPolicy = "finalizers.tarn.dev"
