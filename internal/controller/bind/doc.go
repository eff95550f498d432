// Package bind joins claims and volumes. It chooses a volume for each claim and makes the two point
// at each other. It calls a provisioner where no volume fits, and reports the state in the phases
// of both. It does the work of Kubernetes' own persistent volume binder, by its names and rules,
// and replaces it.
//
// It is the only writer of a claim's volumeName, and of the annotations that belong to a binding.
// It alone sets a volume's claimRef, and a claim's class where the default is used. It also writes
// the phases of claims and volumes; other controllers only set a volume to Failed and back. It
// destroys nothing: other controllers handle Released volumes. It knows no other controller and no
// provisioner. Of pods it knows only which claims they use.
package bind
