package apps

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/testkit"
)

// steps names the actions of a plan in their order, without Events.
func steps(plan []action.Action) []string {
	var names []string
	for _, a := range plan {
		switch a := a.(type) {
		case Hold:
			names = append(names, "hold")
		case LetGo:
			names = append(names, "let go")
		case WriteTopology:
			var parts []string
			for _, d := range a.Topology.Volumes {
				parts = append(parts, strings.TrimSuffix(d.Name+"@"+d.MountPath, "@"))
			}
			names = append(names, "topology "+strings.Join(parts, " "))
		case MakeClaim:
			names = append(names, "make "+a.Claim.Name)
		case MarkClaim:
			names = append(names, fmt.Sprintf("mark %s %v", a.Claim.Name, a.Preserve))
		case GrowClaim:
			names = append(names, fmt.Sprintf("grow %s to %d", a.Claim.Name, a.Bytes/gi))
		case action.Delete:
			switch a.Object.(type) {
			case *corev1.ConfigMap:
				names = append(names, "drop topology")
			case *corev1.PersistentVolumeClaim:
				names = append(names, "drop "+a.Object.GetName())
			case *appsv1.Deployment:
				names = append(names, "stop")
			}
		case Run:
			names = append(names, fmt.Sprintf("run %d", *a.Deployment.Spec.Replicas))
		}
	}
	return names
}

// told returns the Events of a plan by reason.
func told(plan []action.Action) map[string]string {
	notes := map[string]string{}
	for _, a := range plan {
		switch a := a.(type) {
		case action.Emit:
			notes[a.Reason] = a.Note
		case Tell:
			notes[a.Reason] = a.Note
		}
	}
	return notes
}

