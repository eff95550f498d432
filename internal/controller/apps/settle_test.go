//go:build integration

package apps

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

// life deploys an App, then deploys it without one volume, with a larger and a new one, and
// deletes it. A second App of its name then finds what was preserved. life restarts the
// controller whenever the killer stops it.
func (w *world) life(k *testkit.Killer) {
	w.T.Helper()
	defer k.Life(w.Config, w.run)()
	app := w.app("shop", volumeOf("data", 1), volumeOf("cache", 1, shared), volumeOf("keep", 1))
	w.ready(app)
	data, keep := w.claim(app, "data").UID, w.claim(app, "keep").UID
	w.Must(w.change(app, func(s *tarnv1.AppSpec) {
		s.Image, s.Volumes = "shop:2", []tarnv1.AppVolume{volumeOf("data", 3), volumeOf("keep", 1, preserving), volumeOf("logs", 1, shared)}
	}))
	w.ready(app)
	w.deployedAnew(app, data)
	w.Must(w.Client.Delete(w.Ctx, app))
	w.ended(app, "paas-app-shop-keep")

	next := w.app("shop", volumeOf("keep", 1))
	w.ready(next)
	if claim := w.claim(next, "keep"); claim.UID != keep || preserved(claim) {
		w.T.Errorf("the claim is %s and preserved: %v, want %s, and it is not to be preserved any more", claim.UID, preserved(claim), keep)
	}
	w.Must(w.Client.Delete(w.Ctx, next))
	w.ended(next)
}

// deployedAnew checks the result of the second deploy of a life.
func (w *world) deployedAnew(app *tarnv1.App, data any) {
	w.T.Helper()
	if claim := w.claim(app, "data"); claim.UID != data || requested(claim) != 3*gi {
		w.T.Errorf("the claim is %s and asks for %d, want %s and 3Gi", claim.UID, requested(claim), data)
	}
	if claim := w.claim(app, "cache"); claim == nil || claim.DeletionTimestamp != nil {
		w.T.Error("the claim of the volume that was taken out is not kept")
	}
	if d := app.Status.Detached; len(d) != 1 || d[0].Name != "cache" {
		w.T.Errorf("detached are %+v, want cache", d)
	}
	if d := w.deployment(app); d.Spec.Template.Spec.Containers[0].Image != "shop:2" || len(d.Spec.Template.Spec.Volumes) != 3 {
		w.T.Errorf("the Deployment runs %+v", d.Spec.Template.Spec)
	}
}

func TestAnAppLivesAndEndsWhereverTheControllerIsKilled(t *testing.T) {
	live := func(t *testing.T, server *rest.Config, name string, k *testkit.Killer) {
		newWorld(t, server, "life-"+name).life(k)
	}
	whole := testkit.NewKiller(0)
	live(t, testkit.OwnAPIServer(t), "whole", whole)
	testkit.AtEveryWrite(t, whole.Writes(), func(t *testing.T, server *rest.Config, n int) {
		live(t, server, fmt.Sprint(n), testkit.NewKiller(n))
	})
}

func TestADeployOfTheSameTouchesNothing(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "same")
	defer w.run(w.Config)()
	app := w.app("shop", volumeOf("data", 2))
	w.ready(app)
	claim, workload := w.claim(app, "data"), w.deployment(app)
	w.Must(w.change(app, func(s *tarnv1.AppSpec) { s.Volumes[0].SizeGi = 1 })) // smaller, but still a deploy
	w.ready(app)
	if now := w.claim(app, "data"); now.ResourceVersion != claim.ResourceVersion {
		t.Errorf("the claim was written: %+v", now)
	}
	if now := w.deployment(app); now.Generation != workload.Generation {
		t.Errorf("the Deployment was written: %+v", now.Spec)
	}
}

