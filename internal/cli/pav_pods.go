package cli

import (
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

// Names that Tarn adds to every pod of a provisioner.
const (
	reservedVolume = "pav"
	reservedMount  = "/pav"
)

// fields is a mapping of a manifest.
type fields = map[string]any

// checkPod checks the pod of a section, except for parts that a template hides.
func (l *linter) checkPod(s steppod.Section) {
	section, _ := s.Object.(fields)
	key := steppod.PodField(s.Step)
	template, ok := section[key].(fields)
	at := steppod.JoinField(s.Field, key)
	if !ok {
		if text, _ := section[key].(string); text != "" {
			l.say(levelNote, at, "the whole pod is a template; run tarn pav render to see the resulting pod and the privileges it needs")
		}
		return
	}
	metadata, _ := template["metadata"].(fields)
	l.checkPodMetadata(at+".metadata", metadata)
	spec, ok := template["spec"].(fields)
	if !ok {
		if template["spec"] == nil {
			l.say(levelError, at+".spec", "is missing; a pod needs containers")
		}
		return
	}
	at += ".spec"
	l.checkEnd(s, at, spec)
	l.checkReserved(at, spec)
	l.checkContainers(at, spec)
	l.checkShells(at, spec)
	namespace, _ := metadata["namespace"].(string)
	if namespace == "" {
		namespace = l.namespaces[0]
	}
	(&privileges{linter: l, namespace: namespace}).check(s.Step, steppod.JoinField(s.Field, key), template)
}

// checkPodMetadata checks the part of a template's metadata that is copied into the pod.
func (l *linter) checkPodMetadata(at string, metadata fields) {
	const own = "has no effect; "
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		switch key {
		case "name", "generateName":
			l.say(levelWarning, steppod.JoinField(at, key), own+"Tarn names its pods itself")
		case "namespace":
			if name, ok := metadata[key].(string); ok && !isTemplate(name) {
				for _, wrong := range validation.IsDNS1123Label(name) {
					l.say(levelError, at+".namespace", "%q is not a valid namespace name: %s", name, wrong)
				}
			}
		case "labels", "annotations":
			of, _ := metadata[key].(fields)
			for _, name := range slices.Sorted(maps.Keys(of)) {
				if strings.HasPrefix(name, tarnv1.Group+"/") {
					l.say(levelWarning, steppod.JoinField(steppod.JoinField(at, key), name), own+"names that begin with "+tarnv1.Group+"/ are reserved for Tarn")
				}
			}
		default:
			if _, known := podMetadata[key]; known {
				l.say(levelWarning, steppod.JoinField(at, key), own+"the pod gets only namespace, labels and annotations from a template's metadata")
			}
		}
	}
}

// podMetadata are the fields that metadata can have.
var podMetadata = func() map[string]reflect.Type {
	known := map[string]reflect.Type{}
	steppod.JSONFields(reflect.TypeFor[metav1.ObjectMeta](), known)
	return known
}()

// checkEnd checks how a pod ends. Every pod but that of staging must end.
func (l *linter) checkEnd(s steppod.Section, at string, spec fields) {
	policy, _ := spec["restartPolicy"].(string)
	switch {
	case isTemplate(policy):
	case s.Step != tarnv1.StepStaging && policy == string(corev1.RestartPolicyAlways):
		l.say(levelError, at+".restartPolicy", "a %s pod must end, so write Never or OnFailure, not Always; the default is Never", s.Step)
	case s.Step == tarnv1.StepStaging && (policy == "" || policy == string(corev1.RestartPolicyAlways)):
		key := at + ".restartPolicy"
		if spec["restartPolicy"] == nil {
			key = at
		}
		advice := "write Never for a server too: a failed container ends the attempt anyway, and the next attempt gets a clean /pav"
		if !mentions(spec, "/pav/ready") {
			advice = "the staging pod never ends and never mentions /pav/ready: write Never; a pod that keeps running must create /pav/ready when the volume is available"
		}
		l.say(levelWarning, key, "with restartPolicy Always, which is the default, %s", advice)
	}
}

// mentions says whether a text occurs anywhere below a value.
func mentions(value any, text string) bool {
	found := false
	walkStrings("", value, func(_, at string) { found = found || strings.Contains(at, text) })
	return found
}

// checkReserved finds names that collide with the volume that Tarn adds to each pod.
func (l *linter) checkReserved(at string, spec fields) {
	for i, volume := range items(spec["volumes"]) {
		if volume["name"] == reservedVolume {
			l.say(levelError, fmt.Sprintf("%s.volumes[%d].name", at, i), "%q is the name of the volume that Tarn adds to the pod; give this one another name", reservedVolume)
		}
	}
	names, all := volumeNames(spec)
	for _, c := range containers(at, spec) {
		for i, mount := range items(c.fields["volumeMounts"]) {
			if name, _ := mount["name"].(string); all && name != "" && !isTemplate(name) && !slices.Contains(names, name) {
				l.say(levelError, fmt.Sprintf("%s.volumeMounts[%d].name", c.path, i), "the pod has no volume %q; it has %s", name, strings.Join(names, ", "))
			}
			if where, _ := mount["mountPath"].(string); where != "" && path.Clean(where) == reservedMount {
				l.say(levelError, fmt.Sprintf("%s.volumeMounts[%d].mountPath", c.path, i), "Tarn mounts its own volume at %s in each container; remove this mount", reservedMount)
			}
		}
	}
}

// volumeNames returns the names of a pod's volumes. all is false where a template may hide more.
func volumeNames(spec fields) (names []string, all bool) {
	list, isList := spec["volumes"].([]any)
	if spec["volumes"] != nil && !isList {
		return nil, false
	}
	for _, volume := range list {
		of, _ := volume.(fields)
		name, ok := of["name"].(string)
		if !ok || isTemplate(name) {
			return nil, false
		}
		names = append(names, name)
	}
	if !slices.Contains(names, reservedVolume) {
		names = append(names, reservedVolume)
	}
	return names, true
}

func (l *linter) checkContainers(at string, spec fields) {
	if list, isList := spec["containers"].([]any); spec["containers"] == nil || isList && len(list) == 0 {
		l.say(levelError, at+".containers", "is missing; a pod needs at least one container")
	}
	names := map[string]bool{}
	for _, c := range containers(at, spec) {
		name, _ := c.fields["name"].(string)
		if name == "" && c.fields["name"] == nil {
			l.say(levelError, c.path+".name", "is missing; each container needs a name")
		}
		if names[name] && name != "" && !isTemplate(name) {
			l.say(levelError, c.path+".name", "%q is the name of another container of the pod; give this one another name", name)
		}
		names[name] = true
		if c.fields["image"] == nil {
			l.say(levelError, c.path+".image", "is missing; each container needs an image")
		}
	}
}

// container is a container of a pod and the path to it.
type container struct {
	path   string
	fields fields
}

func containers(at string, spec fields) []container {
	var found []container
	for _, kind := range []string{"initContainers", "containers"} {
		for i, c := range items(spec[kind]) {
			found = append(found, container{fmt.Sprintf("%s.%s[%d]", at, kind, i), c})
		}
	}
	return found
}

// items returns the mappings of a list by index. An item that is no mapping is empty.
func items(value any) []fields {
	list, _ := value.([]any)
	found := make([]fields, len(list))
	for i := range list {
		found[i], _ = list[i].(fields)
	}
	return found
}