func TestADeployDoesWhatIsLeftToDoInItsOrder(t *testing.T) {
	data, cache := volumeOf("data", 1), volumeOf("cache", 2, shared)
	for _, c := range []struct {
		name string
		view *View
		want []string
	}{
		{"a new App is held, then made from the topology on", viewOf(appOf(data, cache), func(v *View) { v.App.Finalizers = nil }),
			[]string{"hold", "topology data@/data cache@/cache", "make paas-app-shop-data", "make paas-app-shop-cache", "run 1"}},
		{"an App without an image is only held", viewOf(&tarnv1.App{}), []string{"hold"}},
		{"an App without volumes has a topology all the same", viewOf(appOf()), []string{"topology ", "run 1"}},
		{"what is deployed is left alone", deployed(appOf(data, cache)), nil},
		{"a claim that is there is mounted as it is", viewOf(appOf(data), bound(newClaim(viewOf(appOf()), &data))), []string{"topology data@/data", "run 1"}},
		{"a volume that is taken out is detached, and its claim stays", deployed(appOf(data, cache), asks(func(s *tarnv1.AppSpec) { s.Volumes = s.Volumes[:1] })),
			[]string{"topology data@/data cache", "run 1"}},
		{"a volume that grows has its claim ask for more", deployed(appOf(data), asks(func(s *tarnv1.AppSpec) { s.Volumes[0].SizeGi = 5 })),
			[]string{"topology data@/data", "grow paas-app-shop-data to 5"}},
		{"a volume grows after the pods are brought in line", deployed(appOf(data), asks(func(s *tarnv1.AppSpec) { s.Volumes[0].SizeGi, s.Image = 5, "shop:2" })),
			[]string{"topology data@/data", "run 1", "grow paas-app-shop-data to 5"}},
		{"a volume that has more than was asked for already does not grow", deployed(appOf(data), onClaim("data", func(claim *corev1.PersistentVolumeClaim) { claim.Status.Capacity = storage(5 * gi) }),
			asks(func(s *tarnv1.AppSpec) { s.Volumes[0].SizeGi = 5 })), []string{"topology data@/data"}},
		{"a claim that is not bound grows later", deployed(appOf(data), onClaim("data", func(claim *corev1.PersistentVolumeClaim) { claim.Status.Phase = corev1.ClaimPending }),
			asks(func(s *tarnv1.AppSpec) { s.Volumes[0].SizeGi = 5 })), []string{"topology data@/data"}},
		{"a volume that asks for less stays as it is", deployed(appOf(volumeOf("data", 5)), asks(func(s *tarnv1.AppSpec) { s.Volumes[0].SizeGi = 2 })), []string{"topology data@/data"}},
		{"a volume that is to be preserved from now on is marked so", deployed(appOf(data), asks(func(s *tarnv1.AppSpec) { s.Volumes[0].PreserveOnDelete = true })),
			[]string{"topology data@/data", "mark paas-app-shop-data true"}},
		{"one that is not any more neither", deployed(appOf(volumeOf("data", 1, preserving)), asks(func(s *tarnv1.AppSpec) { s.Volumes[0].PreserveOnDelete = false })),
			[]string{"topology data@/data", "mark paas-app-shop-data false"}},
		{"a Deployment that somebody has scaled is put right", deployed(appOf(data), func(v *View) { v.Deployment.Spec.Replicas = ptr.To[int32](3) }), []string{"run 1"}},
		{"a Deployment that somebody has changed is put right", deployed(appOf(data), func(v *View) { v.Deployment.Spec.Template.Spec.Containers[0].Image = "other" }), []string{"run 1"}},
		{"what has lost its label gets it back", deployed(appOf(data), func(v *View) { v.Deployment.Labels, v.Config.Labels = nil, nil }), []string{"topology data@/data", "run 1"}},
		{"a variable that is taken out reaches the pods", deployed(func() *tarnv1.App {
			app := appOf()
			app.Spec.Env = map[string]string{"A": "1"}
			return app
		}(), asks(func(s *tarnv1.AppSpec) { s.Env = nil })), []string{"run 1"}},
		{"no pods are none", deployed(appOf(data), asks(func(s *tarnv1.AppSpec) { s.Replicas = ptr.To[int32](0) })), []string{"run 0"}},
		{"what the API server fills in is no difference", deployed(appOf(data), func(v *View) {
			v.Deployment.Spec.Template.Spec.RestartPolicy, v.Deployment.Spec.RevisionHistoryLimit = corev1.RestartPolicyAlways, ptr.To[int32](10)
		}), nil},
		{"a claim that is being deleted is waited for", deployed(appOf(data), onClaim("data", terminating)), nil},
		{"an App whose image is taken out is stopped, and its volumes detached", deployed(appOf(data), asks(func(s *tarnv1.AppSpec) { s.Image, s.Volumes = "", nil })),
			[]string{"topology data", "stop"}},
		{"a topology that nobody can read is written anew", deployed(appOf(data), func(v *View) {
			v.Config.Data[topologyKey] = "{"
			v.Deployed = readTopology(v.Config)
		}), []string{"topology data@/data"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := steps(plan(c.view)); !slices.Equal(got, c.want) {
				t.Errorf("it does %q, want %q", got, c.want)
			}
		})
	}
}

func TestADeployTellsWhatBecomesOfVolumes(t *testing.T) {
	data := volumeOf("data", 1)
	for _, c := range []struct {
		name, reason, want string
		view               *View
	}{
		{"made", eventCreated, "claim paas-app-shop-data is created for volume data: 1 GiB of class ovh-csi-rbd", viewOf(appOf(data))},
		{"mounted again", eventAttached, "volume data is mounted again, with the data of its claim paas-app-shop-data", viewOf(appOf(data), bound(newClaim(viewOf(appOf()), &data)))},
		{"detached", eventDetached, "claim paas-app-shop-data is kept until the App is deleted", deployed(appOf(data), asks(func(s *tarnv1.AppSpec) { s.Volumes = nil }))},
		{"preserved no more", eventReleased, "claim paas-app-shop-data of volume data was preserved; from now on it is deleted with the App",
			deployed(appOf(volumeOf("data", 1, preserving)), asks(func(s *tarnv1.AppSpec) { s.Volumes[0].PreserveOnDelete = false }))},
		{"growing", eventGrowing, "is resized to 5 GiB", deployed(appOf(data), asks(func(s *tarnv1.AppSpec) { s.Volumes[0].SizeGi = 5 }))},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := told(plan(c.view))[c.reason]; !strings.Contains(got, c.want) {
				t.Errorf("it tells %q, want %q", got, c.want)
			}
		})
	}
}

