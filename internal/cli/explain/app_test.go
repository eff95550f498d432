package explain

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// asApp asks about an App shop/web, deployed with the claim as its only volume. reason is that of
// its condition Ready; an empty one means that the App is Ready.
func (w *world) asApp(reason, message string, changes ...func(*tarnv1.App)) *world {
	app := &tarnv1.App{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Generation: 1, CreationTimestamp: began, Finalizers: []string{tarnv1.FinalizerApp}}}
	app.Spec = tarnv1.AppSpec{Image: "web:1", Volumes: []tarnv1.AppVolume{{Name: "data", MountPath: "/data", SizeGi: 1}}}
	status := func(is bool) metav1.ConditionStatus {
		return map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[is]
	}
	app.Status = tarnv1.AppStatus{ObservedGeneration: 1, Conditions: []metav1.Condition{
		{Type: tarnv1.ConditionDeployed, Status: status(reason != tarnv1.ReasonRefused), Reason: reason, Message: message, LastTransitionTime: began},
		{Type: tarnv1.ConditionReady, Status: status(reason == ""), Reason: reason, Message: message, LastTransitionTime: began},
	}}
	if reason == "" {
		app.Status.ReadyReplicas = 1
	}
	for _, change := range changes {
		change(app)
	}
	w.claim.Labels = map[string]string{tarnv1.LabelApp: "web", tarnv1.LabelAppVolume: "data"}
	w.view.Asked, w.view.Claim, w.view.App, w.view.Claims = Object{App, "shop", "web"}, nil, app, []*claimView{w.claimView}
	w.view.Workload = &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "paas-app-web"}}
	return w
}

// appPod gives the App a pod.
func (w *world) appPod(changes ...func(*corev1.Pod)) *world {
	w.view.Pods = append(w.view.Pods, &podView{Pod: somePod("shop", "web-1", changes...), Drivers: []string{"gold"}, Log: []string{"the last line"}})
	return w
}

