// Package service performs the calls on applications with a Kubernetes client. It reads the live
// objects, asks app/plan what the call does, and writes App objects. The REST server calls it for
// callers that it has authorized; the command line calls it with its user's own rights.
//
// It creates no claim and no pod: the apps controller does that for each App. It knows nothing of
// HTTP.
package service

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/kubelet"
)

// Calls performs calls. Every error about the call is an *appplan.Error, unlike errors of the
// connection to the API server.
type Calls struct {
	// Client reads and writes without a cache.
	Client client.WithWatch
	// Writer writes Apps instead of Client, with the caller's own rights; nil means Client.
	Writer client.Writer
	// Classes are the storage classes of volumes that name none, by access mode. Nil means
	// appspec.DefaultClasses.
	Classes map[appspec.AccessMode]string
	// Used returns the usage of volumes' file systems, by claim name. It covers the claims in a
	// namespace that pods with these labels use. Claims of unknown usage are missing. Nil means
	// that no usage is known.
	Used func(ctx context.Context, namespace string, labels map[string]string) map[string]kubelet.Usage

	// MaxApps is the number of applications at which Create stops creating more in a namespace; 0
	// means no limit. Two concurrent calls may exceed it by one.
	MaxApps int
	// Verdict is how long a resize waits to hear whether Kubernetes accepts it; 0 means that it
	// does not wait.
	Verdict time.Duration

	turns turns
	// of is the Calls that As has copied.
	of *Calls
}

// As returns the same calls, which write Apps with the caller's client.
func (c *Calls) As(writer client.Writer) *Calls {
	return &Calls{Client: c.Client, Writer: writer, Classes: c.Classes, Used: c.Used, MaxApps: c.MaxApps, Verdict: c.Verdict, of: c}
}

func (c *Calls) writer() client.Writer {
	if c.Writer != nil {
		return c.Writer
	}
	return c.Client
}

// turn waits for the right to change an application.
func (c *Calls) turn(ctx context.Context, app client.ObjectKey) (done func(), err error) {
	if c.of != nil {
		return c.of.turn(ctx, app)
	}
	return c.turns.take(ctx, app)
}

// Create reserves an id for an application. Nothing runs until it is deployed.
func (c *Calls) Create(ctx context.Context, namespace, id string) (*appplan.App, error) {
	if err := appplan.CheckNames(namespace, id); err != nil {
		return nil, err
	}
	if err := c.room(ctx, namespace); err != nil {
		return nil, err
	}
	app := &tarnv1.App{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: id}}
	err := c.writer().Create(ctx, app)
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil, appplan.Errorf(appplan.Conflict, "app '%s' exists already: choose another id", id)
	case apierrors.IsNotFound(err): // only the namespace can be missing
		return nil, appplan.Errorf(appplan.NotFound, "namespace '%s' not found", namespace)
	case apierrors.HasStatusCause(err, "NamespaceTerminating"):
		return nil, appplan.Errorf(appplan.Conflict, "namespace '%s' is being deleted", namespace)
	case err != nil:
		return nil, c.unwritten(err, "creating app '%s'", id)
	}
	w, err := c.around(ctx, app, nil)
	if err != nil {
		return nil, err
	}
	view := appplan.View(*w)
	return &view, nil
}

// List returns the applications of a namespace, sorted by id, without command, args and env.
func (c *Calls) List(ctx context.Context, namespace string) ([]appplan.App, error) {
	if err := appplan.CheckNamespace(namespace); err != nil {
		return nil, err
	}
	worlds, err := c.all(ctx, namespace)
	if err != nil {
		return nil, err
	}
	views := make([]appplan.App, 0, len(worlds))
	for _, w := range worlds {
		views = append(views, appplan.View(w))
	}
	return views, nil
}

// Get returns one application.
func (c *Calls) Get(ctx context.Context, namespace, id string) (*appplan.App, error) {
	w, err := c.world(ctx, namespace, id)
	if err != nil {
		return nil, err
	}
	view := appplan.View(*w)
	return &view, nil
}

// Volumes returns the volumes that an application mounts, with the bytes in use if known.
func (c *Calls) Volumes(ctx context.Context, namespace, id string) ([]appplan.Volume, error) {
	w, err := c.world(ctx, namespace, id)
	if err != nil {
		return nil, err
	}
	volumes := appplan.Volumes(*w)
	if c.Used == nil {
		return volumes, nil
	}
	tellUsed(volumes, c.Used(ctx, namespace, map[string]string{tarnv1.LabelApp: id}))
	return volumes, nil
}