func TestNothingIsDoneWhereTheSpecCannotBe(t *testing.T) {
	data := volumeOf("data", 1)
	three := func(s *tarnv1.AppSpec) { s.Replicas = ptr.To[int32](3) }
	for _, c := range []struct {
		name, want string
		view       *View
	}{
		{"more pods than the volume bears", "cannot scale to 3 replicas: volume 'data' is ReadWriteOnce (max 1 replica). Re-create the volume with accessMode 'ReadWriteMany' to scale out.",
			deployed(appOf(data), asks(three))},
		{"more pods than the live claim bears, whatever the spec says", "volume 'data' is ReadWriteOnce",
			deployed(appOf(data), asks(three), asks(func(s *tarnv1.AppSpec) { s.Volumes[0].AccessMode = rwx }))},
		{"a claim of somebody else", "claim 'paas-app-shop-data' exists and does not belong to app 'shop', so it is not touched",
			viewOf(appOf(data), bound(newClaim(viewOf(appOf()), &data), func(claim *corev1.PersistentVolumeClaim) { claim.Labels = nil }))},
		{"a Deployment of somebody else", "Deployment paas-app-shop exists and does not belong to this App", deployed(appOf(data), func(v *View) { v.Deployment.OwnerReferences = nil })},
		{"a ConfigMap of an earlier App", "ConfigMap paas-app-shop exists and does not belong to this App", deployed(appOf(data), func(v *View) { v.Config.OwnerReferences[0].UID = "old" })},
		{"a class that lets nothing grow", "storage class 'ovh-csi-rbd' does not allow expansion", deployed(appOf(data),
			asks(func(s *tarnv1.AppSpec) { s.Volumes[0].SizeGi = 2 }), func(v *View) { v.Classes["ovh-csi-rbd"].AllowVolumeExpansion = nil })},
		{"a write that the API server did not take", "exceeded quota", viewOf(appOf(data), func(v *View) { v.Refused = "exceeded quota" })},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := steps(plan(c.view)); len(got) > 0 {
				t.Errorf("it does %q, want nothing", got)
			}
			is := deployedOf(c.view)
			if is.holds || is.reason != tarnv1.ReasonRefused || !strings.Contains(is.message, c.want) {
				t.Errorf("it says %+v, want Refused with %q", is, c.want)
			}
		})
	}
	for _, replicas := range []int32{0, 1} {
		if why := refusal(deployed(appOf(data), asks(func(s *tarnv1.AppSpec) { s.Replicas = &replicas }))); why != "" {
			t.Errorf("%d replicas are refused: %s", replicas, why)
		}
	}
	if why := refusal(deployed(appOf(volumeOf("data", 1, shared)), asks(three))); why != "" {
		t.Errorf("3 replicas of a volume that bears them are refused: %s", why)
	}
}

func TestTheDeploymentStopsTheOldPodFirstWhereAVolumeBearsOnlyOne(t *testing.T) {
	for _, c := range []struct {
		name   string
		view   *View
		want   appsv1.DeploymentStrategyType
		warned bool
	}{
		{"no volume", viewOf(appOf()), appsv1.RollingUpdateDeploymentStrategyType, false},
		{"one for many", viewOf(appOf(volumeOf("data", 1, shared))), appsv1.RollingUpdateDeploymentStrategyType, false},
		{"one for one", viewOf(appOf(volumeOf("cache", 1, shared), volumeOf("data", 1))), appsv1.RecreateDeploymentStrategyType, true},
		{"one whose live claim is for one", deployed(appOf(volumeOf("data", 1)), asks(func(s *tarnv1.AppSpec) { s.Volumes[0].AccessMode = rwx })),
			appsv1.RecreateDeploymentStrategyType, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := newDeployment(c.view).Spec.Strategy.Type; got != c.want {
				t.Errorf("the strategy is %s, want %s", got, c.want)
			}
			warned := slices.ContainsFunc(warnings(c.view), func(w string) bool {
				return strings.Contains(w, "volume 'data' is ReadWriteOnce, so the running pod is stopped before a new one starts (strategy Recreate)")
			})
			if warned != c.warned {
				t.Errorf("warnings are %q, want one of Recreate: %v", warnings(c.view), c.warned)
			}
		})
	}
}

