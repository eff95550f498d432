// Package deploy carries the objects Tarn needs in a cluster beside its custom resources:
// namespace, service accounts, roles, admission policies and the CSI driver of /pav. `tarn install`
// applies them. It must not use a client.
package deploy

import "embed"

// FS holds YAML files, each with one or more documents. `make generate` writes the files in rbac/
// from the markers beside the code that needs each right.
//
//go:embed base.yaml rbac/*.yaml policies/*.yaml
var FS embed.FS

// FinalizersPolicy is the name of the policy, and of its binding, that adds the finalizers of
// protection to new claims and volumes.
const FinalizersPolicy = "finalizers.tarn.dev"