// tellUsed fills in how full volumes are. It skips a file system that is more than a tenth larger
// than its volume: others share it, so the volume's own part is unknown.
func tellUsed(volumes []appplan.Volume, used map[string]kubelet.Usage) {
	for i := range volumes {
		v := &volumes[i]
		if usage, known := used[v.ClaimName]; known && usage.Size <= v.CapacityBytes+v.CapacityBytes/10 {
			v.UsedBytes = &usage.Used
		}
	}
}

// Plan says what Deploy would do to an existing application. With isNew, it does so for an
// application that is to be created first.
func (c *Calls) Plan(ctx context.Context, namespace, id string, source appplan.Source, isNew bool) (*appplan.Plan, error) {
	if err := appplan.CheckNames(namespace, id); err != nil {
		return nil, err
	}
	file, warnings, bad := source.Read(id)
	if bad != nil {
		return nil, bad
	}
	app, err := c.app(ctx, namespace, id)
	switch {
	case err == nil && isNew:
		return nil, appplan.Errorf(appplan.Conflict, "app '%s' exists already: choose another id", id)
	case isNew && isNotFound(err):
		app = &tarnv1.App{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: id}}
	case err != nil:
		return nil, err
	}
	w, err := c.around(ctx, app, file)
	if err != nil {
		return nil, err
	}
	decision := appplan.Deploy(*w, file, warnings)
	return &decision.Plan, nil
}

// Deploy makes a file the new spec of the application. If any part is rejected, nothing is changed.
func (c *Calls) Deploy(ctx context.Context, namespace, id string, source appplan.Source) (*appplan.Deployed, error) {
	if err := appplan.CheckNames(namespace, id); err != nil {
		return nil, err
	}
	file, warnings, bad := source.Read(id)
	if bad != nil {
		return nil, bad
	}
	var answer *appplan.Deployed
	err := c.change(ctx, namespace, id, file, func(w *appplan.World) error {
		decision := appplan.Deploy(*w, file, warnings)
		if decision.Refusal != nil {
			return decision.Refusal
		}
		answer = &appplan.Deployed{Plan: decision.Plan}
		if appplan.Same(&w.App.Spec, &decision.Spec) {
			return nil
		}
		w.App.Spec = decision.Spec
		return nil
	}, func(w *appplan.World) { answer.App = appplan.View(*w) })
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// Scale asks for a number of pods.
func (c *Calls) Scale(ctx context.Context, namespace, id string, replicas int32) (*appplan.App, error) {
	if err := appplan.CheckNames(namespace, id); err != nil {
		return nil, err
	}
	if err := appplan.ScaleBounds(replicas); err != nil {
		return nil, err
	}
	var view appplan.App
	err := c.change(ctx, namespace, id, nil, func(w *appplan.World) error {
		if err := appplan.Scale(*w, replicas); err != nil {
			return err
		}
		w.App.Spec.Replicas = &replicas
		return nil
	}, func(w *appplan.World) { view = appplan.View(*w) })
	if err != nil {
		return nil, err
	}
	return &view, nil
}

// Resize requests a larger size for a volume, and does not wait for the expansion. If Kubernetes
// rejects the size at once, for instance by a quota, it returns that error and changes nothing.
func (c *Calls) Resize(ctx context.Context, namespace, id, volume string, sizeGi int64) (*appplan.Resized, error) {
	if err := appplan.CheckVolume(namespace, id, volume); err != nil {
		return nil, err
	}
	if err := appplan.ResizeBounds(sizeGi); err != nil {
		return nil, err
	}
	var answer appplan.Resized
	var before int64
	var again bool
	var asked *tarnv1.App
	ask := func(w *appplan.World) error {
		resized, err := appplan.Resize(*w, volume, sizeGi)
		if err != nil {
			return err
		}
		answer = resized
		for i := range w.App.Spec.Volumes {
			if v := &w.App.Spec.Volumes[i]; v.Name == volume {
				before, again, v.SizeGi = v.SizeGi, v.SizeGi == sizeGi, sizeGi
				if again {
					v.SizeGi = w.SizeGi(volume)
				}
			}
		}
		return nil
	}
	err := c.change(ctx, namespace, id, nil, ask, func(w *appplan.World) { asked = w.App })
	if err == nil && again {
		// The spec requests this size already, but Kubernetes has rejected it. The same request
		// would change nothing, so the controller would not retry. The first write has withdrawn
		// it; this one requests it again.
		err = c.change(ctx, namespace, id, nil, ask, func(w *appplan.World) { asked = w.App })
	}
	if err != nil {
		return nil, err
	}
	if refused := c.heard(ctx, asked, volume, sizeGi); refused != "" {
		c.takeBack(ctx, asked, volume, before)
		return nil, appplan.Errorf(appplan.Internal, "resizing volume '%s' of app '%s': %s", volume, id, refused)
	}
	return &answer, nil
}

// Delete requests the deletion of an application. Its controller deletes its objects.
func (c *Calls) Delete(ctx context.Context, namespace, id string) (*appplan.Deletion, error) {
	w, err := c.world(ctx, namespace, id)
	if err != nil {
		return nil, err
	}
	if w.App.Labels[tarnv1.LabelDeletionProtection] == "true" {
		return nil, appplan.Errorf(appplan.Conflict, "app '%s' is protected from deletion by its label %s", id, tarnv1.LabelDeletionProtection)
	}
	answer := appplan.Delete(*w)
	uid := w.App.UID
	err = c.writer().Delete(ctx, w.App, client.Preconditions{UID: &uid})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // another application has the id by now
		return nil, appplan.AppNotFound(id)
	case err != nil:
		return nil, c.unwritten(err, "deleting app '%s'", id)
	}
	return &answer, nil
}