// The kubelet turns $$ into $, so each value arrives as written.
func TestPodsAreWhatTheSpecSays(t *testing.T) {
	app := appOf(volumeOf("data", 1))
	app.Spec.Command, app.Spec.Args, app.Spec.Port = []string{"serve"}, []string{"--fast", "$(A)"}, 8080
	app.Spec.Env, app.Spec.Secrets = map[string]string{"B": "pa$$word", "A": "1"}, map[string]tarnv1.SecretKey{"C": "shop-db/password"}
	pod := newDeployment(viewOf(app)).Spec.Template.Spec
	c := pod.Containers[0]
	if c.Image != "shop:1" || !slices.Equal(c.Command, []string{"serve"}) || !slices.Equal(c.Args, []string{"--fast", "$$(A)"}) || c.Ports[0].ContainerPort != 8080 {
		t.Errorf("the container is %+v", c)
	}
	secret := &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "shop-db"}, Key: "password"}
	want := []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "pa$$$$word"}, {Name: "C", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: secret}}}
	if !reflect.DeepEqual(c.Env, want) {
		t.Errorf("the variables are %v, want %v", c.Env, want)
	}
	if c.VolumeMounts[0].MountPath != "/data" || pod.Volumes[0].PersistentVolumeClaim.ClaimName != "paas-app-shop-data" {
		t.Errorf("mounted is %+v of %+v", c.VolumeMounts, pod.Volumes)
	}
	if ptr.Deref(pod.AutomountServiceAccountToken, true) {
		t.Error("the pod is given a token of the cluster")
	}
}

func TestClaimsAreOfTheClassOfTheirAccessMode(t *testing.T) {
	v := viewOf(appOf())
	for _, c := range []struct {
		volume tarnv1.AppVolume
		mode   corev1.PersistentVolumeAccessMode
		class  string
	}{
		{volumeOf("data", 3), rwo, "ovh-csi-rbd"},
		{volumeOf("data", 3, shared), rwx, "ovh-csi-nfs"},
		{volumeOf("data", 3, shared, func(v *tarnv1.AppVolume) { v.StorageClass = "fast" }), rwx, "fast"},
	} {
		claim := newClaim(v, &c.volume)
		if claim.Spec.AccessModes[0] != c.mode || *claim.Spec.StorageClassName != c.class || requested(claim) != 3*gi || len(claim.OwnerReferences) > 0 {
			t.Errorf("the claim is %+v, owners %v, want %s of class %s, 3Gi, of nobody", claim.Spec, claim.OwnerReferences, c.mode, c.class)
		}
	}
}

