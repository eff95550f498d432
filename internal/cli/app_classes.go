package cli

import (
	"fmt"
	"maps"
	"strings"

	"github.com/spf13/pflag"

	appspec "tarn.dev/tarn/internal/app/spec"
)

// RegisterAppClasses adds the flag for the storage classes of volumes of applications that
// name none. What decides of applications must be told the same everywhere: the API, the
// controllers, and the command line where it asks Kubernetes itself.
func RegisterAppClasses(flags *pflag.FlagSet, classes *map[string]string, usage string) {
	defaults := map[string]string{}
	for mode, class := range appspec.DefaultClasses {
		defaults[string(mode)] = class
	}
	flags.StringToStringVar(classes, "app-class", defaults, usage)
}

// AppClasses reads that flag. A mode that is not named keeps its class.
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
