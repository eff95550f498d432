// Package crds carries the generated CustomResourceDefinitions, so that `tarn
// install` needs no file beside the binary. It knows nothing of clients.
package crds

import "embed"

// FS holds one YAML file a CustomResourceDefinition, made by `make generate`.
//
//go:embed *.yaml
var FS embed.FS
