package service

import (
	"context"
	"errors"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
)

// Events calls yield with the application, and again after each change. It ends when nothing is in
// progress any more, or the application is gone. It also ends with yield's first error, and with
// ctx; if that reaches its deadline, it first yields Expired.
func (c *Calls) Events(ctx context.Context, namespace, id string, yield func(appplan.Event) error) error {
	if err := appplan.CheckNames(namespace, id); err != nil {
		return err
	}
	app, err := c.app(ctx, namespace, id)
	if err != nil {
		return err
	}
	f := &follower{calls: c, uid: app.UID, yield: yield}
	for !f.over {
		if err := f.follow(ctx, app); err != nil {
			return err
		}
		if f.over {
			return nil
		}
		// Pause, because an API server may break off every watch at once.
		select {
		case <-ctx.Done():
		case <-time.After(lastPause):
		}
		if app, err = c.app(ctx, namespace, id); ctx.Err() == nil && (isNotFound(err) || err == nil && app.UID != f.uid) {
			return f.tell(appplan.Deleted)
		}
		if err != nil || ctx.Err() != nil {
			return f.ended(ctx, err)
		}
	}
	return nil
}

// follower reports the changes of one application.
type follower struct {
	calls *Calls
	uid   types.UID
	yield func(appplan.Event) error
	// last is the application as last reported.
	last *appplan.App
	over bool
}

// follow reports an application and its changes until the watch breaks off, which is no error.
func (f *follower) follow(ctx context.Context, app *tarnv1.App) error {
	if err := f.look(ctx, app); err != nil || f.over {
		return err
	}
	changes, err := f.calls.Client.Watch(ctx, &tarnv1.AppList{}, client.InNamespace(app.Namespace),
		client.MatchingFields{"metadata.name": app.Name}, &client.ListOptions{Raw: &v1.ListOptions{ResourceVersion: app.ResourceVersion}})
	if err != nil {
		return f.ended(ctx, err)
	}
	defer changes.Stop()
	for change := range changes.ResultChan() {
		now, is := change.Object.(*tarnv1.App)
		switch {
		case change.Type == watch.Error || !is:
			return nil // the version is too old, or the server restarts: the caller reads again
		case change.Type == watch.Deleted || now.UID != f.uid:
			return f.tell(appplan.Deleted)
		}
		if err := f.look(ctx, now); err != nil || f.over {
			return err
		}
	}
	return nil
}

// look reports an application if it has changed since the last report.
func (f *follower) look(ctx context.Context, app *tarnv1.App) error {
	w, err := f.calls.around(ctx, app, nil)
	if err != nil {
		return f.ended(ctx, err)
	}
	view := appplan.View(*w)
	if f.last != nil && reflect.DeepEqual(*f.last, view) {
		return nil
	}
	f.last = &view
	if view.Settled {
		return f.tell(appplan.Settled)
	}
	return f.tell(appplan.Progress)
}

func (f *follower) tell(kind appplan.EventKind) error {
	f.over = f.over || kind.Last()
	event := appplan.Event{Kind: kind}
	if f.last != nil {
		event.App = *f.last
	}
	return f.yield(event)
}

// ended returns how the stream ends after err, or after ctx has ended.
func (f *follower) ended(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return f.tell(appplan.Expired)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var known *appplan.Error
	if errors.As(err, &known) {
		return err
	}
	return failed(err, "following an app")
}
