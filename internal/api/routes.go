package api

import (
	"context"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	appplan "tarn.dev/tarn/internal/app/plan"
	appservice "tarn.dev/tarn/internal/app/service"
	appspec "tarn.dev/tarn/internal/app/spec"
)

const (
	// shortBody is the longest body that is not a paas.toml, in bytes.
	shortBody = 4 << 10
	// bodyTime is how long a body may take to arrive.
	bodyTime = 10 * time.Second
)

// answer is the answer to a call that succeeded: {"data": ...}.
type answer[T any] struct {
	Body struct {
		Data T `json:"data" doc:"What was asked for"`
	}
}

func answered[T any](data *T, err error) (*answer[T], error) {
	if err != nil {
		return nil, failed(err)
	}
	a := &answer[T]{}
	a.Body.Data = *data
	return a, nil
}

// Parts of the parameters of calls. They are exported because huma reads only exported fields.
type (
	// InNamespace is the namespace of a call.
	InNamespace struct {
		Namespace string `query:"namespace" doc:"Namespace of the applications. Without it that of the calling service account, else the server's default"`
	}
	// OfApp is the application of a call.
	OfApp struct {
		InNamespace
		ID string `path:"id" doc:"Id of the application" example:"shop"`
	}
	// WithObject is a small JSON body.
	WithObject struct {
		RawBody []byte
	}
	// WithFile is a body that is a paas.toml.
	WithFile struct {
		ContentType     string `header:"Content-Type" hidden:"true"`
		ContentEncoding string `header:"Content-Encoding" hidden:"true"`
		RawBody         []byte `contentType:"application/toml"`
	}
)

// source returns the file of a call.
func (f WithFile) source() (appplan.Source, error) {
	kind, _, err := mime.ParseMediaType(f.ContentType)
	switch {
	case f.ContentEncoding != "" && f.ContentEncoding != "identity":
		return appplan.Source{}, appplan.Errorf(appplan.WrongType, "Content-Encoding %q is not supported: send the body as it is, not compressed", f.ContentEncoding)
	case f.ContentType == "", err == nil && (kind == "application/toml" || kind == "text/x-toml"):
		return appplan.Source{Text: f.RawBody}, nil
	case err == nil && kind == "application/json":
		return appplan.Source{Text: f.RawBody, JSON: true}, nil
	}
	return appplan.Source{}, appplan.Errorf(appplan.WrongType, "Content-Type %q is not supported: send application/toml, text/x-toml or application/json", f.ContentType)
}

// named says which names an operation's path contains.
type named struct{ id, volume bool }

func pathNames(path string) named {
	return named{id: strings.Contains(path, "{id}"), volume: strings.Contains(path, "{name}")}
}

// operation describes one call. does is the verb that the caller must be allowed to use.
func operation(id, method, path, does, summary, description string, status int, errs ...int) huma.Operation {
	tag := "apps"
	if strings.Contains(path, "/volumes") {
		tag = "volumes"
	}
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary, Description: description, DefaultStatus: status,
		Errors: errorsOf(errs...), Metadata: map[string]any{verb: does}, SkipValidateParams: true, Tags: []string{tag},
		MaxBodyBytes: shortBody + 1, BodyReadTimeout: bodyTime,
	}
}

// ofFile makes an operation accept a paas.toml.
func ofFile(op huma.Operation) huma.Operation {
	op.MaxBodyBytes = appspec.MaxBytes + 1
	return op
}

func (s *Server) register(routes huma.API) {
	s.registerApps(routes)
	s.registerChanges(routes)
	s.registerVolumes(routes)
}

func (s *Server) registerApps(routes huma.API) {
	huma.Register(routes, operation("create-app", http.MethodPost, "/v1/apps", "create", "Reserve an id",
		"Creates an application with this id. Nothing runs until it is deployed.", http.StatusCreated, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge),
		func(ctx context.Context, in *struct {
			InNamespace
			WithObject
		}) (*answer[appplan.App], error) {
			id, err := text(in.RawBody, "id", `{"id": "shop"}`)
			if err != nil {
				return nil, failed(err)
			}
			return within(ctx, s, func(ctx context.Context, calls *appservice.Calls, namespace string) (*appplan.App, error) {
				return calls.Create(ctx, namespace, id)
			})
		})
	huma.Register(routes, operation("list-apps", http.MethodGet, "/v1/apps", "list", "List the applications of a namespace",
		"Lists them by id, without command, args and env; show one application to get these.", http.StatusOK),
		func(ctx context.Context, in *InNamespace) (*answer[[]appplan.App], error) {
			return within(ctx, s, func(ctx context.Context, calls *appservice.Calls, namespace string) (*[]appplan.App, error) {
				apps, err := calls.List(ctx, namespace)
				return &apps, err
			})
		})
	huma.Register(routes, operation("get-app", http.MethodGet, "/v1/apps/{id}", "get", "Show an application",
		"Shows the application with its volumes, as read from their live claims.", http.StatusOK, http.StatusNotFound),
		func(ctx context.Context, in *OfApp) (*answer[appplan.App], error) {
			return within(ctx, s, func(ctx context.Context, calls *appservice.Calls, namespace string) (*appplan.App, error) {
				return calls.Get(ctx, namespace, in.ID)
			})
		})
	huma.Register(routes, operation("delete-app", http.MethodDelete, "/v1/apps/{id}", "delete", "Delete an application",
		"Deletes the application with its pods and volumes. Preserved volumes are kept: an application of the same id uses them again. "+
			"The application is gone when GET answers 404. No call deletes a preserved volume.", http.StatusOK, http.StatusNotFound, http.StatusConflict),
		func(ctx context.Context, in *OfApp) (*answer[appplan.Deletion], error) {
			return within(ctx, s, func(ctx context.Context, calls *appservice.Calls, namespace string) (*appplan.Deletion, error) {
				return calls.Delete(ctx, namespace, in.ID)
			})
		})
}

