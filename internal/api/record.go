package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	appplan "tarn.dev/tarn/internal/app/plan"
)

// record is what is logged and counted about a call. It contains no token and no body.
type record struct {
	mu        sync.Mutex
	operation string
	caller    string
	namespace string
	err       error
}

type recordKey struct{}

// note adds to the record of the current call.
func note(ctx context.Context, add func(*record)) {
	if r, ok := ctx.Value(recordKey{}).(*record); ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		add(r)
	}
}

// seen records the status of the answer.
type seen struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (s *seen) WriteHeader(status int) {
	if s.status == 0 {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (s *seen) Write(text []byte) (int, error) {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	return s.ResponseWriter.Write(text)
}

// Unwrap gives http.ResponseController access to the writer.
func (s *seen) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// ServeHTTP answers a call, logs and counts it, and recovers from panics.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	rec := &record{}
	out := &seen{ResponseWriter: w}
	r = r.WithContext(context.WithValue(r.Context(), recordKey{}, rec))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	defer func() {
		if cause := recover(); cause != nil {
			s.log.Error(fmt.Errorf("%v", cause), "a call panicked", "stack", string(debug.Stack()))
			if out.status == 0 {
				write(out, appplan.Errorf(appplan.Internal, "the server failed: read its log"))
			}
		}
		s.finish(r, rec, out.status, time.Since(began))
	}()
	s.route(out, r)
}

func (s *Server) finish(r *http.Request, rec *record, status int, took time.Duration) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	operation := rec.operation
	if operation == "" {
		operation = "none"
	}
	s.metrics.calls.WithLabelValues(operation, strconv.Itoa(status)).Inc()
	if operation != eventsOperation {
		s.metrics.seconds.WithLabelValues(operation).Observe(took.Seconds())
	}
	values := []any{
		"method", r.Method, "path", r.URL.Path, "status", status, "took", took.Round(time.Millisecond).String(),
		"caller", rec.caller, "namespace", rec.namespace, "from", hostOf(r.RemoteAddr),
	}
	if status >= http.StatusInternalServerError {
		s.log.Error(rec.err, "a call failed", values...)
		return
	}
	s.log.Info("call", values...)
}

// route finds the handler of a call. A call without one gets a failure like any other.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	if _, err := bearer(r.Header.Get("Authorization")); err != nil {
		if err := s.door.tokenless.take(neighbourhood(r.RemoteAddr)); err != nil {
			write(w, err)
			return
		}
	}
	handler, pattern := s.mux.Handler(r)
	if pattern != "" {
		s.mux.ServeHTTP(w, r)
		return
	}
	nowhere := &dropped{header: http.Header{}}
	handler.ServeHTTP(nowhere, r)
	if allow := nowhere.header.Get("Allow"); nowhere.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", allow)
		write(w, appplan.Errorf(appplan.WrongMethod, "%s is not for this path: it takes %s", r.Method, allow))
		return
	}
	write(w, appplan.Errorf(appplan.NotFound, "there is no such path: see /docs"))
}

// dropped keeps only the status and the header of an answer.
type dropped struct {
	header http.Header
	status int
}

// Header implements http.ResponseWriter.
func (d *dropped) Header() http.Header { return d.header }

// Write implements http.ResponseWriter.
func (d *dropped) Write(text []byte) (int, error) { return len(text), nil }

// WriteHeader implements http.ResponseWriter.
func (d *dropped) WriteHeader(status int) { d.status = status }

// metrics are the server's metrics.
type metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	streams prometheus.Gauge
}

// newMetrics registers the metrics. If another server of this process has registered them, it
// returns those.
func newMetrics(with prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarn_api_calls_total", Help: "Calls of the REST API, by operation and HTTP status.",
		}, []string{"operation", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tarn_api_call_duration_seconds", Help: "Time a call of the REST API took, streams of events left out.",
		}, []string{"operation"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tarn_api_event_streams", Help: "Streams of events that are open.",
		}),
	}
	var err error
	m.calls, err = register(with, m.calls, err)
	m.seconds, err = register(with, m.seconds, err)
	m.streams, err = register(with, m.streams, err)
	return m, err
}

// register registers a metric, or returns the existing one of the same name.
func register[T prometheus.Collector](with prometheus.Registerer, metric T, before error) (T, error) {
	if with == nil || before != nil {
		return metric, before
	}
	err := with.Register(metric)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if existing, ok := there.ExistingCollector.(T); ok {
			return existing, nil
		}
	}
	return metric, err
}
