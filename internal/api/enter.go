package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	appplan "tarn.dev/tarn/internal/app/plan"
	appservice "tarn.dev/tarn/internal/app/service"
)

// verb is the key in an operation's metadata for the verb that the caller must be allowed to use.
const verb = "verb"

// scope is what enter has found out about a call.
type scope struct {
	caller    *caller
	namespace string
	// calls are the calls of app/service, which write Apps with the caller's token.
	calls *appservice.Calls
	// still checks again whether the caller may do the call, for calls that last.
	still func(context.Context) error
}

type scopeKey struct{}

// scopeOf returns what enter has found out.
func scopeOf(ctx context.Context) scope {
	s, _ := ctx.Value(scopeKey{}).(scope)
	return s
}

// enter authorizes a call. It checks the names first, so that a wrong name costs no request to
// Kubernetes. Then it checks who calls, how often, and whether they may.
func (s *Server) enter(ctx huma.Context, next func(huma.Context)) {
	inside, err := s.admit(ctx)
	if err != nil {
		r, w := humago.Unwrap(ctx)
		note(r.Context(), func(r *record) { r.operation, r.err = ctx.Operation().OperationID, err })
		if inside.caller == nil {
			err = forStrangers(err)
		}
		write(w, challenge(w, err))
		return
	}
	next(huma.WithValue(ctx, scopeKey{}, inside))
}

// forStrangers returns the error to answer to a caller without a valid token. Details from
// Kubernetes or the network may contain addresses of the cluster, so they only appear in the log.
func forStrangers(err error) error {
	var known *appplan.Error
	if errors.As(err, &known) {
		return err
	}
	return appplan.Errorf(appplan.Internal, "the server could not check the token with Kubernetes: try again, or read the server's log")
}

// challenge adds the header that tells a caller how to authenticate.
func challenge(w http.ResponseWriter, err error) error {
	var known *appplan.Error
	if errors.As(err, &known) && known.Code == appplan.Unauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="tarn"`)
	}
	return err
}

func (s *Server) admit(ctx huma.Context) (scope, error) {
	token, err := bearer(ctx.Header("Authorization"))
	if err != nil {
		return scope{}, err
	}
	asked, id, volume := ctx.Query("namespace"), ctx.Param("id"), ctx.Param("name")
	if err := checkNames(ctx, asked, id, volume); err != nil {
		return scope{}, err
	}
	bounded, cancel := context.WithTimeout(ctx.Context(), s.limits.Call)
	defer cancel()
	c, err := s.door.who(bounded, token, ctx.RemoteAddr())
	if err != nil {
		return scope{}, err
	}
	address, does := ctx.RemoteAddr(), verbOf(ctx)
	inside := scope{caller: c, namespace: s.door.where(c, asked)}
	inside.still = func(ctx context.Context) error {
		now, err := s.door.who(ctx, token, address)
		if err != nil {
			return err
		}
		return s.door.may(ctx, now, does, inside.namespace, id)
	}
	note(ctx.Context(), func(r *record) {
		r.operation, r.caller, r.namespace = ctx.Operation().OperationID, c.user.Username, inside.namespace
	})
	if err := s.door.callers.take(c); err != nil {
		return inside, err
	}
	if err := s.door.may(bounded, c, does, inside.namespace, id); err != nil {
		return inside, err
	}
	writer, err := s.as(token)
	if err != nil {
		return inside, fmt.Errorf("making a client with the caller's token: %w", err)
	}
	inside.calls = s.calls.As(writer)
	return inside, nil
}

func verbOf(ctx huma.Context) string {
	does, _ := ctx.Operation().Metadata[verb].(string)
	return does
}

// checkNames rejects names that are not valid.
func checkNames(ctx huma.Context, namespace, id, volume string) error {
	if namespace != "" {
		if err := appplan.CheckNamespace(namespace); err != nil {
			return err
		}
	}
	names := pathNames(ctx.Operation().Path)
	if names.id {
		if err := appplan.CheckNames("default", id); err != nil {
			return err
		}
	}
	if names.volume {
		return appplan.CheckVolume("default", id, volume)
	}
	return nil
}
