package main

import (
	"fmt"
	"slices"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/cli"
	"tarn.dev/tarn/internal/controller/apps"
	"tarn.dev/tarn/internal/controller/autogrow"
	"tarn.dev/tarn/internal/controller/bind"
	"tarn.dev/tarn/internal/controller/expand"
	"tarn.dev/tarn/internal/controller/pavvolume"
	plugincontroller "tarn.dev/tarn/internal/controller/plugin"
	"tarn.dev/tarn/internal/controller/pool"
	"tarn.dev/tarn/internal/controller/protect"
	"tarn.dev/tarn/internal/controller/provisioner"
	"tarn.dev/tarn/internal/controller/recycle"
	"tarn.dev/tarn/internal/controller/retention"
	"tarn.dev/tarn/internal/controller/stage"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/steppod"
)

// parts are what the controllers share.
type parts struct {
	steps   *steppod.Steps
	workers int
	plugins []plugin.Plugin
	// pauseImage is the image of the pods that let the scheduler select a node for a pool's volume.
	pauseImage string
	// appClasses are the classes of App volumes that name none, by access mode.
	appClasses map[appspec.AccessMode]string
	// scrubImage is the image of the pods that scrub volumes; empty disables scrubbing.
	scrubImage string
	// pullSecrets are the Secrets to pull that image with.
	pullSecrets []string
	// ownBinder says that Tarn's binder is among the controllers.
	ownBinder bool
	// provisioning says whether that binder calls provisioners.
	provisioning bool
	// pods returns the cache of all pods, which it creates on first use.
	pods func() (cache.Cache, error)
	// insecureKubelets says that the certificates of kubelets are not verified.
	insecureKubelets bool
}

// controllers are all controllers, by their names in --controllers.
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
	"autogrow": func(mgr ctrl.Manager, p parts) error {
		if mgr.GetConfig().Insecure && !p.insecureKubelets {
			mgr.GetLogger().Info("no claim grows by itself: there is no certificate authority to verify the kubelets with; set --kubelet-insecure-tls to do without")
			return nil
		}
		live, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
		if err != nil {
			return err
		}
		kubelets, err := askingKubelets(mgr.GetConfig(), live, p.insecureKubelets)
		if err != nil {
			return err
		}
		pods, err := p.pods()
		if err != nil {
			return err
		}
		return autogrow.Register(mgr, autogrow.Options{Namespace: cli.Namespace, Pods: pods, Kubelets: kubelets, MaxConcurrent: p.workers})
	},
	"bind": func(mgr ctrl.Manager, p parts) error {
		pods, err := p.pods()
		if err != nil {
			return err
		}
		return bind.Register(mgr, bind.Options{Pods: pods, NoProvisioning: !p.provisioning})
	},
	"pavvolume": func(mgr ctrl.Manager, p parts) error {
		return pavvolume.Register(mgr, pavvolume.Options{Steps: p.steps, Namespace: cli.Namespace, OwnBinder: p.ownBinder, MaxConcurrent: p.workers})
	},
	"expand": func(mgr ctrl.Manager, p parts) error {
		return expand.Register(mgr, expand.Options{Steps: p.steps, MaxConcurrent: p.workers})
	},
	"inprocess": func(mgr ctrl.Manager, p parts) error {
		if len(p.plugins) == 0 {
			return nil // disabled: there is nothing to watch
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
			return nil // disabled: no pod could scrub
		}
		pods, err := p.pods()
		if err != nil {
			return err
		}
		return recycle.Register(mgr, recycle.Options{
			Namespace: cli.Namespace, Image: p.scrubImage, PullSecrets: p.pullSecrets, Steps: p.steps, OwnBinder: p.ownBinder, Pods: pods, MaxConcurrent: p.workers,
		})
	},
	"trash": func(mgr ctrl.Manager, p parts) error {
		return retention.Register(mgr, retention.Options{Namespace: cli.Namespace, MaxConcurrent: p.workers})
	},
}

// defaultControllers are all controllers except those whose work Kubernetes' own normally do. An
// administrator who disables Kubernetes' own must add them.
var defaultControllers = []string{"*", "-bind", "-protect"}

// everyController stands for all controllers in --controllers.
const everyController = "*"

// formerNames are the names of controllers that are now part of another. --controllers still reads
// them as that one.
var formerNames = map[string]string{"provision": "pavvolume", "reclaim": "pavvolume"}

// selectControllers reads --controllers: names, * for all, and -name to leave one out. The result
// is sorted.
func selectControllers(words []string) ([]string, error) {
	// One former name alone would start or stop the work of the other, too.
	for _, sign := range []string{"", "-"} {
		whole := slices.Contains(words, sign+"pavvolume") || sign == "" && slices.Contains(words, everyController)
		if !whole && slices.Contains(words, sign+"provision") != slices.Contains(words, sign+"reclaim") {
			return nil, fmt.Errorf("--controllers=%s names one of provision and reclaim; "+
				"controller pavvolume now creates volumes and deletes their storage: write %spavvolume instead", strings.Join(words, ","), sign)
		}
	}
	words = slices.Clone(words)
	for i, word := range words {
		name, off := strings.CutPrefix(word, "-")
		switch now := formerNames[name]; {
		case now != "" && off:
			words[i] = "-" + now
		case now != "":
			words[i] = now
		}
	}
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
		// The default names controllers to leave out even if this build does not have them.
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
