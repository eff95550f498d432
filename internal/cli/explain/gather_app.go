package explain

import (
	"cmp"
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
)

// workloadPrefix is the prefix of the name of an App's Deployment.
const workloadPrefix = "paas-app-"

// app reads the objects of an App: its claims, its Deployment, and a few of its pods that are not
// ready. For an App that is being deleted, it also reads the claims that the App no longer mounts.
func (g *gatherer) app(ctx context.Context, app *tarnv1.App) {
	g.view.App = app
	var claims []string
	for i := range app.Spec.Volumes {
		claims = append(claims, appspec.ClaimName(app.Name, app.Spec.Volumes[i].Name))
	}
	if app.DeletionTimestamp != nil {
		claims = append(claims, g.detached(ctx, app, claims)...)
	}
	g.view.Claims = make([]*claimView, len(claims))
	work := []func(){
		func() {
			g.view.Workload = get(ctx, g, deployment, app.Namespace, workloadPrefix+app.Name, &appsv1.Deployment{})
		},
		func() { g.view.Pods = g.podsOfApp(ctx, app) },
	}
	for i, name := range claims {
		work = append(work, func() {
			claim := get(ctx, g, Claim, app.Namespace, name, &corev1.PersistentVolumeClaim{})
			if claim == nil {
				g.view.Claims[i] = &claimView{Object: Object{Claim, app.Namespace, name}}
				return
			}
			g.view.Claims[i] = g.claim(ctx, claim)
		})
	}
	together(work...)
}

// detached returns the names of an App's claims that are not mounted.
func (g *gatherer) detached(ctx context.Context, app *tarnv1.App, mounted []string) []string {
	var list corev1.PersistentVolumeClaimList
	g.list(ctx, Claim, app.Namespace, &list, client.MatchingLabels{tarnv1.LabelApp: app.Name})
	var names []string
	for i := range list.Items {
		if name := list.Items[i].Name; !slices.Contains(mounted, name) {
			names = append(names, name)
		}
	}
	return names
}

// podsOfApp reads a few pods of an App that are not ready, the newest first.
func (g *gatherer) podsOfApp(ctx context.Context, app *tarnv1.App) []*podView {
	var list corev1.PodList
	g.list(ctx, Pod, app.Namespace, &list, client.MatchingLabels{tarnv1.LabelApp: app.Name})
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return isReady(&p) && p.DeletionTimestamp == nil })
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	views := make([]*podView, min(len(pods), mostNames))
	var work []func()
	for i := range views {
		work = append(work, func() { views[i] = g.podView(ctx, &pods[i], true) })
	}
	together(work...)
	return views
}