func TestAnEndTakesThePodsThenTheClaimsThenTheRest(t *testing.T) {
	data, kept := volumeOf("data", 1), volumeOf("kept", 1, preserving)
	guard := func(claim *corev1.PersistentVolumeClaim) { claim.Labels[tarnv1.LabelDeletionProtection] = "true" }
	without := func(name string) testkit.With[*View] {
		return func(v *View) { delete(v.Claims, "paas-app-shop-"+name) }
	}
	for _, c := range []struct {
		name string
		view *View
		want []string
	}{
		{"the pods first", deployed(appOf(data, kept), dying), []string{"stop"}},
		{"and nothing while they are being stopped", deployed(appOf(data), dying, func(v *View) { v.Deployment.DeletionTimestamp = v.App.DeletionTimestamp }), nil},
		{"then the claims, but those to be preserved", deployed(appOf(data, kept), dying, stopped), []string{"drop paas-app-shop-data"}},
		{"and nothing while they are going", deployed(appOf(data, kept), dying, stopped, onClaim("data", terminating)), nil},
		{"then the rest", deployed(appOf(data, kept), dying, stopped, without("data")), []string{"drop topology", "let go"}},
		{"an App that was never deployed is let go", viewOf(appOf(), dying), []string{"let go"}},
		{"one that was let go is left alone", viewOf(appOf(), dying, func(v *View) { v.App.Finalizers = nil }), nil},
		{"a detached volume goes too", deployed(appOf(data), asks(func(s *tarnv1.AppSpec) { s.Volumes = nil }), settle, dying, stopped), []string{"drop paas-app-shop-data"}},
		{"a detached volume that was to be preserved stays", deployed(appOf(kept), asks(func(s *tarnv1.AppSpec) { s.Volumes = nil }), settle, dying, stopped), []string{"drop topology", "let go"}},
		{"a claim that was never deployed stays", viewOf(appOf(data), bound(newClaim(viewOf(appOf()), &data)), dying), []string{"mark paas-app-shop-data true", "let go"}},
		{"one of an App that was deployed stays too", deployed(appOf(data), bound(broughtBack("old")), settle, dying, stopped), []string{"mark paas-app-shop-old true", "drop paas-app-shop-data"}},
		{"one that was deployed since goes", deployed(appOf(data, volumeOf("old", 1)), onClaim("old", forgets), asks(func(s *tarnv1.AppSpec) { s.Volumes = s.Volumes[:1] }), settle, dying, stopped),
			[]string{"drop paas-app-shop-data", "drop paas-app-shop-old"}},
		{"a claim that is not the App's stays", deployed(appOf(data), onClaim("data", func(claim *corev1.PersistentVolumeClaim) { claim.Labels = nil }), dying, stopped), []string{"drop topology", "let go"}},
		{"one that is to be preserved only since is marked and stays", deployed(appOf(data), asks(func(s *tarnv1.AppSpec) { s.Volumes[0].PreserveOnDelete = true }), dying, stopped),
			[]string{"mark paas-app-shop-data true", "drop topology", "let go"}},
		{"one that was to be preserved when it was deployed stays", deployed(appOf(kept), asks(func(s *tarnv1.AppSpec) { s.Volumes[0].PreserveOnDelete = false }), dying, stopped), []string{"drop topology", "let go"}},
		{"one that is marked stays, whatever was deployed", deployed(appOf(data), onClaim("data", func(claim *corev1.PersistentVolumeClaim) {
			claim.Annotations[tarnv1.AnnotationPreserve] = preserveYes
		}), dying, stopped), []string{"drop topology", "let go"}},
		{"a claim that is protected keeps the App", deployed(appOf(data, volumeOf("logs", 1)), onClaim("data", guard), dying, stopped), []string{"drop paas-app-shop-logs"}},
		{"a Deployment of somebody else stays", deployed(appOf(), func(v *View) { v.Deployment.OwnerReferences = nil }, dying), []string{"drop topology", "let go"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := steps(plan(c.view)); !slices.Equal(got, c.want) {
				t.Errorf("it does %q, want %q", got, c.want)
			}
		})
	}
}

func TestAnEndTellsWhatItWaitsForAndWhatStays(t *testing.T) {
	data, kept := volumeOf("data", 1), volumeOf("kept", 1, preserving)
	guarded := deployed(appOf(data), onClaim("data", func(claim *corev1.PersistentVolumeClaim) { claim.Labels[tarnv1.LabelDeletionProtection] = "true" }), dying, stopped)
	for _, c := range []struct {
		want string
		view *View
	}{
		{"its pods are being stopped; 1 remain", deployed(appOf(data), dying)},
		{"these claims are being deleted: paas-app-shop-data", deployed(appOf(data), dying, stopped)},
		{"kubectl label persistentvolumeclaims paas-app-shop-data -n ns tarn.dev/deletion-protection-", guarded},
	} {
		if is := deployedOf(c.view); is.reason != tarnv1.ReasonDeleting || !strings.Contains(is.message, c.want) {
			t.Errorf("it says %+v, want Deleting with %q", is, c.want)
		}
	}
	last := deployed(appOf(data, kept), dying, stopped, func(v *View) { delete(v.Claims, "paas-app-shop-data") })
	if got := told(plan(last))[eventPreserved]; !strings.Contains(got, "claim paas-app-shop-kept is preserved") {
		t.Errorf("it tells %q of what stays", got)
	}
}
