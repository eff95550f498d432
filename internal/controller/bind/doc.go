// Package bind joins claims and volumes: it chooses a volume for each claim, makes the
// two point at each other, calls for a provisioner where no volume fits, and says in
// the phases of both how things stand. It does the work of Kubernetes' own
// persistent volume binder, by its names and rules, and stands in for it.
//
// It is the one writer of a claim's volumeName, of setting a volume's claimRef, of the
// phases of both, of the annotations that go with these, and of a claim's class where
// the default is given. It destroys nothing: what becomes of a Released volume is
// others' business. It knows no other controller, no provisioner, and of pods only
// which claims they use.
package bind
