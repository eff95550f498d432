package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	appplan "tarn.dev/tarn/internal/app/plan"
	"tarn.dev/tarn/internal/cli/terminal"
)

// waiting says whether a command waits for the result, and for how long.
type waiting struct {
	on      bool
	timeout time.Duration
}

func (w *waiting) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&w.on, "wait", true, "wait until the app is complete")
	cmd.Flags().DurationVar(&w.timeout, "timeout", 5*time.Minute, "how long to wait; after that the exit status is 3, and Tarn continues in the background")
}

// settled follows an app until nothing is in progress. It returns the app as last seen, with an
// error if the app is not in service.
func (w *waiting) settled(cmd *cobra.Command, calls apps, app *appplan.App) (*appplan.App, error) {
	if !w.on {
		return app, nil
	}
	f := follower{calls: calls, namespace: app.Namespace, id: app.ID, last: app, line: standing}
	err := f.follow(cmd, w.timeout)
	switch {
	case err != nil:
		return f.last, err
	case f.kind == appplan.Deleted:
		return f.last, fmt.Errorf("app %s was deleted while the command waited", app.ID)
	case f.last.Status == appplan.Refused:
		return f.last, errors.New(standing(f.last))
	case f.last.Status == appplan.Failing:
		return f.last, fmt.Errorf("app %s does not run as deployed; run tarn explain app %s/%s to see why", app.ID, app.Namespace, app.ID)
	}
	return f.last, nil
}

// gone waits until a deleted app is gone, and says whether it is.
func (w *waiting) gone(cmd *cobra.Command, calls apps, app *appplan.App) (bool, error) {
	if !w.on {
		return false, nil
	}
	f := follower{calls: calls, namespace: app.Namespace, id: app.ID, last: app, line: standing}
	err := f.follow(cmd, w.timeout)
	if isCode(err, appplan.NotFound) {
		return true, nil
	}
	return f.kind == appplan.Deleted, err
}

// resized waits until a volume has the size that was asked for, and returns the result as last
// seen.
func (w *waiting) resized(cmd *cobra.Command, calls apps, namespace, id string, asked *appplan.Resized) (*appplan.Resized, error) {
	if !w.on {
		return asked, nil
	}
	seen, grown := *asked, false
	look := func(app *appplan.App) appplan.Volume {
		if i := slices.IndexFunc(app.Volumes, func(v appplan.Volume) bool { return v.Name == asked.Name }); i >= 0 {
			return app.Volumes[i]
		}
		return appplan.Volume{Name: asked.Name, Status: appplan.VolumeMissing}
	}
	f := follower{
		calls: calls, namespace: namespace, id: id, last: &appplan.App{ID: id, Namespace: namespace},
		line: func(app *appplan.App) string {
			v := look(app)
			line := fmt.Sprintf("volume %s of app %s is %s, %dGi", v.Name, id, v.Status, v.SizeGi)
			if v.Message != "" {
				line += ": " + v.Message
			}
			return line
		},
		done: func(app *appplan.App) bool {
			v := look(app)
			seen.Status = v.Status
			grown = v.Status == appplan.VolumeBound && v.SizeGi >= asked.SizeGi
			return grown
		},
	}
	switch err := f.follow(cmd, w.timeout); {
	case err != nil:
		return &seen, err
	case f.kind == appplan.Deleted:
		return &seen, fmt.Errorf("app %s was deleted while the command waited", id)
	case !grown && f.last.Status == appplan.Ready && seen.Status == appplan.VolumeResizing:
		return &seen, nil // no pod uses it; its file system grows when the next one starts
	case !grown:
		return &seen, errors.New(standing(f.last))
	}
	return &seen, nil
}

// follower follows one app.
type follower struct {
	calls         apps
	namespace, id string
	// line words the progress for a terminal. done ends the wait before the app has settled; nil
	// means never.
	line func(*appplan.App) string
	done func(*appplan.App) bool

	// last is the app as last seen; kind is the kind of the last event.
	last *appplan.App
	kind appplan.EventKind
}

// errEnough ends a stream when the follower has seen enough.
var errEnough = errors.New("done waiting")

// retryPause is how long the follower waits before it opens a new stream after one broke off.
const retryPause = time.Second

// follow returns when nothing is in progress, or when done says so. It opens a new stream where one
// breaks off after it had begun: the server may have been restarted.
func (f *follower) follow(cmd *cobra.Command, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	screen := terminal.Of(cmd.ErrOrStderr())
	defer screen.Done()
	seen := func(event appplan.Event) error {
		f.kind = event.Kind
		if event.App.ID != "" {
			f.last = &event.App
		}
		screen.Progress(f.line(f.last))
		if f.done != nil && f.done(f.last) {
			return errEnough
		}
		return nil
	}
	for {
		err := f.calls.Events(ctx, f.namespace, f.id, seen)
		var answered *appplan.Error
		switch {
		case cmd.Context().Err() != nil:
			return fmt.Errorf("interrupted; Tarn continues in the background: %s", f.line(f.last))
		case ctx.Err() != nil:
			return timeoutError{fmt.Errorf("timeout after %s: %s; run tarn explain app %s/%s to see why", timeout, strings.TrimSuffix(f.line(f.last), "."), f.last.Namespace, f.id)}
		case errors.Is(err, errEnough), err == nil && f.kind != appplan.Expired:
			return nil
		case err != nil && (f.kind == "" || errors.As(err, &answered) && answered.Code != appplan.Internal && answered.Code != appplan.TooMany):
			return err
		}
		again := time.NewTimer(retryPause)
		select {
		case <-ctx.Done():
		case <-again.C:
		}
		again.Stop()
	}
}

// standing describes the state of an app in one line.
func standing(app *appplan.App) string {
	line := fmt.Sprintf("app %s is %s, %d of %s ready", app.ID, app.Status, app.ReadyReplicas, count(int(app.Replicas), "pod"))
	if app.Message != "" {
		line += ": " + strings.ReplaceAll(app.Message, "\n", "\n  | ")
	}
	return line
}

func printOutcome(w io.Writer, app *appplan.App) error {
	_, err := fmt.Fprintln(w, standing(app))
	return err
}
