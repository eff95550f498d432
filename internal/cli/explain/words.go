package explain

import (
	"fmt"
	"strings"
)

// quoted quotes a word for a shell.
func quoted(word string) string {
	if word != "" && strings.IndexFunc(word, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._/=:,@%+", r)
	}) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// kubectl returns a kubectl command for an object's namespace.
func kubectl(namespace string, words ...string) string {
	command := "kubectl"
	if namespace != "" {
		command += " -n " + quoted(namespace)
	}
	for _, w := range words {
		command += " " + quoted(w)
	}
	return command
}

// replacing returns the command that creates an object again with a change. It deletes the object
// first, so it is only for objects without data.
func replacing(o Object, resource, kind, patch string) string {
	return kubectl(o.Namespace, "get", resource, o.Name, "-o", "yaml") +
		" | kubectl patch --local -f - --type=" + kind + " -o yaml -p " + quoted(patch) +
		" | kubectl replace --force -f -"
}

// dropFinalizer returns the command that removes a finalizer. The command fails if the finalizer is
// no longer at that position.
func dropFinalizer(o Object, resource string, at int, finalizer string) string {
	path := fmt.Sprintf("/metadata/finalizers/%d", at)
	return kubectl(o.Namespace, "patch", resource, o.Name, "--type=json", "-p",
		fmt.Sprintf(`[{"op":"test","path":%q,"value":%q},{"op":"remove","path":%q}]`, path, finalizer, path))
}

// finalizerOwners maps each known finalizer to its owner and what the owner waits for.
var finalizerOwners = map[string]string{
	"kubernetes.io/pvc-protection":                                          "Kubernetes' protection, until no pod uses the claim",
	"kubernetes.io/pv-protection":                                           "Kubernetes' protection, until no claim is bound to the volume",
	"kubernetes.io/vac-protection":                                          "Kubernetes' protection, until nothing uses the class of attributes",
	"kubernetes.io/pv-controller":                                           "Kubernetes' binder, until it has destroyed the storage",
	"external-provisioner.volume.kubernetes.io/finalizer":                   "the provisioner that made the volume, until it has destroyed the storage",
	"provisioner.storage.kubernetes.io/cloning-protection":                  "the CSI provisioner, until no clone of the claim is being made",
	"provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection": "the CSI provisioner, until no volume is made from the snapshot",
	"snapshot.storage.kubernetes.io/pvc-as-source-protection":               "the snapshot controller, until no snapshot is taken of the claim",
	"batch.kubernetes.io/job-tracking":                                      "Kubernetes' Job controller, until it has counted the pod",
	"foregroundDeletion":                                                    "Kubernetes' garbage collector, until what the object owns is gone",
	"orphan":                                                                "Kubernetes' garbage collector, until it has orphaned what the object owns",
	"tarn.dev/volume-record":                                                "Tarn's controller, until the storage is destroyed",
	"tarn.dev/stage-pod":                                                    "Tarn's controller, until the volume is unstaged",
	"tarn.dev/stage-node":                                                   "Tarn's node agent, until the node has unmounted it",
	"tarn.dev/app":                                                          "Tarn's controller, until the app's pods are gone, and its claims except those to preserve",
	"tarn.dev/pool":                                                         "Tarn's controller, until the pool's spare volumes are being deleted",
	"tarn.dev/in-process":                                                   "Tarn's controller, until the claim is bound, or what was made for it is removed",
	"tarn.dev/provisioner-in-use":                                           "Tarn's controller, until no volume needs the provisioner",
}

// ownerOf returns the owner of a finalizer, and whether it is known.
func ownerOf(finalizer string) (string, bool) {
	if owner, ok := finalizerOwners[finalizer]; ok {
		return owner, true
	}
	domain, rest, found := strings.Cut(finalizer, "/")
	switch {
	case domain == "external-attacher":
		return "the attacher of CSI driver " + rest + ", until the volume is detached", true
	case domain == "tarn.dev":
		return "Tarn's", true
	case found:
		return "the owner of the name " + domain, false
	}
	return "an unknown owner", false
}

// join lists a few names and counts the rest.
func join(names []string) string {
	if more := len(names) - mostNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

// lower returns a kind as kubectl accepts it.
func lower(kind Kind) string { return strings.ToLower(string(kind)) }
