package bind

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"

	"tarn.dev/tarn/internal/volume"
)

// sum returns the count and the sum of a histogram.
func sum(t *testing.T, from prometheus.Gatherer, name string) (count uint64, seconds float64) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name {
				count += m.GetHistogram().GetSampleCount()
				seconds += m.GetHistogram().GetSampleSum()
			}
		}
	}
	return count, seconds
}

// counted returns the values of a counter with one label, by the label's value.
func counted(t *testing.T, from prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name {
				found[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	return found
}

func TestTimesAreTakenFromAClaimsCreation(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	created := func(ago time.Duration) claimWith {
		return func(c *corev1.PersistentVolumeClaim) { c.CreationTimestamp = metav1.NewTime(noon.Add(-ago)) }
	}
	young, late, old := claimOf("1Gi", created(900*time.Millisecond)), claimOf("1Gi", uid("late"), created(1500*time.Millisecond)), claimOf("1Gi", uid("old"), created(time.Minute))
	m.claimSeen(young, noon)
	m.claimSeen(late, noon)
	m.claimSeen(old, noon)
	m.claimSeen(claimOf("1Gi", uid("bound"), completed("a", corev1.ClaimBound)), noon)
	made := volumeOf("a", "1Gi", to("c", "old"), marked(volume.AnnProvisionedBy+"=p.example"))
	m.volumeSeen(made, noon.Add(time.Second))
	m.volumeSeen(made, noon.Add(time.Hour))
	m.observeBound(old, MatchMade, noon.Add(2*time.Second))
	m.observeBound(young, MatchFree, noon.Add(250*time.Millisecond))
	m.observeBound(late, MatchFree, noon.Add(250*time.Millisecond))
	m.observeBound(old, MatchRepaired, noon.Add(time.Hour))
	if count, seconds := sum(t, registry, "tarn_bind_duration_seconds"); count != 3 || seconds != 62 {
		t.Errorf("%d binds took %v s, want 3 in 62: of creation only the second is known, in which the young claim was seen", count, seconds)
	}
	if count, seconds := sum(t, registry, "tarn_bind_provision_duration_seconds"); count != 1 || seconds != 60 {
		t.Errorf("%d volumes were made in %v s, want 1 in 60", count, seconds)
	}
	if len(m.seen) != 0 {
		t.Errorf("claims that are bound are remembered: %v", m.seen)
	}
}

func TestASecondBinderOfAProcessSharesTheMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	for range 2 {
		m, err := newMetrics(registry)
		if err != nil {
			t.Fatal(err)
		}
		m.claimSeen(claimOf("1Gi"), noon)
		m.observeBound(claimOf("1Gi"), MatchFree, noon)
	}
	if count, _ := sum(t, registry, "tarn_bind_duration_seconds"); count != 2 {
		t.Errorf("counted %d binds, want both binders'", count)
	}
}

// shop counts the free volumes reported to it.
type shop struct {
	deaf
	free map[string]int
}

func (s shop) freeVolumes(class string, more int) { s.free[class] += more }

func TestFreeVolumesAreCountedByClass(t *testing.T) {
	s := shop{free: map[string]int{}}
	b := newCache(false, s)
	b.volumeChanged(volumeOf("a", "1Gi", class("gold")))
	b.volumeChanged(volumeOf("b", "1Gi", class("gold")))
	b.volumeChanged(volumeOf("d", "1Gi"))
	b.volumeChanged(volumeOf("e", "1Gi", in(corev1.VolumePending)))
	b.lockVolume("a", claimKey{})
	b.volumeDeleted(volumeOf("d", "1Gi"))
	if s.free["gold"] != 1 || s.free[""] != 0 {
		t.Errorf("got %v, want one of gold", s.free)
	}
	b.unlockVolume("a", nil)
	if s.free["gold"] != 2 {
		t.Errorf("got %v, want two of gold", s.free)
	}
}

func TestAnotherBinderIsCountedEachTimeAndToldOnceAMinute(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	clock := testclock.NewFakePassiveClock(noon)
	r := &reconciler{clock: clock, metrics: m, log: funcr.New(func(_, line string) { told = append(told, line) }, funcr.Options{})}
	for _, c := range []struct {
		at   time.Duration
		what string
		told int
	}{
		{0, "volume", 1},
		{time.Second, "claim", 1},
		{warnEvery - 1, "volume", 1},
		{warnEvery, "volume", 2},
		{warnEvery + time.Second, "volume", 2},
		{2 * warnEvery, "claim", 3},
	} {
		clock.SetTime(noon.Add(c.at))
		r.foreign(foreignWrite{what: c.what, name: "a", phase: "Bound", version: "7"})
		if len(told) != c.told {
			t.Errorf("after %s it was told %d times, want %d", c.at, len(told), c.told)
		}
	}
	for _, want := range []string{"another binder", "persistentvolume-binder-controller", `"object"="volume"`, `"name"="a"`, `"phase"="Bound"`, `"resourceVersion"="7"`} {
		if !strings.Contains(told[0], want) {
			t.Errorf("%s is not in what was told: %s", want, told[0])
		}
	}
	if got, want := counted(t, registry, "tarn_bind_foreign_writes_total"), map[string]float64{"volume": 4, "claim": 2}; !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}
