package main

import (
	"fmt"
	"slices"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/cli"
	"tarn.dev/tarn/internal/controller/apps"
	"tarn.dev/tarn/internal/controller/bind"
	"tarn.dev/tarn/internal/controller/expand"
	plugincontroller "tarn.dev/tarn/internal/controller/plugin"
	"tarn.dev/tarn/internal/controller/pool"
	"tarn.dev/tarn/internal/controller/protect"
	"tarn.dev/tarn/internal/controller/provision"
	"tarn.dev/tarn/internal/controller/provisioner"
	"tarn.dev/tarn/internal/controller/reclaim"
	"tarn.dev/tarn/internal/controller/recycle"
	"tarn.dev/tarn/internal/controller/retention"
	"tarn.dev/tarn/internal/controller/stage"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/steppod"
)

// parts is what the controllers share.
type parts struct {
	steps   *steppod.Steps
	workers int
	plugins []plugin.Plugin
	// pauseImage is that of the pods by which pools have a node chosen.
	pauseImage string
	// appClasses are the classes of App volumes that name none, by access mode.
	appClasses map[appspec.AccessMode]string
	// scrubImage is that of the pods by which volumes are scrubbed, empty for none.
	scrubImage string
	// pullSecrets are those with which that image is pulled.
	pullSecrets []string
	// ownBinder says that the binder is among the controllers.
	ownBinder bool
	// provisioning says whether that calls provisioners.
	provisioning bool
	// pods makes the cache of all pods on first use, for those that need it.
	pods func() (cache.Cache, error)
}

// controllers are all there are, by the names that --controllers takes.
var controllers = map[string]func(ctrl.Manager, parts) error{
	"accept": func(mgr ctrl.Manager, p parts) error {
		return provisioner.Register(mgr, provisioner.Options{Namespaces: p.steps.Namespaces})
	},
	"apps": func(mgr ctrl.Manager, p parts) error {
		pods, err := p.pods()
		if err != nil {
			return err
		}
		return apps.Register(mgr, apps.Options{Classes: p.appClasses, Pods: pods, MaxConcurrent: p.workers})
	},
	"bind": func(mgr ctrl.Manager, p parts) error {
		pods, err := p.pods()
		if err != nil {
			return err
		}
		return bind.Register(mgr, bind.Options{Pods: pods, NoProvisioning: !p.provisioning})
	},
	"provision": func(mgr ctrl.Manager, p parts) error {
		return provision.Register(mgr, provision.Options{Steps: p.steps, MaxConcurrent: p.workers})
	},
	"expand": func(mgr ctrl.Manager, p parts) error {
		return expand.Register(mgr, expand.Options{Steps: p.steps, MaxConcurrent: p.workers})
	},
	"inprocess": func(mgr ctrl.Manager, p parts) error {
		if len(p.plugins) == 0 {
			return nil // switched off: it would watch for nothing
		}
		return plugincontroller.Register(mgr, plugincontroller.Options{Plugins: p.plugins, Namespace: cli.Namespace, MaxConcurrent: p.workers})
	},
	"protect": func(mgr ctrl.Manager, p parts) error {
		pods, err := p.pods()
		if err != nil {
			return err
		}
		return protect.Register(mgr, protect.Options{Pods: pods, MaxConcurrent: p.workers})
	},
	"pool": func(mgr ctrl.Manager, p parts) error {
		return pool.Register(mgr, pool.Options{Namespace: cli.Namespace, PauseImage: p.pauseImage, MaxConcurrent: p.workers})
	},
	"stage": func(mgr ctrl.Manager, p parts) error {
		pods, err := p.pods()
		if err != nil {
			return err
		}
		return stage.Register(mgr, stage.Options{Steps: p.steps, Pods: pods, MaxConcurrent: p.workers})
	},
	"recycle": func(mgr ctrl.Manager, p parts) error {
		if p.scrubImage == "" {
			return nil // switched off: no pod could scrub
		}
		pods, err := p.pods()
		if err != nil {
			return err
		}
		return recycle.Register(mgr, recycle.Options{
			Namespace: cli.Namespace, Image: p.scrubImage, PullSecrets: p.pullSecrets, Steps: p.steps, OwnBinder: p.ownBinder, Pods: pods, MaxConcurrent: p.workers,
		})
	},
	"reclaim": func(mgr ctrl.Manager, p parts) error {
		return reclaim.Register(mgr, reclaim.Options{Steps: p.steps, Namespace: cli.Namespace, OwnBinder: p.ownBinder, MaxConcurrent: p.workers})
	},
	"trash": func(mgr ctrl.Manager, p parts) error {
		return retention.Register(mgr, retention.Options{Namespace: cli.Namespace, MaxConcurrent: p.workers})
	},
}

// defaultControllers are all but those whose work Kubernetes' own controllers do
// unless an administrator has switched them off.
var defaultControllers = []string{"*", "-bind", "-protect"}

// everyController stands for all of them in --controllers.
const everyController = "*"

// selectControllers reads --controllers: names, * for all, and -name for all but one.
// The result is sorted.
func selectControllers(words []string) ([]string, error) {
	var selected []string
	for name := range controllers {
		if slices.Contains(words, name) || slices.Contains(words, everyController) {
			selected = append(selected, name)
		}
	}
	for _, word := range words {
		name, off := strings.CutPrefix(word, "-")
		if off {
			selected = slices.DeleteFunc(selected, func(s string) bool { return s == name })
		}
		// The default names controllers to leave out, whether or not this build has them.
		if controllers[name] == nil && name != everyController && !slices.Contains(defaultControllers, word) {
			return nil, fmt.Errorf("--controllers: there is no controller %q: give * or any of %s, with - before those to leave out", name, strings.Join(controllerNames(), ", "))
		}
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("--controllers=%s leaves nothing to run: name at least one of %s", strings.Join(words, ","), strings.Join(controllerNames(), ", "))
	}
	slices.Sort(selected)
	return selected, nil
}

func controllerNames() []string {
	names := make([]string, 0, len(controllers))
	for name := range controllers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
