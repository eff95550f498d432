// Package service performs the calls on applications over a Kubernetes client: it reads
// what there is live, asks app/plan what the call comes to, and writes App objects. The
// REST server calls it for whoever it has let in, the command line with its user's own
// rights.
//
// It makes no claim and no pod: the apps controller does, of the App objects. It knows
// nothing of HTTP.
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

// Calls performs calls. Every error that is about the call rather than about the way to
// the API server is an *appplan.Error.
type Calls struct {
	// Client reads and writes live.
	Client client.WithWatch
	// Writer writes Apps in its place, with the caller's own rights; nil is Client.
	Writer client.Writer
	// Classes are those of volumes that name none, by access mode; nil means
	// appspec.DefaultClasses.
	Classes map[appspec.AccessMode]string
	// Used tells how full the file systems of volumes are, by the names of the claims of one
	// namespace that pods with some labels use; claims of which that is not known are
	// left out. Nil knows of none.
	Used func(ctx context.Context, namespace string, labels map[string]string) map[string]kubelet.Usage

	// MaxApps is how many applications a namespace may have before Create makes no more; 0
	// is any number. Two calls at once may pass it by one.
	MaxApps int
	// Verdict is how long a resize waits to hear whether Kubernetes takes it; 0 is not at
	// all.
	Verdict time.Duration

	turns turns
	// of is what a copy for one caller was made from.
	of *Calls
}

// As gives the same calls, with Apps written by a client of the caller's.
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

// Create takes an id for an application. Nothing runs until it is deployed.
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
	case apierrors.IsNotFound(err): // nothing else can be missing
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

// List gives the applications of a namespace, by id, without command, args and env.
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

// Get gives one application.
func (c *Calls) Get(ctx context.Context, namespace, id string) (*appplan.App, error) {
	w, err := c.world(ctx, namespace, id)
	if err != nil {
		return nil, err
	}
	view := appplan.View(*w)
	return &view, nil
}

// Volumes gives the volumes an application mounts, with the bytes that are in use where
// that is known.
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

// tellUsed says of volumes how full they are. A file system that is larger than its
// volume, rounded as it may be, is shared: nobody knows how much of it is the volume's.
func tellUsed(volumes []appplan.Volume, used map[string]kubelet.Usage) {
	for i := range volumes {
		v := &volumes[i]
		if usage, known := used[v.ClaimName]; known && usage.Size <= v.CapacityBytes+v.CapacityBytes/10 {
			v.UsedBytes = &usage.Used
		}
	}
}

// Plan says what Deploy would do to an application that is there, or with isNew to one
// that is to be created first.
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

// Deploy makes a file what the application is to be. Whatever is refused, nothing of it
// is done.
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

// Resize asks for a volume to be made larger, and does not wait for it. What Kubernetes
// refuses at once, as for a quota, is an error with its cause, and nothing is changed.
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
		// It was refused: to ask for it once more would change nothing, and be heard by nobody.
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

// Delete has an application deleted; its controller takes down what it is made of.
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
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // another has the id by now
		return nil, appplan.AppNotFound(id)
	case err != nil:
		return nil, c.unwritten(err, "deleting app '%s'", id)
	}
	return &answer, nil
}

// Pauses between two attempts at a write that others come before.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

// change computes a change of an application's spec and writes it, anew whenever another
// writer came first: no write of anybody's is lost. decide changes w.App.Spec, after is
// called when that is written; nil for nothing.
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
			err = c.writer().Update(ctx, app) // the version that was read, by the verb that was asked for
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

// failed makes an error of a call of one of the API server's. What the schema refuses
// is the caller's to mend; what nobody expected is passed on as it is.
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

// unwritten makes an error of a write. What the caller's own rights end at, or a quota or a
// policy refuses, is the caller's to hear.
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