// Pauses between two attempts at a write that conflicts with other writers.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

// change changes an application's spec. If another writer has changed the App since it was read, it
// decides again on the new version, so no write is lost. The function decide changes w.App.Spec.
// The function after is called once that is written; it may be nil.
func (c *Calls) change(ctx context.Context, namespace, id string, file *appspec.File, decide func(*appplan.World) error, after func(*appplan.World)) error {
	done, err := c.turn(ctx, client.ObjectKey{Namespace: namespace, Name: id})
	if err != nil {
		return failed(err, "changing app '%s', which other calls keep changing", id)
	}
	defer done()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		app, err := c.app(ctx, namespace, id)
		if err != nil {
			return err
		}
		if !app.DeletionTimestamp.IsZero() {
			return appplan.Errorf(appplan.Conflict, "app '%s' is being deleted: create it again when it is gone", id)
		}
		w, err := c.around(ctx, app, file)
		if err != nil {
			return err
		}
		before := app.DeepCopy()
		if err := decide(w); err != nil {
			return err
		}
		if !appplan.Same(&before.Spec, &app.Spec) {
			err = c.writer().Update(ctx, app) // an update of the version that was read, by the verb that the caller is authorized for
		}
		switch {
		case apierrors.IsConflict(err):
			select {
			case <-ctx.Done():
				return failed(errors.Join(ctx.Err(), err), "changing app '%s'", id)
			case <-time.After(pause/2 + rand.N(pause)):
				continue
			}
		case apierrors.IsNotFound(err):
			return appplan.AppNotFound(id)
		case err != nil:
			return c.unwritten(err, "changing app '%s'", id)
		}
		if after != nil {
			after(w)
		}
		return nil
	}
}

// failed turns an error of the API server into one of the call. A spec that the schema rejects is
// the caller's error. Unexpected errors keep their text.
func failed(err error, format string, args ...any) error {
	code := appplan.Internal
	switch {
	case apierrors.IsInvalid(err):
		code = appplan.Invalid
	case apierrors.IsForbidden(err):
		code = appplan.Forbidden
	}
	cause := fmt.Errorf(format+": %w", append(args, err)...)
	return &appplan.Error{Code: code, Message: cause.Error(), Cause: cause}
}

// unwritten returns the error of a write. If the caller lacks a right, or a quota or policy rejects
// the write, the error says so to the caller.
func (c *Calls) unwritten(err error, format string, args ...any) error {
	if c.Writer != nil {
		switch reason := fmt.Sprintf(format, args...); {
		case apierrors.IsForbidden(err):
			return appplan.Errorf(appplan.Forbidden, "%s: %v", reason, err)
		case apierrors.IsUnauthorized(err):
			return appplan.Errorf(appplan.Unauthorized, "%s: Kubernetes rejects the token, which must be valid for its API server too", reason)
		}
	}
	return failed(err, format, args...)
}

func isNotFound(err error) bool {
	var e *appplan.Error
	return errors.As(err, &e) && e.Code == appplan.NotFound
}
