package bind

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"tarn.dev/tarn/internal/volume"
)

// latencies are the histogram buckets in seconds: a bind takes milliseconds, creating a volume up
// to minutes.
var latencies = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// metrics are the binder's metrics.
type metrics struct {
	bound     *prometheus.HistogramVec
	made      prometheus.Histogram
	matches   *prometheus.CounterVec
	retries   *prometheus.CounterVec
	conflicts *prometheus.CounterVec
	foreign   *prometheus.CounterVec
	free      *prometheus.GaugeVec

	mu   sync.Mutex
	seen map[types.UID]waited // unbound claims
}

// waited is how long a claim has waited.
type waited struct {
	since time.Time
	made  bool // a volume was created for it
}

// newMetrics registers the metrics, or reuses those that an earlier binder of this process
// registered.
func newMetrics(with prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		bound: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tarn_bind_duration_seconds", Buckets: latencies,
			Help: "Time from a claim's creation until it was bound, by how its volume was found.",
		}, []string{"match"}),
		made: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tarn_bind_provision_duration_seconds", Buckets: latencies,
			Help: "Time from a claim's creation until its volume was provisioned.",
		}),
		matches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarn_bind_matches_total", Help: "Claims joined to volumes, by how the volume was found.",
		}, []string{"match"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarn_bind_retries_total", Help: "Reconciles of a claim or volume that failed and are retried.",
		}, []string{"object"}),
		conflicts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarn_bind_conflicts_total", Help: "Writes of a claim or volume that were rejected because of a conflict.",
		}, []string{"object"}),
		foreign: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tarn_bind_foreign_writes_total", Help: "Phases of claims and volumes written by another binder.",
		}, []string{"object"}),
		free: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tarn_bind_free_volumes", Help: "Available volumes that are not reserved for a claim, by class.",
		}, []string{"class"}),
		seen: map[types.UID]waited{},
	}
	var failed error
	m.bound, failed = register(with, m.bound, failed)
	m.made, failed = register(with, m.made, failed)
	m.matches, failed = register(with, m.matches, failed)
	m.retries, failed = register(with, m.retries, failed)
	m.conflicts, failed = register(with, m.conflicts, failed)
	m.foreign, failed = register(with, m.foreign, failed)
	m.free, failed = register(with, m.free, failed)
	return m, failed
}

func register[C prometheus.Collector](with prometheus.Registerer, c C, failed error) (C, error) {
	err := with.Register(c)
	if known := (prometheus.AlreadyRegisteredError{}); errors.As(err, &known) {
		if before, ok := known.ExistingCollector.(C); ok {
			return before, failed
		}
	}
	return c, errors.Join(failed, err)
}

// claimSeen records when an unbound claim was created. The API server truncates that time to whole
// seconds, too coarse for what takes milliseconds. A claim that the binder sees within the same
// second counts from that moment. One seen later counts from the end of the second.
func (m *metrics) claimSeen(claim *corev1.PersistentVolumeClaim, now time.Time) {
	if volume.StateOfClaim(claim) == volume.ClaimCompleted {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.seen[claim.UID]; known {
		return
	}
	since := claim.CreationTimestamp.Add(time.Second)
	if since.After(now) {
		since = now
	}
	m.seen[claim.UID] = waited{since: since}
}

// volumeSeen observes the creation of a volume for a claim.
func (m *metrics) volumeSeen(v *corev1.PersistentVolume, now time.Time) {
	if _, made := v.Annotations[volume.AnnProvisionedBy]; !made || v.Spec.ClaimRef == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	w, known := m.seen[v.Spec.ClaimRef.UID]
	if known && !w.made {
		m.made.Observe(now.Sub(w.since).Seconds())
		m.seen[v.Spec.ClaimRef.UID] = waited{since: w.since, made: true}
	}
}

func (m *metrics) forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, uid)
}

// observeBound counts a claim that got its volume.
func (m *metrics) observeBound(claim *corev1.PersistentVolumeClaim, how Match, now time.Time) {
	m.matches.WithLabelValues(string(how)).Inc()
	m.mu.Lock()
	w, known := m.seen[claim.UID]
	delete(m.seen, claim.UID)
	m.mu.Unlock()
	if known { // else it was bound before, and this is a repair
		m.bound.WithLabelValues(string(how)).Observe(now.Sub(w.since).Seconds())
	}
}

// failed counts a reconcile that ended in an error.
func (m *metrics) failed(object string, err error) {
	if isStale(err) {
		m.conflicts.WithLabelValues(object).Inc()
	}
	m.retries.WithLabelValues(object).Inc()
}
