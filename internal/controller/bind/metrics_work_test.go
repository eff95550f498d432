package bind

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tarn.dev/tarn/internal/volume"
)

// measured is a binder with its own metrics, and a server that it reaches by HTTP.
type measured struct {
	*reconciler
	t        *testing.T
	registry *prometheus.Registry
	time     *testclock.FakePassiveClock
	server   *server
	// instead holds the outcome of a write by its number, counted from 1: an error, or nil if
	// another writer's write comes first.
	instead map[int]error
	writes  int
	// atWork is the highest number of claims that were reported as in work during a write.
	atWork int32
}

var errOvertaken = errors.New("somebody else writes first")

func newMeasured(t *testing.T) *measured {
	t.Helper()
	m := &measured{t: t, registry: prometheus.NewRegistry(), time: testclock.NewFakePassiveClock(noon), instead: map[int]error{}}
	metrics, err := newMetrics(m.registry)
	if err != nil {
		t.Fatal(err)
	}
	m.reconciler = &reconciler{metrics: metrics, clock: m.time}
	nobody := delays{after: map[string]time.Duration{}}
	m.watches = &watches{cache: newCache(false, m.reconciler), claims: nobody, volumes: nobody}
	m.events = newEventQueue(&notes{}, m.time, m.cache.settled)
	m.server = newServer(m.cache)
	web := httptest.NewServer(m)
	t.Cleanup(web.Close)
	if m.api, err = v1.NewForConfig(&rest.Config{Host: web.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}); err != nil {
		t.Fatal(err)
	}
	return m
}

// ServeHTTP answers requests about claims and volumes.
func (m *measured) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	path := strings.Split(strings.TrimPrefix(q.URL.Path, "/api/v1/"), "/")
	status := path[len(path)-1] == "status"
	var answer any
	var err error
	if q.Method == http.MethodPut {
		m.writes++
		m.atWork = max(m.atWork, m.active.Load())
		err = m.instead[m.writes]
	}
	touch := errors.Is(err, errOvertaken)
	if touch {
		err = nil
	}
	switch {
	case err != nil:
	case path[0] == "persistentvolumes":
		answer, err = m.volume(q, path[1], touch, status)
	default:
		answer, err = m.claim(q, claimKey{Namespace: path[1], Name: path[3]}, touch, status)
	}
	code := http.StatusOK
	if refusal := apierrors.APIStatus(nil); errors.As(err, &refusal) {
		told := refusal.Status()
		told.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		answer, code = &told, int(told.Code)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		m.t.Error(err)
	}
}

func (m *measured) volume(q *http.Request, name string, touch, status bool) (any, error) {
	if touch {
		m.server.putVolume(with(m.server.volumes[name], marked("touched")))
	}
	if q.Method == http.MethodGet {
		return m.server.volumes[name], nil
	}
	v := &corev1.PersistentVolume{}
	if err := json.NewDecoder(q.Body).Decode(v); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return m.server.updateVolume(v, v.ResourceVersion, status)
}

func (m *measured) claim(q *http.Request, key claimKey, touch, status bool) (any, error) {
	if touch {
		c := m.server.claims[key].DeepCopy()
		noted("touched")(c)
		m.server.putClaim(c)
	}
	if q.Method == http.MethodGet {
		return m.server.claims[key], nil
	}
	c := &corev1.PersistentVolumeClaim{}
	if err := json.NewDecoder(q.Body).Decode(c); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return m.server.updateClaim(c, c.ResourceVersion, status)
}

// sees delivers all objects as the watches would.
func (m *measured) sees() {
	for i := range m.server.lag {
		for _, event := range m.server.lag[i] {
			event()
		}
		m.server.lag[i] = nil
	}
}

// look reconciles the claim until it succeeds, and then delivers the watch events.
func (m *measured) look() {
	m.t.Helper()
	_, err := claims{m.reconciler}.Reconcile(context.Background(), reconcile.Request{NamespacedName: key})
	for range m.instead {
		if err != nil {
			_, err = claims{m.reconciler}.Reconcile(context.Background(), reconcile.Request{NamespacedName: key})
		}
	}
	if err != nil {
		m.t.Fatal(err)
	}
	if left := m.active.Load(); m.writes > 0 && m.atWork != 1 || left != 0 {
		m.t.Errorf("%d claims are said to be worked on while one is, and %d after it", m.atWork, left)
	}
	m.sees()
}

