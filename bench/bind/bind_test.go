package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

func TestPercentilesAreThoseThatSoManyDoNotExceed(t *testing.T) {
	var waits []time.Duration
	for i := range 200 {
		waits = append(waits, time.Duration(i+1)*time.Second)
	}
	for percent, want := range map[int]float64{50: 100, 90: 180, 99: 198, 100: 200} {
		if got := at(waits, percent); got != want {
			t.Errorf("p%d = %g, want %g", percent, got, want)
		}
	}
	if got := at(waits[:1], 99); got != 1 {
		t.Errorf("p99 of one = %g, want it", got)
	}
}

func TestRatesCountFromTheFirstRequestToTheLastBinding(t *testing.T) {
	start := time.Unix(1000, 0)
	seen := &claims{asked: map[string]time.Time{}, bound: map[string]time.Time{}}
	for i := range 10 {
		name := numbered("claim", i)
		seen.asked[name] = start.Add(time.Duration(i) * 100 * time.Millisecond)
		seen.bound[name] = start.Add(time.Duration(i+1) * 500 * time.Millisecond)
	}
	r := result{Claims: 10}
	r.fill(seen, start.Add(time.Second))
	if r.Seconds != 5 || r.PerSecond != 2 || r.Bound != 10 {
		t.Errorf("%d in %g s, %g/s, want 10 in 5 s, 2/s", r.Bound, r.Seconds, r.PerSecond)
	}
	if r.AfterPerSecond != 2 { // 8 bindings in the 4 s after the last claim was made
		t.Errorf("once made %g/s, want 2", r.AfterPerSecond)
	}
	if r.Latency.Max != 4.1 {
		t.Errorf("the longest wait is %g s, want 4.1", r.Latency.Max)
	}
}

const someMetrics = `# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="persistentvolumes",scope="resource",subresource="",verb="PUT",version="v1"} 30
apiserver_request_total{code="409",component="apiserver",dry_run="",group="",resource="persistentvolumes",scope="resource",subresource="",verb="PUT",version="v1"} 2
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="persistentvolumes",scope="resource",subresource="status",verb="PUT",version="v1"} 1e+01
apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="persistentvolumeclaims",scope="resource",subresource="",verb="POST",version="v1"} 10
apiserver_request_total{code="201",component="apiserver",dry_run="",group="events.k8s.io",resource="events",scope="resource",subresource="",verb="POST",version="v1"} 5
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="cluster",subresource="",verb="LIST",version="v1"} 3
apiserver_request_duration_seconds_count{resource="persistentvolumes"} 99
etcd_requests_total{group="",operation="get",resource="persistentvolumes"} 7
etcd_requests_total{group="",operation="update",resource="persistentvolumes"} 40
etcd_requests_total{group="",operation="get",resource="pods"} 4
`

func TestRequestsAreReadFromTheAPIServersMetrics(t *testing.T) {
	got, conflicts, err := requests(someMetrics)
	want := map[string]int{"PUT persistentvolumes": 32, "PUT persistentvolumes/status": 10, "POST persistentvolumeclaims": 10, "POST events": 5, etcdGet + "persistentvolumes": 7}
	if err != nil || !maps.Equal(got, want) || conflicts != 2 {
		t.Errorf("%v, %d conflicts, %v; want %v, 2 conflicts", got, conflicts, err, want)
	}
	if _, _, err := requests(`apiserver_request_total{resource="events"} many`); err == nil {
		t.Error("a count that is no number passed")
	}
}

