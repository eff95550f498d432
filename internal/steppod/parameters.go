package steppod

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	"tarn.dev/tarn/internal/suggest"
	"tarn.dev/tarn/jinja"
)

// parameterRoots are the paths below which templates find the parameters of a class.
var parameterRoots = [][]string{
	{varParams}, {varClass, "parameters"},
	{varVolume, "spec", "csi", "volumeAttributes"}, {getVolume, "spec", "csi", "volumeAttributes"},
}

// UnknownParameters warns of each parameter of a class that no template of the provisioner reads.
// Its name is probably misspelt. Parameters with a domain, such as csi.storage.k8s.io/fstype, are
// not the provisioner's own, so they are left out.
func UnknownParameters(p *pavv1.PavProvisioner, class *storagev1.StorageClass) []string {
	known, complete := parametersRead(p)
	if !complete {
		return nil
	}
	hint := func(name string) string {
		if len(known) == 0 {
			return "it reads no parameters"
		}
		return suggest.Hint(name, known)
	}
	var warnings []string
	for _, name := range slices.Sorted(maps.Keys(class.Parameters)) {
		if !strings.Contains(name, "/") && !slices.Contains(known, name) {
			warnings = append(warnings, fmt.Sprintf("StorageClass %q: parameter %q has no effect, because no template of PavProvisioner %q reads it; %s",
				class.Name, name, p.Name, hint(name)))
		}
	}
	return warnings
}

// parametersRead gives the class parameters that the templates of a provisioner read, sorted.
// complete is false if they may read others too.
func parametersRead(p *pavv1.PavProvisioner) (names []string, complete bool) {
	raw, err := json.Marshal(p.Spec)
	if err != nil {
		return nil, false
	}
	spec, err := decodeJSON(raw)
	if err != nil {
		return nil, false
	}
	complete = true
	eachText(spec, func(text string) {
		template, err := jinja.Parse(text)
		if err != nil {
			complete = false
			return
		}
		for _, path := range template.Paths() {
			for _, root := range parameterRoots {
				shared := min(len(path), len(root))
				switch {
				case !slices.Equal(path[:shared], root[:shared]):
				case len(path) > len(root):
					names = append(names, path[len(root)])
				default: // all below the path, which contains all parameters
					complete = false
				}
			}
		}
	})
	slices.Sort(names)
	return slices.Compact(names), complete
}

// eachText calls a function with each string of an object, except the keys.
func eachText(value any, do func(string)) {
	switch value := value.(type) {
	case string:
		do(value)
	case []any:
		for _, item := range value {
			eachText(item, do)
		}
	case map[string]any:
		for _, item := range value {
			eachText(item, do)
		}
	}
}