func TestManyDeploysAtOnceOfOneAppEndConsistent(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "many")
	defer w.run(w.Config)()
	app := w.app("shop", volumeOf("data", 1))
	const deploys = 50
	var all sync.WaitGroup
	for i := range deploys {
		all.Go(func() {
			if err := w.change(app, func(s *tarnv1.AppSpec) {
				s.Image = fmt.Sprintf("shop:%d", i)
				s.Volumes = []tarnv1.AppVolume{volumeOf("data", int64(1+i%3)), volumeOf(fmt.Sprintf("extra-%d", i%5), 1, shared)}
			}); err != nil {
				t.Errorf("deploy %d: %v", i, err)
			}
		})
	}
	all.Wait()
	w.ready(app)
	d := w.deployment(app)
	if pod := d.Spec.Template.Spec; pod.Containers[0].Image != app.Spec.Image || len(pod.Volumes) != 2 || pod.Volumes[1].PersistentVolumeClaim.ClaimName != appspec.ClaimName("shop", app.Spec.Volumes[1].Name) {
		t.Errorf("the Deployment runs %+v, want what the spec says: %+v", pod, app.Spec)
	}
	claims := &corev1.PersistentVolumeClaimList{}
	w.Must(w.Client.List(w.Ctx, claims, client.InNamespace(w.namespace)))
	if len(claims.Items) != len(app.Status.Volumes)+len(app.Status.Detached) {
		t.Errorf("there are %d claims, the status tells of %d and %d", len(claims.Items), len(app.Status.Volumes), len(app.Status.Detached))
	}
	config := &corev1.ConfigMap{}
	w.Must(w.Client.Get(w.Ctx, client.ObjectKey{Namespace: w.namespace, Name: ownName(app)}, config))
	if has := readTopology(config); len(has.Volumes) != len(claims.Items) {
		t.Errorf("the topology has %+v, want all %d claims", has, len(claims.Items))
	}
	w.Must(w.Client.Delete(w.Ctx, app))
	w.ended(app)
}

func TestAClaimOfSomebodyElseIsNotTouched(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "foreign")
	defer w.run(w.Config)()
	foreign := testkit.Claim(w.namespace, "paas-app-shop-data", "", "fast")
	w.Must(w.Client.Create(w.Ctx, foreign))
	app := w.app("shop", volumeOf("data", 1))
	if is := w.says(app, tarnv1.ReasonRefused); !strings.Contains(is.Message, "claim 'paas-app-shop-data' exists and does not belong to app 'shop'") {
		t.Errorf("it says %q", is.Message)
	}
	if phase := app.Status.Volumes[0].Phase; phase != tarnv1.AppVolumeForeign {
		t.Errorf("the volume is %s, want Foreign", phase)
	}
	w.Must(w.Client.Delete(w.Ctx, foreign))
	w.ready(app)
	if claim := w.claim(app, "data"); claim.UID == foreign.UID {
		t.Error("the claim is still the other's")
	}
}

func TestThePodsGoOnWhenMoreAreRefused(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "scale")
	defer w.run(w.Config)()
	app := w.app("shop", volumeOf("data", 1))
	w.ready(app)
	w.Must(w.change(app, func(s *tarnv1.AppSpec) { s.Replicas = ptr.To[int32](3) }))
	const want = "cannot scale to 3 replicas: volume 'data' is ReadWriteOnce (max 1 replica). Re-create the volume with accessMode 'ReadWriteMany' to scale out."
	if is := w.says(app, tarnv1.ReasonRefused); is.Message != want {
		t.Errorf("it says %q, want %q", is.Message, want)
	}
	if n := *w.deployment(app).Spec.Replicas; n != 1 {
		t.Errorf("%d pods run, want 1", n)
	}
	for _, n := range []int32{0, 1} {
		w.Must(w.change(app, func(s *tarnv1.AppSpec) { s.Replicas = &n }))
		w.ready(app)
		if has := *w.deployment(app).Spec.Replicas; has != n {
			t.Errorf("%d pods run, want %d", has, n)
		}
	}
}

func TestAClassThatLetsVolumesGrowEndsARefusal(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "grow")
	defer w.run(w.Config)()
	stiff := testkit.Class("stiff-" + w.namespace)
	w.Must(w.Client.Create(w.Ctx, stiff))
	app := w.app("shop", volumeOf("data", 1, func(v *tarnv1.AppVolume) { v.StorageClass = stiff.Name }))
	w.ready(app)
	w.Must(w.change(app, func(s *tarnv1.AppSpec) { s.Volumes[0].SizeGi = 2 }))
	if is := w.says(app, tarnv1.ReasonRefused); is.Message != "storage class '"+stiff.Name+"' does not allow expansion" {
		t.Errorf("it says %q", is.Message)
	}
	w.Must(w.Client.Patch(w.Ctx, stiff, client.RawPatch("application/merge-patch+json", []byte(`{"allowVolumeExpansion": true}`))))
	w.ready(app)
	if claim := w.claim(app, "data"); requested(claim) != 2*gi {
		t.Errorf("the claim asks for %d, want 2Gi", requested(claim))
	}
}