func TestAnAppSaysWhatItWaitsFor(t *testing.T) {
	const waiting, deploying, refused = tarnv1.ReasonWaitingForPods, tarnv1.ReasonDeploying, tarnv1.ReasonRefused
	deleting := func(change func(*world)) *world {
		return with(newWorld().bound().asApp(tarnv1.ReasonDeleting, "these claims are being deleted: data", func(a *tarnv1.App) { a.DeletionTimestamp = &began }), change)
	}
	for _, c := range []answer{
		{"nothing deployed", newWorld().asApp(tarnv1.ReasonNothingDeployed, "", func(a *tarnv1.App) { a.Spec = tarnv1.AppSpec{} }),
			"app shop/web is not deployed: nothing is deployed to it", "when you deploy a paas.toml", "tarn app deploy web --namespace shop --file paas.toml"},
		{"nobody looks", with(newWorld().asApp("", "", func(a *tarnv1.App) { a.Generation = 2 }), func(w *world) { w.view.Controller = nil }),
			"it has to be reconciled, but has not started; no lease shows whether a tarn controller runs", "when tarn controller runs", ""},
		{"changed a moment ago", newWorld().asApp("", "", func(a *tarnv1.App) {
			a.Generation = 2
			a.ManagedFields = []metav1.ManagedFieldsEntry{{Time: ptr.To(metav1.NewTime(now.Add(-1e9)))}}
		}), "it has to be reconciled, which starts within moments", "", ""},
		{"a claim of somebody else's", with(newWorld().bound().asApp(refused, "claim data is taken"), func(w *world) { w.claim.Labels = nil }),
			"is refused: its spec is rejected: claim data is taken", "when you change its spec", "kubectl -n shop label pvc data --overwrite tarn.dev/app=web tarn.dev/app-volume=data"},
		{"too many pods for its volume", newWorld().bound().asApp(refused, "cannot scale", func(a *tarnv1.App) { a.Spec.Replicas = ptr.To[int32](2) }),
			"its spec is rejected: cannot scale", "when you change its spec", "tarn app scale web 1 --namespace shop"},
		{"a claim without class", withoutClass(newWorld(), ptr.To("gold")).asApp(tarnv1.ReasonWaitingForVolumes, "volume data is Pending"),
			`app shop/web is not Ready: claim shop/data: StorageClass "gold" does not exist`, "when StorageClass gold is created", "kubectl replace --force"},
		{"a claim without class, and its pod", withoutClass(newWorld(), ptr.To("gold")).asApp(tarnv1.ReasonWaitingForVolumes, "volume data is Pending").appPod(unscheduled),
			`claim shop/data: StorageClass "gold" does not exist`, "when StorageClass gold is created", "kubectl replace --force"},
		{"a creation that fails", newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepValidation, "shelf 7 is full").asApp(tarnv1.ReasonWaitingForVolumes, ""),
			"claim shop/data: PavProvisioner gold rejects it, attempt 3: shelf 7 is full", "attempt 4 in 30s", "kubectl delete pavvolume pvc-claim-uid"},
		{"pods that a quota forbids", with(newWorld().bound().asApp(waiting, "0 of 1 pods are ready"), func(w *world) {
			w.view.Workload.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "exceeded quota"}}
		}), "its pods cannot be created: exceeded quota", "when its pods are allowed", ""},
		{"a ReplicaSet that a policy forbids", with(newWorld().bound().asApp(waiting, "0 of 1 pods are ready"), func(w *world) {
			w.view.Workload.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ReplicaSetCreateError", Message: "refused"}}
		}), "its pods cannot be created: refused", "when its pods are allowed", ""},
		{"its Deployment, which nobody makes", with(newWorld().bound().asApp(deploying, "the Deployment is to be made"), func(w *world) { w.view.Workload, w.view.Controller = nil, nil }),
			"its Deployment has to be created, but has not started; no lease shows whether a tarn controller runs", "when tarn controller runs", ""},
		{"its Deployment, which who asks may not read", with(newWorld().bound().asApp(deploying, "0 of 1 pods are ready"), func(w *world) {
			w.view.Workload, w.view.Controller = nil, nil
			w.view.Unread = []unread{{Object{deployment, "shop", "paas-app-web"}, needs + " to get deployments.apps"}}
		}), "app shop/web is not Ready: 0 of 1 pods are ready", "", ""},
		{"a pod that crashes", newWorld().bound().asApp(waiting, "0 of 1 pods are ready").appPod(waits(crashing, "back-off"), func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
		}),
			"pod shop/web-1: its volumes are mounted, but keeps crashing", "", ""},
		{"a pod that finds no node", newWorld().bound().asApp(waiting, "0 of 1 pods are ready").appPod(unscheduled),
			"pod shop/web-1: the scheduler finds no node for it: 0/1 nodes fit", "when the scheduler finds a node", ""},
		{"a pod whose volume cannot be staged", with(newWorld().bound().asApp(waiting, "").appPod(), func(w *world) {
			w.staged(func(g *tarnv1.PavStage) {
				g.Status.Node.Phase, g.Status.Pod.Phase, g.Status.Pod.Message = tarnv1.StageWaiting, tarnv1.StagePodFailed, "no image"
			})
		}), "pod shop/web-1: volume pvc-claim-uid is not staged on node n1: no image", "when the kubelet retries", "kubectl edit pavprovisioner gold"},
		{"a Deployment that nobody makes", with(newWorld().bound().asApp(deploying, "being deployed"), func(w *world) { w.view.Workload, w.view.Controller = nil, nil }),
			"its Deployment has to be created, but has not started; no lease shows whether a tarn controller runs", "when tarn controller runs", ""},
		{"what only its controller knows", newWorld().bound().asApp(waiting, "0 of 1 pods are ready"), "app shop/web is not Ready: 0 of 1 pods are ready", "", ""},
		{"an end that waits for a pod", deleting(func(w *world) { w.appPod(runs, func(p *corev1.Pod) { p.DeletionTimestamp = &began }) }),
			"app shop/web is Terminating: pod shop/web-1: its containers have not ended", "when its containers have ended", ""},
		{"an end that waits for a claim", deleting(func(w *world) {
			w.claim.DeletionTimestamp, w.claim.Finalizers = &began, []string{claimProtection}
			w.claimView.Users = []user{{Pod: somePod("shop", "guest", runs)}}
		}), "claim shop/data: it is used by pod shop/guest", "when the pod is gone", "kubectl -n shop delete pod guest"},
		{"an end that a label forbids", deleting(func(w *world) { w.claim.Labels[tarnv1.LabelDeletionProtection] = "true" }),
			"claim shop/data is protected from deletion", "when the label is gone", "kubectl -n shop label pvc data tarn.dev/deletion-protection-"},
		{"an end that goes on", deleting(func(*world) {}), "app shop/web is Terminating: these claims are being deleted: data", "when its pods are gone, and then its claims", ""},
		{"an end that somebody else holds up", deleting(func(w *world) { w.view.App.Finalizers = []string{"example.org/audit"} }),
			"finalizer example.org/audit keeps it", "when its owner removes it", `kubectl -n shop patch app web --type=json -p '[{"op":"test","path":"/metadata/finalizers/0","value":"example.org/audit"},{"op":"remove","path":"/metadata/finalizers/0"}]'`},
	} {
		t.Run(c.name, c.check)
	}
}

func TestAnAppThatWaitsForAClaimSaysNothingOfAPodThatEnds(t *testing.T) {
	w := newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepValidation, "shelf 7 is full").asApp(tarnv1.ReasonWaitingForVolumes, "")
	w.appPod(runs, func(p *corev1.Pod) { p.DeletionTimestamp = &began })
	for _, l := range chain(w.view).Links {
		if l.Object.Name == "web-1" {
			t.Errorf("got %+v", l)
		}
	}
}

func TestAPodThatIsToEndIsDeletedSinceThatWasAsked(t *testing.T) {
	w := newWorld().bound().askedPod(runs, func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ahead(20e9), ptr.To[int64](30)
	})
	if since := chain(w.view).Links[0].Since; since == nil || !since.Equal(now.Add(-10e9)) {
		t.Errorf("it is Terminating since %v, want %v", since, now.Add(-10e9))
	}
}

func TestAnAppIsHealthyOnlyWhileItsVolumesAre(t *testing.T) {
	want := "app shop/web is Ready: 1 of 1 pods are ready, image web:1; claim shop/data from volume pvc-claim-uid, 1Gi, class gold, PavProvisioner gold"
	if e := chain(newWorld().bound().asApp("", "").view); !e.Healthy || e.Verdict != want {
		t.Errorf("got %q, want %q", e.Verdict, want)
	}
	w := newWorld().bound().asApp("", "")
	w.claim.Status.Phase, w.volumeView.Volume = corev1.ClaimLost, nil
	if e := chain(w.view); e.Healthy || len(e.Links) < 3 {
		t.Errorf("an App whose volume is lost is called healthy: %s", e.Verdict)
	}
}