func TestOwnRequestsAndEventsAreNoWritesOfTheBinder(t *testing.T) {
	before := usage{seconds: map[string]float64{apiServer: 1, etcd: 1, tarnController: 2}, requests: map[string]int{"PUT persistentvolumes": 1}, machine: machineTime{idle: 10, stolen: 5, all: 100}}
	after := usage{seconds: map[string]float64{apiServer: 3, etcd: 2, tarnController: 2.5}, conflict: 1, machine: machineTime{idle: 15, stolen: 7, all: 200}, requests: map[string]int{
		"PUT persistentvolumes": 11, "PUT persistentvolumes/status": 10, "PUT persistentvolumeclaims": 10, "PUT persistentvolumeclaims/status": 10,
		"POST persistentvolumeclaims": 10, "POST events": 20, "GET persistentvolumeclaims": 10,
		etcdGet + "persistentvolumeclaims": 10, etcdGet + "persistentvolumes": 5, etcdGet + "events": 20,
	}}
	r := result{Mode: modeMatch, Claims: 10}
	r.spent(before, after, tarnController)
	if r.Writes != 4 || r.Conflicts != 1 || r.Requests["POST events"] != 2 || r.Gets != 1.5 {
		t.Errorf("%g writes, %d conflicts, %g reads in etcd, requests %v; want 4, 1, 1.5, and 2 events a binding", r.Writes, r.Conflicts, r.Gets, r.Requests)
	}
	if _, own := r.Requests["POST persistentvolumeclaims"]; own {
		t.Error("claims made by the benchmark count as the binder's requests")
	}
	if r.Processor["binder"] != 0.5 || r.Processor[apiServer] != 2 {
		t.Errorf("processor time %v, want 0.5 s of the binder, 2 s of the API server", r.Processor)
	}
	if r.Idle != 0.05 || r.Stolen != 0.02 {
		t.Errorf("processors idle for %g of their time and %g stolen, want 0.05 and 0.02", r.Idle, r.Stolen)
	}
}

func TestProcessorTimeIsReadPastTheNameOfTheProgram(t *testing.T) {
	stat := "42 (a (b) c) S 1 42 42 0 -1 4194560 1 0 0 0 250 150 0 0 20 0 9 0 100 1 1"
	if got, err := statSeconds(stat); err != nil || got != 4 {
		t.Errorf("%g s, %v; want 4", got, err)
	}
	if _, err := statSeconds("42 (x) S"); err == nil {
		t.Error("half a line passed")
	}
	machine := "cpu  10 1 5 60 4 2 3 15 7 7\ncpu0 5 0 2 30 2 1 1 7 3 3\n"
	if got, err := machineTicks(machine); err != nil || got != (machineTime{idle: 64, stolen: 15, all: 100}) {
		t.Errorf("%+v, %v; want 64 of 100 idle and 15 stolen", got, err)
	}
	for _, stat := range []string{"", "cpu 1 2 3", "cpu  10 1 5 many 4 2 3 15 7 7"} {
		if _, err := machineTicks(stat); err == nil {
			t.Errorf("%q passed", stat)
		}
	}
}

// pair is a claim and its volume, bound both ways.
func pair(i int) (corev1.PersistentVolumeClaim, corev1.PersistentVolume) {
	wanted, v := claim(numbered("claim", i), ""), volume(kindFree, numbered("volume", i), "")
	wanted.UID = types.UID(wanted.Name)
	wanted.Spec.VolumeName, wanted.Status.Phase = v.Name, corev1.ClaimBound
	v.Spec.ClaimRef, v.Status.Phase = &corev1.ObjectReference{UID: wanted.UID}, corev1.VolumeBound
	return *wanted, *v
}

