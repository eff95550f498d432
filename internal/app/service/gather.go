package service

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/kube"
)

// world reads an application and the objects around it.
func (c *Calls) world(ctx context.Context, namespace, id string) (*appplan.World, error) {
	if err := appplan.CheckNames(namespace, id); err != nil {
		return nil, err
	}
	app, err := c.app(ctx, namespace, id)
	if err != nil {
		return nil, err
	}
	return c.around(ctx, app, nil)
}

func (c *Calls) app(ctx context.Context, namespace, id string) (*tarnv1.App, error) {
	app := &tarnv1.App{}
	err := c.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: id}, app)
	switch {
	case apierrors.IsNotFound(err):
		return nil, appplan.AppNotFound(id)
	case err != nil:
		return nil, failed(err, "reading app '%s'", id)
	}
	return app, nil
}

// around reads the claims of an application, and other claims with a name that it or the file
// wants. It also reads the storage classes of both. file may be nil.
func (c *Calls) around(ctx context.Context, app *tarnv1.App, file *appspec.File) (*appplan.World, error) {
	w := c.empty(app)
	claims := &corev1.PersistentVolumeClaimList{}
	if err := c.Client.List(ctx, claims, client.InNamespace(app.Namespace), client.MatchingLabels{tarnv1.LabelApp: app.Name}); err != nil {
		return nil, failed(err, "listing the claims of app '%s'", app.Name)
	}
	for i := range claims.Items {
		w.Claims[claims.Items[i].Name] = &claims.Items[i]
	}
	for _, name := range names(app, file) {
		if w.Claims[name] != nil {
			continue
		}
		claim, err := kube.Get(ctx, c.Client, client.ObjectKey{Namespace: app.Namespace, Name: name}, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return nil, failed(err, "reading claim '%s'", name)
		}
		if claim != nil {
			w.Claims[name] = claim
		}
	}
	for _, name := range w.ClassNames(file) {
		class, err := kube.Get(ctx, c.Client, client.ObjectKey{Name: name}, &storagev1.StorageClass{})
		if apierrors.IsForbidden(err) { // a user's rights may cover only the namespace
			w.Hidden[name] = true
			continue
		}
		if err != nil {
			return nil, failed(err, "reading storage class '%s'", name)
		}
		if class != nil {
			w.Classes[name] = class
		}
	}
	return w, nil
}

func (c *Calls) empty(app *tarnv1.App) *appplan.World {
	defaults := c.Classes
	if defaults == nil {
		defaults = appspec.DefaultClasses
	}
	return &appplan.World{
		App: app, Defaults: defaults,
		Claims: map[string]*corev1.PersistentVolumeClaim{}, Classes: map[string]*storagev1.StorageClass{}, Hidden: map[string]bool{},
	}
}

// names returns the names of the claims that an application and a file want.
func names(app *tarnv1.App, file *appspec.File) []string {
	var all []string
	for i := range app.Spec.Volumes {
		all = append(all, appspec.ClaimName(app.Name, app.Spec.Volumes[i].Name))
	}
	if file != nil {
		for i := range file.Volumes {
			all = append(all, appspec.ClaimName(app.Name, file.Volumes[i].Name))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// page is how many objects are read at once. A hundred of the largest Apps take 25 MiB.
const page = 100

// eachPage reads a list page by page into list, and calls after once each page is there.
func (c *Calls) eachPage(ctx context.Context, list client.ObjectList, after func(), options ...client.ListOption) error {
	for {
		next := append(slices.Clone(options), client.Limit(page), client.Continue(list.GetContinue()))
		if err := c.Client.List(ctx, list, next...); err != nil {
			return err
		}
		if after(); list.GetContinue() == "" {
			return nil
		}
	}
}

// room rejects a new application in a namespace that has reached its limit.
func (c *Calls) room(ctx context.Context, namespace string) error {
	if c.MaxApps == 0 {
		return nil
	}
	some := &metav1.PartialObjectMetadataList{}
	some.SetGroupVersionKind(tarnv1.GroupVersion.WithKind("AppList"))
	if err := c.Client.List(ctx, some, client.InNamespace(namespace), client.Limit(int64(c.MaxApps))); err != nil {
		return failed(err, "counting the apps of namespace '%s'", namespace)
	}
	if len(some.Items) >= c.MaxApps {
		return appplan.Errorf(appplan.Invalid, "namespace '%s' has %d apps, which is the limit: delete one, or ask the administrator to raise --apps-per-namespace of tarn api", namespace, len(some.Items))
	}
	return nil
}

// all reads the applications of a namespace with their claims, sorted by id. It drops command, args
// and env, which may be large.
func (c *Calls) all(ctx context.Context, namespace string) ([]appplan.World, error) {
	apps, some := &tarnv1.AppList{}, &tarnv1.AppList{}
	err := c.eachPage(ctx, some, func() {
		for _, app := range some.Items {
			app.Annotations, app.ManagedFields, app.Spec.Command, app.Spec.Args, app.Spec.Env, app.Spec.Secrets = nil, nil, nil, nil, nil, nil
			apps.Items = append(apps.Items, app)
		}
	}, client.InNamespace(namespace))
	if err != nil {
		return nil, failed(err, "listing the apps of namespace '%s'", namespace)
	}
	claims, part := &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeClaimList{}
	err = c.eachPage(ctx, part, func() { claims.Items = append(claims.Items, part.Items...) }, client.InNamespace(namespace), client.HasLabels{tarnv1.LabelApp})
	if err != nil {
		return nil, failed(err, "listing the claims of the apps of namespace '%s'", namespace)
	}
	slices.SortFunc(apps.Items, func(a, b tarnv1.App) int { return cmp.Compare(a.Name, b.Name) })
	worlds := make([]appplan.World, len(apps.Items))
	byApp := map[string]*appplan.World{}
	for i := range apps.Items {
		worlds[i] = *c.empty(&apps.Items[i])
		byApp[apps.Items[i].Name] = &worlds[i]
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if w := byApp[claim.Labels[tarnv1.LabelApp]]; w != nil {
			w.Claims[claim.Name] = claim
		}
	}
	return worlds, nil
}