func (s *Server) registerChanges(routes huma.API) {
	deploy := ofFile(operation("deploy-app", http.MethodPost, "/v1/apps/{id}/deploy", "update", "Deploy a paas.toml",
		"Applies the file to the application. Existing claims are used as they are. A volume that the file no longer has is detached and kept. "+
			"All errors of the file are reported at once, each with line and column.",
		http.StatusAccepted, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType))
	huma.Register(routes, deploy, func(ctx context.Context, in *struct {
		OfApp
		WithFile
	}) (*answer[appplan.Deployed], error) {
		source, err := in.source()
		if err != nil {
			return nil, failed(err)
		}
		return within(ctx, s, func(ctx context.Context, calls *appservice.Calls, namespace string) (*appplan.Deployed, error) {
			return calls.Deploy(ctx, namespace, in.ID, source)
		})
	})
	plan := ofFile(operation("plan-app", http.MethodPost, "/v1/apps/{id}/plan", "get", "See what a deploy would do",
		"Reports what deploying the file would create, attach, keep, grow, detach and reject. Changes nothing.",
		http.StatusAccepted, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType))
	huma.Register(routes, plan, func(ctx context.Context, in *struct {
		OfApp
		New bool `query:"new" doc:"Whether the application does not exist yet"`
		WithFile
	}) (*answer[appplan.Plan], error) {
		source, err := in.source()
		if err != nil {
			return nil, failed(err)
		}
		return within(ctx, s, func(ctx context.Context, calls *appservice.Calls, namespace string) (*appplan.Plan, error) {
			return calls.Plan(ctx, namespace, in.ID, source, in.New)
		})
	})
	huma.Register(routes, operation("scale-app", http.MethodPost, "/v1/apps/{id}/scale", "update", "Ask for a number of pods",
		"More than one is rejected while the live claim of a volume is ReadWriteOnce; one or none is always allowed.",
		http.StatusOK, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge),
		func(ctx context.Context, in *struct {
			OfApp
			WithObject
		}) (*answer[appplan.App], error) {
			replicas, err := whole(in.RawBody, "replicas", `{"replicas": 3}`)
			if err != nil {
				return nil, failed(err)
			}
			return within(ctx, s, func(ctx context.Context, calls *appservice.Calls, namespace string) (*appplan.App, error) {
				return calls.Scale(ctx, namespace, in.ID, clamped(replicas))
			})
		})
	s.registerEvents(routes)
}

func (s *Server) registerVolumes(routes huma.API) {
	huma.Register(routes, operation("list-volumes", http.MethodGet, "/v1/apps/{id}/volumes", "get", "List the volumes of an application",
		"Lists the mounted volumes, as read from their live claims.", http.StatusOK, http.StatusNotFound),
		func(ctx context.Context, in *OfApp) (*answer[[]appplan.Volume], error) {
			return within(ctx, s, func(ctx context.Context, calls *appservice.Calls, namespace string) (*[]appplan.Volume, error) {
				volumes, err := calls.Volumes(ctx, namespace, in.ID)
				return &volumes, err
			})
		})
	huma.Register(routes, operation("resize-volume", http.MethodPut, "/v1/apps/{id}/volumes/{name}", "update", "Make a volume larger",
		"Answers when Kubernetes has accepted or rejected the size; the volume grows while it is in use. The resize is done when the list of volumes shows it Bound again.",
		http.StatusOK, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge),
		func(ctx context.Context, in *struct {
			OfApp
			Name string `path:"name" doc:"Name of the volume" example:"data"`
			WithObject
		}) (*answer[appplan.Resized], error) {
			size, err := whole(in.RawBody, "new_size_gi", `{"new_size_gi": 20}`)
			if err != nil {
				return nil, failed(err)
			}
			return within(ctx, s, func(ctx context.Context, calls *appservice.Calls, namespace string) (*appplan.Resized, error) {
				return calls.Resize(ctx, namespace, in.ID, in.Name, size)
			})
		})
}

// within makes a call in its namespace, with the time limit of a call.
func within[T any](ctx context.Context, s *Server, do func(context.Context, *appservice.Calls, string) (*T, error)) (*answer[T], error) {
	inside := scopeOf(ctx)
	bounded, cancel := context.WithTimeout(ctx, s.limits.Call)
	defer cancel()
	a, err := answered(do(bounded, inside.calls, inside.namespace))
	if err != nil {
		note(ctx, func(r *record) { r.err = err })
	}
	return a, err
}