func TestAProtectedClaimKeepsItsApp(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "protected")
	defer w.run(w.Config)()
	app := w.app("shop", volumeOf("data", 1), volumeOf("logs", 1))
	w.ready(app)
	label := func(value string) {
		w.Must(w.Client.Patch(w.Ctx, w.claim(app, "data"), client.RawPatch("application/merge-patch+json",
			[]byte(`{"metadata": {"labels": {"`+tarnv1.LabelDeletionProtection+`": `+value+`}}}`))))
	}
	label(`"true"`)
	w.Must(w.Client.Delete(w.Ctx, app))
	w.Eventually("waiting for the protected claim alone", func() string {
		w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(app), app))
		if c := app.Status.Conditions; len(c) > 0 && strings.Contains(c[0].Message, "claim paas-app-shop-data is protected from deletion") && w.claim(app, "logs") == nil {
			return ""
		}
		return fmt.Sprintf("%+v", app.Status)
	})
	label("null")
	w.ended(app)
}

func TestWhatIsDeletedByHandIsMadeAnew(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "anew")
	defer w.run(w.Config)()
	app := w.app("shop", volumeOf("data", 1))
	w.ready(app)
	d, config := w.deployment(app), &corev1.ConfigMap{}
	w.Must(w.Client.Get(w.Ctx, client.ObjectKey{Namespace: w.namespace, Name: ownName(app)}, config))
	was := map[string]any{"Deployment": d.UID, "ConfigMap": config.UID}
	for _, o := range []client.Object{d, config} {
		w.Must(w.Client.Delete(w.Ctx, o))
	}
	w.Eventually("making both anew", func() string {
		for kind, o := range map[string]client.Object{"Deployment": d, "ConfigMap": config} {
			err := w.Client.Get(w.Ctx, client.ObjectKeyFromObject(o), o)
			if apierrors.IsNotFound(err) || was[kind] == any(o.GetUID()) {
				return kind + " is not"
			}
			w.Must(err)
		}
		return ""
	})
	if has := readTopology(config); !has.mounts("data") {
		t.Errorf("the topology is %+v, want data in it", has)
	}
}

func TestAClaimThatIsDeletedByHandIsMadeAnewAndToldOf(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "lost")
	defer w.run(w.Config)()
	app := w.app("shop", volumeOf("data", 1))
	w.ready(app)
	lost := w.claim(app, "data")
	lost.Finalizers = []string{"kubernetes.io/pvc-protection"} // as Kubernetes does while a pod uses it
	w.Must(w.Client.Update(w.Ctx, lost))
	w.Must(w.Client.Delete(w.Ctx, lost))
	if is := w.says(app, tarnv1.ReasonDeploying); !strings.Contains(is.Message, "claim paas-app-shop-data is being deleted, and is created again, empty, once no pod uses it") {
		t.Errorf("it says %q", is.Message)
	}
	w.Must(w.change(app, func(s *tarnv1.AppSpec) { s.Replicas = ptr.To[int32](0) }))
	w.ready(app)
	if now := w.claim(app, "data"); now == nil || now.UID == lost.UID {
		t.Fatalf("the claim was not made anew: %v", now)
	}
	if said := strings.Join(app.Status.Warnings, "\n"); !strings.Contains(said, "volume 'data' was created again, empty, at ") {
		t.Errorf("it warns of\n%s", said)
	}
	told := &eventsv1.EventList{}
	w.Eventually("posting a Warning", func() string {
		w.Must(w.Client.List(w.Ctx, told, client.InNamespace(w.namespace)))
		for i := range told.Items {
			if e := &told.Items[i]; e.Reason == eventRemade && e.Type == corev1.EventTypeWarning && e.Regarding.Name == "shop" {
				return ""
			}
		}
		return fmt.Sprintf("there are %d Events", len(told.Items))
	})
}

