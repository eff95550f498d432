package api

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

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