// told returns the metrics that are not 0, by name and label. A histogram is its count and its sum.
func (m *measured) told() map[string]float64 {
	m.t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		name := strings.TrimPrefix(family.GetName(), "tarn_bind_")
		for _, metric := range family.GetMetric() {
			label := ""
			for _, l := range metric.GetLabel() {
				label += " " + l.GetValue()
			}
			found[name+label] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			found[name+" count"+label] = float64(metric.GetHistogram().GetSampleCount())
			found[name+" sum"+label] = metric.GetHistogram().GetSampleSum()
		}
	}
	maps.DeleteFunc(found, func(_ string, value float64) bool { return value == 0 })
	return found
}

func (m *measured) wantTold(when string, want map[string]float64) {
	m.t.Helper()
	if got := m.told(); !maps.Equal(got, want) {
		m.t.Errorf("%s the metrics say %v, want %v", when, got, want)
	}
}

func TestEachWayToAVolumeIsCountedAndTimed(t *testing.T) {
	pending, since := in(corev1.VolumePending), func(c *corev1.PersistentVolumeClaim) { c.CreationTimestamp = metav1.NewTime(noon) }
	for _, c := range []struct {
		how    Match
		claim  *corev1.PersistentVolumeClaim
		volume *corev1.PersistentVolume
		want   map[string]float64 // besides the match
	}{
		{MatchFree, claimOf("1Gi", since), volumeOf("a", "1Gi"), map[string]float64{"duration_seconds count free": 1, "duration_seconds sum free": .75}},
		{MatchReserved, claimOf("1Gi", since), volumeOf("a", "1Gi", to("c", ""), pending), map[string]float64{"duration_seconds count reserved": 1, "duration_seconds sum reserved": .75}},
		{MatchNamed, claimOf("1Gi", since, names("a")), volumeOf("a", "1Gi", pending), map[string]float64{"duration_seconds count named": 1, "duration_seconds sum named": .75}},
		{MatchMade, claimOf("1Gi", since), volumeOf("a", "1Gi", to("c", "u"), pending, marked(volume.AnnProvisionedBy+"=p.example")), map[string]float64{
			"duration_seconds count made": 1, "duration_seconds sum made": .75, "provision_duration_seconds count": 1, "provision_duration_seconds sum": .5,
		}},
		// The start of the repair's wait is unknown, so it has no duration.
		{MatchRepaired, claimOf("1Gi", since, completed("a", corev1.ClaimBound)), volumeOf("a", "1Gi", in(corev1.VolumeReleased)), nil},
	} {
		t.Run(string(c.how), func(t *testing.T) {
			m := newMeasured(t)
			m.server.putClaim(c.claim)
			m.sees()
			m.time.SetTime(noon.Add(500 * time.Millisecond))
			m.server.putVolume(c.volume)
			m.sees()
			m.time.SetTime(noon.Add(750 * time.Millisecond))
			m.look()
			want := map[string]float64{"matches_total " + string(c.how): 1}
			maps.Copy(want, c.want)
			m.wantTold("bound,", want)
			m.time.SetTime(noon.Add(time.Hour))
			m.look()
			m.wantTold("looked at again,", want)
		})
	}
}

func TestFreeVolumesAreToldUntilTheyAreTaken(t *testing.T) {
	m := newMeasured(t)
	for _, name := range []string{"a", "b"} {
		m.server.putVolume(volumeOf(name, "1Gi", class("gold")))
	}
	m.server.putVolume(volumeOf("d", "1Gi"))
	m.server.putVolume(volumeOf("e", "1Gi", to("other", "")))
	m.server.putVolume(volumeOf("f", "1Gi", in(corev1.VolumePending)))
	m.sees()
	m.wantTold("before the claim", map[string]float64{"free_volumes ": 1, "free_volumes gold": 2})
	m.server.putClaim(claimOf("1Gi", ofClass("gold")))
	m.cache.putClass(classOf("gold"))
	m.sees()
	m.look()
	if free := m.told(); free["free_volumes gold"] != 1 || free["free_volumes "] != 1 {
		t.Errorf("the claim has one of gold, and the metrics say %v, want one of gold and one of none left", free)
	}
	m.server.removeVolume("b")
	m.sees()
	if free := m.told(); free["free_volumes gold"] != 0 {
		t.Errorf("the other has gone, and the metrics say %v, want none of gold left", free)
	}
}