func TestEveryDisagreementOfClaimsAndVolumesIsSeen(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(wanted []corev1.PersistentVolumeClaim, volumes []corev1.PersistentVolume)
		want  string
	}{
		{"nothing wrong", func([]corev1.PersistentVolumeClaim, []corev1.PersistentVolume) {}, ""},
		{"a claim not Bound", func(w []corev1.PersistentVolumeClaim, _ []corev1.PersistentVolume) {
			w[1].Status.Phase = corev1.ClaimPending
		}, "claim-00001 is Pending"},
		{"two claims with one volume", func(w []corev1.PersistentVolumeClaim, _ []corev1.PersistentVolume) {
			w[1].Spec.VolumeName = "volume-00000"
		}, "another claim's too"},
		{"a volume of another claim", func(_ []corev1.PersistentVolumeClaim, v []corev1.PersistentVolume) { v[0].Spec.ClaimRef.UID = "x" }, "says it is of"},
		{"a volume of nobody", func(_ []corev1.PersistentVolumeClaim, v []corev1.PersistentVolume) { v[0].Spec.ClaimRef = nil }, "says it is of"},
		{"a volume not Bound", func(_ []corev1.PersistentVolumeClaim, v []corev1.PersistentVolume) {
			v[0].Status.Phase = corev1.VolumeAvailable
		}, "volume-00000 of claim claim-00000 is Available"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wanted, volumes := make([]corev1.PersistentVolumeClaim, 2), make([]corev1.PersistentVolume, 2)
			for i := range 2 {
				wanted[i], volumes[i] = pair(i)
			}
			c.spoil(wanted, volumes)
			err := pairwise(wanted, volumes)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestRunsOfOneModeAndSizeFollowEachOtherAndThoseOfTheDefaultGoSideBySide(t *testing.T) {
	s, err := read([]string{"-modes=ceiling,match,noise", "-n=300,1000", "-slow-n=300", "-turns=2"})
	if err != nil {
		t.Fatal(err)
	}
	rounds, err := schedule(s)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, round := range rounds {
		got = append(got, fmt.Sprint(round))
	}
	turn := []string{"[the API server's ceiling]",
		"[match, 300 claims, bound by lifted]", "[match, 300 claims, bound by ideal]", "[match, 300 claims, bound by tarn]",
		"[match, 1000 claims, bound by lifted]", "[match, 1000 claims, bound by ideal]", "[match, 1000 claims, bound by tarn]",
		"[noise, 300 claims, bound by lifted]", "[noise, 300 claims, bound by ideal]", "[noise, 300 claims, bound by tarn]",
		"[noise, 1000 claims, bound by lifted]", "[noise, 1000 claims, bound by ideal]", "[noise, 1000 claims, bound by tarn]"}
	next := []string{"[the API server's ceiling]",
		"[match, 300 claims, bound by ideal, turn 2]", "[match, 300 claims, bound by tarn, turn 2]", "[match, 300 claims, bound by lifted, turn 2]",
		"[match, 1000 claims, bound by ideal, turn 2]", "[match, 1000 claims, bound by tarn, turn 2]", "[match, 1000 claims, bound by lifted, turn 2]",
		"[noise, 300 claims, bound by ideal, turn 2]", "[noise, 300 claims, bound by tarn, turn 2]", "[noise, 300 claims, bound by lifted, turn 2]",
		"[noise, 1000 claims, bound by ideal, turn 2]", "[noise, 1000 claims, bound by tarn, turn 2]", "[noise, 1000 claims, bound by lifted, turn 2]"}
	want := slices.Concat(turn, next, []string{"[match, 300 claims, bound by default noise, 300 claims, bound by default]"})
	if !slices.Equal(got, want) {
		t.Errorf("rounds %q, want %q", got, want)
	}
	for _, args := range [][]string{{"-modes=fast"}, {"-subjects=nobody"}, {"-subjects=upstream"}} {
		s, err := read(args)
		if err == nil {
			_, err = schedule(s)
		}
		if err == nil {
			t.Errorf("%q passed", args)
		}
	}
	for _, arg := range []string{"-n=many", "-n=300,300", "-turns=0"} {
		if _, err := read([]string{arg}); err == nil {
			t.Errorf("%s passed", arg)
		}
	}
}

func TestGoalsAreReachedMissedOrNotMeasured(t *testing.T) {
	fast := func(subject, mode string, n int, rate, p99 float64) result {
		return result{Subject: subject, Mode: mode, Claims: n, Rate: 41, Turn: 1, PerSecond: rate, Latency: latency{P99: p99}, Agree: true}
	}
	for _, c := range []struct {
		name string
		r    report
		want []string
	}{
		{"match beats the peer and not the ceiling", report{Ceilings: []ceiling{takes(1, 1000)}, Results: []result{fast("lifted", modeMatch, 1000, 60, 1), fast("ideal", modeMatch, 1000, 180, 1), fast("tarn", modeMatch, 1000, 160, 1)}},
			[]string{"reached match, 1000 claims: at least 2.5 times the peer without rate limits: 160.0/s, 2.66 times; the ideal binder is 3.00 times", "missed match, 1000 claims: at least 85% of the API server's ceiling for 5 writes: 160.0/s, 80.0%",
				"reached match, 1000 claims: at least 85% of the ideal binder: 160.0/s, 88.8%"}},
		{"slower than could be", report{Results: []result{fast("ideal", modeDynamic, 1000, 200, 1), fast("tarn", modeDynamic, 1000, 160, 1)}},
			[]string{"unknown", "unknown", "missed dynamic, 1000 claims: at least 85% of the ideal binder: 160.0/s, 80.0%"}},
		{"no peer, no ceiling", report{Results: []result{fast("tarn", modeMatch, 1000, 160, 1)}}, []string{"unknown", "unknown", "unknown"}},
		{"few claims prove nothing", report{Results: []result{fast("tarn", modeMatch, 300, 160, 1)}}, nil},
		{"prebound in time", report{Results: []result{fast("tarn", modePrebound, 1000, 100, 0.2)}}, []string{"reached prebound"}},
		{"prebound late", report{Results: []result{fast("tarn", modePrebound, 1000, 100, 0.3)}}, []string{"missed prebound"}},
		{"prebound late, as the ceiling has it", report{Ceilings: []ceiling{takes(1, 500)}, Results: []result{fast("ideal", modePrebound, 1000, 90, 0.28), fast("tarn", modePrebound, 1000, 90, 0.3)}},
			[]string{"missed prebound at 41/s, 1000 claims: p99 under 0.25 s: 0.300 s; the ideal binder has 0.280 s; the API server's ceiling is 83/s"}},
		{"noise slows", report{Results: []result{fast("tarn", modeMatch, 300, 160, 1), fast("tarn", modeNoise, 300, 120, 1)}}, []string{"missed noise"}},
		{"five thousand as fast as one", report{Results: []result{fast("tarn", modeMatch, 1000, 160, 1), fast("tarn", modeMatch, 5000, 150, 1)}}, []string{"unknown", "unknown", "unknown", "unknown", "unknown", "unknown", "reached match, 5000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := judge(c.r)
			if len(got) != len(c.want) {
				t.Fatalf("%d goals, want %d: %+v", len(got), len(c.want), got)
			}
			for i, v := range got {
				text := "missed " + v.Goal + ": " + v.Found
				switch {
				case v.Found == "":
					text = "unknown " + v.Goal
				case v.Reached:
					text = "reached " + v.Goal + ": " + v.Found
				}
				if !strings.HasPrefix(text, c.want[i]) {
					t.Errorf("%q, want %q", text, c.want[i])
				}
			}
		})
	}
	in := func(turn int, one result) result {
		one.Turn = turn
		return one
	}
	// The machine is half as fast in the second turn, and the peer fails in the third.
	peer := in(3, fast("lifted", modeMatch, 1000, 90, 1))
	peer.Agree = false
	got := judge(report{Ceilings: []ceiling{takes(1, 1000), takes(2, 500), takes(3, 1000)}, Results: []result{
		fast("lifted", modeMatch, 1000, 60, 1), in(2, fast("lifted", modeMatch, 1000, 30, 1)), peer,
		fast("tarn", modeMatch, 1000, 156, 1), in(2, fast("tarn", modeMatch, 1000, 81, 1)), in(3, fast("tarn", modeMatch, 1000, 190, 1)),
		fast("tarn", modePrebound, 1000, 100, 0.2), in(2, fast("tarn", modePrebound, 1000, 100, 0.4)), in(3, fast("tarn", modePrebound, 1000, 100, 0.24))}})
	want := []verdict{
		{"match, 1000 claims: at least 2.5 times the peer without rate limits", "118.5/s, 2.65 times in the median of 2.60 times, 2.70 times, in 2 of 3 turns", false},
		{"match, 1000 claims: at least 85% of the API server's ceiling for 5 writes", "156.0/s, 81.0% in the median of 78.0%, 81.0%, 95.0%", false},
		{Goal: "match, 1000 claims: at least 85% of the ideal binder"},
		{"prebound at 41/s, 1000 claims: p99 under 0.25 s", "0.240 s in the median of 0.200 s, 0.400 s, 0.240 s; the API server's ceiling is 166/s in the median of 166/s, 83/s, 166/s", true},
	}
	if !slices.Equal(got, want) {
		t.Errorf("of several turns\n%+v, want\n%+v", got, want)
	}
	// The ideal binder fails in the first of two, and one turn of the second mode is missing.
	ideal := fast("ideal", modeMatch, 1000, 1, 1)
	ideal.Agree = false
	got = judge(report{Results: []result{ideal, in(2, fast("ideal", modeMatch, 1000, 30, 1)),
		fast("lifted", modeMatch, 1000, 10, 1), in(2, fast("lifted", modeMatch, 1000, 10, 1)),
		fast("tarn", modeMatch, 1000, 30, 1), in(2, fast("tarn", modeMatch, 1000, 24.96, 1)), fast("tarn", modePrebound, 1000, 100, 0.2)}})
	want = []verdict{
		{"match, 1000 claims: at least 2.5 times the peer without rate limits", "27.5/s, 2.74 times in the median of 3.00 times, 2.49 times; the ideal binder is 3.00 times, in 1 of 2 turns", true},
		{Goal: "match, 1000 claims: at least 85% of the API server's ceiling for 5 writes"},
		{"match, 1000 claims: at least 85% of the ideal binder", "25.0/s, 83.2%, in 1 of 2 turns", false},
		{"prebound at 41/s, 1000 claims: p99 under 0.25 s", "0.200 s, in 1 of 2 turns", false},
	}
	if !slices.Equal(got, want) {
		t.Errorf("where runs are missing\n%+v, want\n%+v", got, want)
	}
	unfinished := fast("tarn", modePrebound, 1000, 100, 0.2)
	unfinished.Agree = false
	if got, want := judge(report{Results: []result{unfinished}})[0], (verdict{Goal: "prebound at 41/s, 1000 claims: p99 under 0.25 s", Found: "no run ended well"}); got != want {
		t.Errorf("of a run whose claims were not all bound\n%+v, want\n%+v", got, want)
	}
	// One of two runs ended well. The ideal binder's run in the other turn says nothing about it.
	got = judge(report{Ceilings: []ceiling{takes(1, 599), takes(2, 900)}, Results: []result{
		fast("tarn", modePrebound, 1000, 100, 0.2), in(2, unfinished), in(2, fast("ideal", modePrebound, 1000, 100, 0.1))}})
	want = []verdict{{"prebound at 41/s, 1000 claims: p99 under 0.25 s", "0.200 s, in 1 of 2 turns; the API server's ceiling is 99/s, in 1 of 2 turns", false}}
	if !slices.Equal(got, want) {
		t.Errorf("where one run failed\n%+v, want\n%+v", got, want)
	}
}

// takes is the ceiling of one turn.
func takes(turn int, writes float64) ceiling {
	return ceiling{Turn: turn, Levels: []level{{Concurrency: 1, Pairs: 1000, PerSecond: writes / 2}, {Concurrency: 128, Pairs: 1000, PerSecond: writes}}}
}

func TestTheCeilingOfARunIsThatOfAsManyPairs(t *testing.T) {
	c := ceiling{Levels: []level{{Pairs: 1000, PerSecond: 400}, {Pairs: 1000, PerSecond: 500}, {Pairs: 5000, PerSecond: 350}, {Pairs: 3000, PerSecond: 370}}}
	for claims, want := range map[int]float64{300: 500, 1000: 500, 2000: 500, 3000: 370, 4999: 370, 5000: 350, 9000: 350} {
		if got := c.of(claims); got != want {
			t.Errorf("%d claims: %g writes a second, want %g", claims, got, want)
		}
	}
	if got := (ceiling{}).of(1000); got != 0 {
		t.Errorf("%g writes a second where nothing was measured", got)
	}
}

func TestEachStopsAtTheFirstError(t *testing.T) {
	wrong := errors.New("wrong")
	if err := each(context.Background(), 1000, 4, func(i int) error {
		if i == 10 {
			return wrong
		}
		return nil
	}); !errors.Is(err, wrong) {
		t.Errorf("got %v", err)
	}
	done := make(chan int, 20)
	if err := each(context.Background(), 20, 4, func(i int) error { done <- i; return nil }); err != nil || len(done) != 20 {
		t.Errorf("%d of 20 done, %v", len(done), err)
	}
}

func TestWhatTheAPIServerDidNotAnswerForIsAskedForAgain(t *testing.T) {
	var (
		resource = schema.GroupResource{Resource: "persistentvolumeclaims"}
		late     = apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
		exists   = apierrors.NewAlreadyExists(resource, "claim-00000")
		refused  = apierrors.NewForbidden(resource, "claim-00000", errors.New("no"))
	)
	for name, c := range map[string]struct {
		answers []error
		want    error
	}{
		"made at once":               {[]error{nil}, nil},
		"made later":                 {[]error{late, late, nil}, nil},
		"made without an answer":     {[]error{late, exists}, nil},
		"there before it was asked":  {[]error{exists}, exists},
		"refused":                    {[]error{refused}, refused},
		"refused at the second time": {[]error{late, refused}, refused},
	} {
		asked := 0
		err := untilAnswered(func() error {
			asked++
			return c.answers[asked-1]
		})
		if !errors.Is(err, c.want) || asked != len(c.answers) {
			t.Errorf("%s: %v after %d requests, want %v after %d", name, err, asked, c.want, len(c.answers))
		}
	}
}

func TestAWatchThatEndsIsTakenUpWhereItWas(t *testing.T) {
	var from []string
	open := func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
		from = append(from, o.ResourceVersion)
		w := watch.NewFakeWithChanSize(1, false)
		v := volume(kindFree, "v", "")
		v.ResourceVersion = strconv.Itoa(10 * len(from))
		w.Modify(v)
		w.Stop()
		return w, nil
	}
	seen := 0
	err := follow(t.Context(), open, metav1.ListOptions{ResourceVersion: "5"}, func(watch.Event) bool { seen++; return seen < 3 })
	if want := []string{"5", "10", "20"}; err != nil || !slices.Equal(from, want) {
		t.Errorf("watched from %q, %v; want %q", from, err, want)
	}
	gone := func(context.Context, metav1.ListOptions) (watch.Interface, error) {
		w := watch.NewFakeWithChanSize(1, false)
		w.Error(&metav1.Status{Message: "too old"})
		return w, nil
	}
	if err := follow(t.Context(), gone, metav1.ListOptions{}, func(watch.Event) bool { return true }); err == nil || !strings.Contains(err.Error(), "too old") {
		t.Errorf("a watch that cannot be taken up again gives %v", err)
	}
}

func TestTheIdealBinderDoesEachStepOnceAndBindsWhenBothWereSeen(t *testing.T) {
	b := &ideal{work: make(chan func() error, 10), claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{}, begun: map[string]bool{}}
	see := func(what any, want int) {
		t.Helper()
		for range 2 { // a watch may report the same change twice
			switch o := what.(type) {
			case *corev1.PersistentVolume:
				b.seeVolume(t.Context(), o)
			case *corev1.PersistentVolumeClaim:
				b.seeClaim(t.Context(), o)
			}
		}
		if got := len(b.work); got != want {
			t.Errorf("%d steps, want %d: %v", got, want, slices.Sorted(maps.Keys(b.begun)))
		}
	}
	free := volume(kindFree, numbered("volume", 1), "")
	see(volume(kindNoise, numbered("volume", 9), ""), 0)
	see(free, 1) // offered
	see(claim(numbered("claim", 1), ""), 1)
	free.Status.Phase = corev1.VolumeAvailable
	see(free, 2) // bound
	reserved := volume(kindFree, "of-whatever-name", "")
	reserved.Spec.ClaimRef = &corev1.ObjectReference{Name: numbered("claim", 2)}
	see(reserved, 2)
	see(claim(numbered("claim", 2), ""), 3)
	wanted := claim(numbered("claim", 3), dynamicClass)
	see(wanted, 4) // ordered
	metav1.SetMetaDataAnnotation(&wanted.ObjectMeta, provisionerAnnotation, driver)
	see(wanted, 4)
	made := volume(kindFree, "pvc-3", dynamicClass)
	made.Spec.ClaimRef = &corev1.ObjectReference{Name: wanted.Name}
	see(made, 5)
	if want := []string{"bind claim-00001", "bind claim-00002", "bind claim-00003", "offer claim-00001", "order claim-00003"}; !slices.Equal(slices.Sorted(maps.Keys(b.begun)), want) {
		t.Errorf("%v, want %v", slices.Sorted(maps.Keys(b.begun)), want)
	}
}