func TestAnAppSaysWhyItsPodsDoNotRun(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "crash")
	defer w.run(w.Config)()
	w.crashing.Store(true)
	app := w.app("shop", volumeOf("data", 1))
	w.Eventually("making the Deployment", func() string {
		if _, err := kube.Get(w.Ctx, w.Client, client.ObjectKey{Namespace: w.namespace, Name: ownName(app)}, &appsv1.Deployment{}); err != nil {
			return err.Error()
		}
		w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(app), app))
		if ready := meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionReady); ready == nil || ready.Reason != tarnv1.ReasonWaitingForPods {
			return fmt.Sprintf("%+v", ready)
		}
		return ""
	})
	template := w.deployment(app).Spec.Template
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "shop-1", Labels: template.Labels}, Spec: template.Spec}
	w.Must(w.Client.Create(w.Ctx, pod))
	say := func(waits corev1.ContainerStateWaiting) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: container, Image: "shop:1", State: corev1.ContainerState{Waiting: &waits},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Message: "no config"}},
		}}
		w.Must(w.Client.Status().Update(w.Ctx, pod))
	}
	reason := func(want, message string) {
		w.Eventually("being "+want, func() string {
			w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(app), app))
			if ready := meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionReady); ready.Reason != want || ready.Message != message {
				return fmt.Sprintf("%+v", ready)
			}
			return ""
		})
	}
	say(corev1.ContainerStateWaiting{Reason: crashing})
	reason(tarnv1.ReasonPodsFailing, "pod shop-1 keeps ending, with exit code 3; it printed last:\nno config")
	say(corev1.ContainerStateWaiting{Reason: "ContainerCreating"})
	reason(tarnv1.ReasonWaitingForPods, "0 of 1 pods are ready")
	say(corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"})
	reason(tarnv1.ReasonPodsFailing, "the image of pod shop-1 cannot be pulled: not found")
	w.Must(w.Client.Delete(w.Ctx, pod, client.GracePeriodSeconds(0)))
	reason(tarnv1.ReasonWaitingForPods, "0 of 1 pods are ready")
	w.crashing.Store(false)
	w.ready(app)
}

func TestADeploymentThatLostItsLabelGetsItBack(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "label")
	defer w.runAsInACluster()()
	app := w.app("shop", volumeOf("data", 1))
	w.ready(app)
	config := &corev1.ConfigMap{}
	w.Must(w.Client.Get(w.Ctx, client.ObjectKey{Namespace: w.namespace, Name: ownName(app)}, config))
	for _, o := range []client.Object{w.deployment(app), config} {
		w.Must(w.Client.Patch(w.Ctx, o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"labels": null}}`))))
	}
	w.Eventually("labelling both again", func() string {
		w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(config), config))
		if config.Labels[tarnv1.LabelApp] != "shop" || w.deployment(app).Labels[tarnv1.LabelApp] != "shop" {
			return fmt.Sprintf("the labels are %v and %v", config.Labels, w.deployment(app).Labels)
		}
		return ""
	})
	w.ready(app)
}

func TestAProtectedAppIsNotDeleted(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "guarded")
	app := &tarnv1.App{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "shop", Labels: map[string]string{tarnv1.LabelDeletionProtection: "true"}}}
	w.Must(w.Client.Create(w.Ctx, app))
	w.Eventually("refusing to delete it", func() string {
		if err := w.Client.Delete(w.Ctx, app, client.DryRunAll); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "apps.tarn.dev "+w.namespace+"/shop is protected from deletion") {
			return fmt.Sprintf("got %v, want a refusal", err)
		}
		return ""
	})
}

func TestTheAPIServersRefusalIsTold(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "quota")
	defer w.run(w.Config)()
	app := w.app("shop", volumeOf("data", 1, func(v *tarnv1.AppVolume) { v.StorageClass = "any" }))
	w.ready(app)
	w.Must(w.change(app, func(s *tarnv1.AppSpec) { s.Env = map[string]string{"=": "no name"} }))
	if is := w.says(app, tarnv1.ReasonRefused); !strings.Contains(is.Message, "env") {
		t.Errorf("it says %q", is.Message)
	}
	w.Must(w.change(app, func(s *tarnv1.AppSpec) { s.Env = nil }))
	w.ready(app)
}

func TestNoClaimIsMadeForAnAppThatIsGone(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t), "gone")
	r := &reconciler{client: w.Client, reader: w.Client}
	gone := appOf(volumeOf("data", 1))
	gone.Namespace = w.namespace
	v := viewOf(gone)
	if err := apply(w.Ctx, r.begin(v), v, []action.Action{MakeClaim{Claim: newClaim(v, &gone.Spec.Volumes[0])}}); !errors.Is(err, kube.ErrStale) {
		t.Errorf("got %v, want that the cache is behind", err)
	}
	if claim := w.claim(gone, "data"); claim != nil {
		t.Errorf("there is claim %s, which nothing would ever delete", claim.Name)
	}
}