func TestLooksThatFailAreCountedAndConflictsOfThemToo(t *testing.T) {
	resource, busy := resourceName, errors.New("etcd has no leader")
	for _, c := range []struct {
		what string
		err  error
		want map[string]float64
	}{
		{"overtaken", errOvertaken, map[string]float64{"retries_total claim": 1, "conflicts_total claim": 1}},
		{"answered with an error", apierrors.NewInternalError(busy), map[string]float64{"retries_total claim": 1}},
		{"refused", apierrors.NewForbidden(resource, "it", errors.New("a webhook says no")), map[string]float64{"retries_total claim": 1}},
	} {
		for nth := 1; nth <= 4; nth++ {
			t.Run(fmt.Sprintf("write %d is %s", nth, c.what), func(t *testing.T) {
				m := newMeasured(t)
				m.instead[nth] = c.err
				m.server.putClaim(claimOf("1Gi"))
				m.server.putVolume(volumeOf("a", "1Gi"))
				m.sees()
				m.look()
				d := done{pair: pair{claim: m.server.claims[key], volume: m.server.volumes["a"]}}
				if wrong := d.bound(); wrong != "" {
					t.Fatal(wrong)
				}
				got, matches, binds := m.told(), 0.0, 0.0
				for name, value := range got {
					switch {
					case strings.HasPrefix(name, "matches_total"):
						matches += value
					case strings.HasPrefix(name, "duration_seconds count"):
						binds += value
					}
				}
				if matches != 1 || binds != 1 {
					t.Errorf("the metrics say %v, want one match and one time", got)
				}
				for _, name := range []string{"retries_total claim", "conflicts_total claim"} {
					if got[name] != c.want[name] {
						t.Errorf("%s is %v, want %v", name, got[name], c.want[name])
					}
				}
				// Deciding again within one reconcile keeps the match. After a requeue, the match
				// is that of what the binder finds then.
				if c.want["conflicts_total claim"] > 0 && got["matches_total free"] != 1 {
					t.Errorf("the metrics say %v, want a free match", got)
				}
			})
		}
	}
	m := newMeasured(t)
	m.instead[1] = errOvertaken
	m.server.putVolume(volumeOf("a", "1Gi", in(corev1.VolumePending)))
	m.sees()
	if _, err := (volumes{m.reconciler}).Reconcile(context.Background(), reconcile.Request{NamespacedName: claimKey{Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	m.wantTold("a volume's look overtaken,", map[string]float64{"retries_total volume": 1, "conflicts_total volume": 1, "free_volumes ": 1})
}

func TestAClaimsTimeIsInTheBucketItBelongsTo(t *testing.T) {
	m := newMeasured(t)
	m.server.putClaim(claimOf("1Gi", func(c *corev1.PersistentVolumeClaim) { c.CreationTimestamp = metav1.NewTime(noon) }))
	m.sees()
	m.time.SetTime(noon.Add(40 * time.Millisecond))
	m.server.putVolume(volumeOf("a", "1Gi"))
	m.sees()
	m.look()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	least := 0.0 // the lowest bucket that counts it
	for _, family := range families {
		if family.GetName() != "tarn_bind_duration_seconds" {
			continue
		}
		for _, bucket := range family.GetMetric()[0].GetHistogram().GetBucket() {
			if bucket.GetCumulativeCount() == 1 && least == 0 {
				least = bucket.GetUpperBound()
			}
		}
	}
	if least != .05 {
		t.Errorf("40 ms are counted as up to %v s, want 0.05", least)
	}
}
