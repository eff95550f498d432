//go:build integration

package apps

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/testkit"
)

func TestAVolumeThatNamesNoClassGetsThatOfTheMapping(t *testing.T) {
	for name, classes := range map[string]map[appspec.AccessMode]string{
		"mapped":  {appspec.ReadWriteOnce: "fast", appspec.ReadWriteMany: "shared"},
		"default": nil,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testkit.APIServer(t), name)
			defer testkit.Run(w.Ctx, t, w.Config, func(mgr ctrl.Manager) error { return Register(mgr, Options{Classes: classes}) })()
			app := w.app("shop", volumeOf("data", 1), volumeOf("media", 1, shared), volumeOf("own", 1, func(v *tarnv1.AppVolume) { v.StorageClass = "chosen" }))
			if classes == nil {
				classes = appspec.DefaultClasses
			}
			for volume, want := range map[string]string{"data": classes[appspec.ReadWriteOnce], "media": classes[appspec.ReadWriteMany], "own": "chosen"} {
				w.Eventually("the claim of "+volume, func() string {
					claim := w.claim(app, volume)
					if claim == nil {
						return "there is none"
					}
					if got := appplan.ClassOf(claim); got != want {
						t.Fatalf("volume %s is of class %q, want %q", volume, got, want)
					}
					return ""
				})
			}
		})
	}
}

func TestADeploymentIsRecreatedFromTheDeployOnThatGivesItOneNodesVolume(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "strategy")
	defer w.run(w.Config)()
	app := w.app("shop", volumeOf("media", 1, shared))
	strategy := func(want appsv1.DeploymentStrategyType) {
		t.Helper()
		w.ready(app)
		if got := w.deployment(app).Spec.Strategy; got.Type != want || (got.RollingUpdate != nil) != (want == appsv1.RollingUpdateDeploymentStrategyType) {
			t.Errorf("the strategy is %+v, want %s", got, want)
		}
	}
	strategy(appsv1.RollingUpdateDeploymentStrategyType)
	w.Must(w.change(app, func(s *tarnv1.AppSpec) { s.Volumes = append(s.Volumes, volumeOf("data", 1)) }))
	strategy(appsv1.RecreateDeploymentStrategyType)
	w.Must(w.change(app, func(s *tarnv1.AppSpec) { s.Volumes = s.Volumes[:1] }))
	strategy(appsv1.RollingUpdateDeploymentStrategyType)
}
