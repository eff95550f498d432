package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appplan "tarn.dev/tarn/internal/app/plan"
	appservice "tarn.dev/tarn/internal/app/service"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/kubelet"
)

// Limits limit what callers may ask of the server. The service accounts of one namespace are one
// group, and each of them may use three quarters of the group's limits. Any other user is a group
// alone.
type Limits struct {
	// PerSecond is how many calls a group may make per second on average; Burst is how many at
	// once.
	PerSecond float64
	Burst     int
	// Streams is how many streams of events a group may have open. AllStreams is the limit for all
	// callers together; one group gets at most a quarter of it.
	Streams, AllStreams int
	// Apps is the number of applications at which no more are created in a namespace.
	Apps int
	// StreamLife is how long a stream lasts at most. Heartbeat is how often a stream without events
	// shows that it is alive.
	StreamLife, Heartbeat time.Duration
	// Call is how long any other call may take. Verdict is how long a resize waits to hear whether
	// Kubernetes accepts it; 0 means that it does not wait.
	Call, Verdict time.Duration
}

// DefaultLimits are the limits of a server that is given none.
var DefaultLimits = Limits{
	PerSecond: 50, Burst: 500, Streams: 16, AllStreams: 512, Apps: 500,
	StreamLife: 30 * time.Minute, Heartbeat: 15 * time.Second, Call: 30 * time.Second, Verdict: appservice.DefaultVerdict,
}

// Options are what a server is made from.
type Options struct {
	// Client reads without a cache and with the server's own rights. Those do not allow it to write
	// Apps.
	Client client.WithWatch
	// As returns a client with the rights of a token. It writes Apps.
	As func(token string) (client.Writer, error)
	// Namespace is used if a call names no namespace and its caller is no service account. A
	// service account's default is its own namespace.
	Namespace string
	// Audiences a caller's token must be for; none means the API server's own.
	Audiences []string
	// Classes are the storage classes of volumes that name none; nil means
	// appspec.DefaultClasses.
	Classes map[appspec.AccessMode]string
	// Used returns how full volumes are, as in appservice.Calls. Nil means that no usage is known.
	Used func(ctx context.Context, namespace string, labels map[string]string) map[string]kubelet.Usage
	// Limits default to DefaultLimits if all are zero.
	Limits Limits
	// Version of this build, for the API's document.
	Version string
	Log     logr.Logger
	// Metrics is where the server's metrics are registered.
	Metrics prometheus.Registerer
}

// Server answers the calls. It is an http.Handler.
type Server struct {
	calls   *appservice.Calls
	as      func(token string) (client.Writer, error)
	door    *door
	streams *streams
	limits  Limits
	log     logr.Logger
	metrics *metrics
	mux     *http.ServeMux
	// document is the content of /openapi.json.
	document []byte
	// stopping is closed when the server should stop.
	stopping chan struct{}
	stopOnce sync.Once
	answers  atomic.Bool
}

// New makes a server. It does not listen before Serve.
func New(o Options) (*Server, error) {
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits
	}
	if o.Namespace == "" {
		o.Namespace = "default"
	}
	if err := appplan.CheckNamespace(o.Namespace); err != nil {
		return nil, fmt.Errorf("the default namespace: %w", err)
	}
	told, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, fmt.Errorf("registering the metrics of the REST API: %w", err)
	}
	s := &Server{
		calls:  &appservice.Calls{Client: o.Client, Classes: o.Classes, Used: o.Used, Verdict: o.Limits.Verdict, MaxApps: o.Limits.Apps},
		as:     o.As,
		door:   newDoor(o.Client, o.Namespace, o.Audiences, o.Limits),
		limits: o.Limits, log: o.Log, metrics: told, mux: http.NewServeMux(), stopping: make(chan struct{}),
		streams: newStreams(o.Limits, told),
	}
	adoptErrors()
	document := document(o.Version)
	routes := humago.New(s.mux, huma.Config{OpenAPI: document, Formats: huma.DefaultFormats, DefaultFormat: "application/json"})
	routes.UseMiddleware(s.enter)
	s.register(routes)
	if err := s.serveDocument(document); err != nil {
		return nil, err
	}
	return s, nil
}

// stop ends the streams of events, which could otherwise last long.
func (s *Server) stop() { s.stopOnce.Do(func() { close(s.stopping) }) }

// document returns the API's document before any calls are added.
func document(version string) *huma.OpenAPI {
	return &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Tarn: applications and their volumes", Version: version,
			Description: "Deploy applications from a paas.toml without writing a PersistentVolumeClaim. " +
				"Call it with a Kubernetes token. The caller may do with applications what RBAC allows with the resource apps.tarn.dev in the namespace; " +
				"an application that the caller may not see is not found.",
		},
		Components: &huma.Components{
			Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"token": {Type: "http", Scheme: "bearer", Description: "A Kubernetes token, for example from `kubectl create token`"},
			},
		},
		Security: []map[string][]string{{"token": {}}},
		Tags: []*huma.Tag{
			{Name: "apps", Description: "Applications"}, {Name: "volumes", Description: "Their volumes"},
		},
	}
}

// errorsOf returns the statuses of a call's possible errors.
func errorsOf(more ...int) []int {
	all := append([]int{
		http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusTooManyRequests, http.StatusInternalServerError,
	}, more...)
	if slices.Contains(more, http.StatusRequestEntityTooLarge) { // such a call has a body, which may also arrive too slowly
		all = append(all, http.StatusRequestTimeout)
	}
	slices.Sort(all)
	return all
}
