package cli

import (
	"fmt"
	"maps"
	"strings"

	"github.com/spf13/pflag"

	appspec "tarn.dev/tarn/internal/app/spec"
)

// RegisterAppClasses adds the flag for the storage classes of app volumes that name none. The API,
// the controllers and a command line that asks Kubernetes itself must all get the same value: each
// of them decides what an app may have.
func RegisterAppClasses(flags *pflag.FlagSet, classes *map[string]string, usage string) {
	defaults := map[string]string{}
	for mode, class := range appspec.DefaultClasses {
		defaults[string(mode)] = class
	}
	flags.StringToStringVar(classes, "app-class", defaults, usage)
}

// AppClasses reads the flag of RegisterAppClasses. A mode that the flag does not name keeps its
// default class.
func AppClasses(words map[string]string) (map[appspec.AccessMode]string, error) {
	classes := maps.Clone(appspec.DefaultClasses)
	for word, class := range words {
		mode := appspec.AccessMode(word)
		if _, known := classes[mode]; !known || class == "" || strings.ContainsAny(class, " /") {
			return nil, fmt.Errorf("--app-class %s=%s: write it as rwo=CLASS,rwx=CLASS", word, class)
		}
		classes[mode] = class
	}
	return classes, nil
}
