package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// roundA is a round of oneWay, with its ends the given milliseconds apart.
func roundA(began time.Time) round {
	return round{id: "a", began: began, bound: began.Add(750 * time.Millisecond), ready: began.Add(1900 * time.Millisecond)}
}

var tookA = map[string]time.Duration{
	"asked": 20, "creation": 30, "creation scheduled": 10, "creation Pulled": 340, "creation Started": 50, "creation result": 150, "volume": 100, "bound": 50,
	"user scheduled": 70, "user taken on": 20, "stage": 160, "staging": 50, "staging Pulled": 250, "staging Started": 100, "staged": 50, "user Pulled": 250, "user Started": 100, "ready": 100,
}

// legOf is the index of the leg with the given end.
func legOf(end string) int {
	return slices.IndexFunc(way, func(l leg) bool { return l.end == end })
}

func TestTheLegsOfAWayAddUpToWhatWasMeasured(t *testing.T) {
	began := time.Now()
	r := roundA(began)
	all, inNone := count([]round{r}, oneWay(began).firsts())
	var sum time.Duration
	for i, l := range way {
		sum += all[i].took
		if all[i].took != tookA[l.end]*time.Millisecond || all[i].seen != 1 || all[i].rounds != 1 || all[i].until != sum {
			t.Errorf("of %q is known %+v, want %d ms, and %s until then", l.end, all[i], tookA[l.end], sum)
		}
		if l.end == boundEnd && sum != r.bound.Sub(began) {
			t.Errorf("until the claim is Bound they add up to %s", sum)
		}
	}
	if sum != r.ready.Sub(began) || inNone != 0 {
		t.Errorf("they add up to %s, and %s are in none", sum, inNone)
	}
}

func TestAnEndNobodySawInItsPlaceMakesNoLegShorterOrLonger(t *testing.T) {
	began := time.Now()
	for i, l := range way {
		if l.end == boundEnd || l.end == readyEnd {
			continue // measured, not seen
		}
		for _, at := range []int{-1, -100, 5000} { // never, before the start, after the end
			first := oneWay(began).firsts()
			delete(first, "a "+l.end)
			if at != -1 {
				first["a "+l.end] = began.Add(time.Duration(at) * time.Millisecond)
			}
			all, inNone := count([]round{roundA(began)}, first)
			for j, other := range way {
				want := tally{seen: 1, until: all[j].until, rounds: 1, took: tookA[other.end] * time.Millisecond}
				switch j {
				case i:
					want = tally{}
				case i + 1:
					want.rounds, want.took = 0, 0
				}
				if all[j] != want {
					t.Errorf("with %q seen at %d ms, of %q is known %+v, want %+v", l.end, at, other.end, all[j], want)
				}
			}
			if want := (tookA[l.end] + tookA[way[i+1].end]) * time.Millisecond; inNone != want {
				t.Errorf("with %q seen at %d ms, %s are in no leg, want %s", l.end, at, inNone, want)
			}
		}
	}
}

func TestWhatIsToldALittleLateCountsAsToldWithWhatCameAfter(t *testing.T) {
	began := time.Now()
	for late, want := range map[time.Duration]tally{
		apart:                    {seen: 1, until: 1450 * time.Millisecond, rounds: 1, took: 150 * time.Millisecond},
		apart + time.Millisecond: {},
	} {
		first := oneWay(began).firsts()
		first["a staging "+started] = first["a staged"].Add(late)
		all, _ := count([]round{roundA(began)}, first)
		if got := all[legOf("staging "+started)]; got != want {
			t.Errorf("of a start told %s late is known %+v, want %+v", late, got, want)
		}
		first = oneWay(began).firsts()
		first["a user scheduled"] = began.Add(750*time.Millisecond - late)
		all, _ = count([]round{roundA(began)}, first)
		if got := all[legOf("user scheduled")]; got.seen != want.seen || got.took != 0 {
			t.Errorf("of a pod scheduled %s before its claim was Bound is known %+v", late, got)
		}
	}
}

// In one run, all Events came a second late. The legs before them then seemed to last until Bound
// or Ready.
func TestEventsThatTheKubeletKeptBackTakeNothingFromWhatCameBeforeThem(t *testing.T) {
	began := time.Now()
	first := oneWay(began).firsts()
	for key, at := range first {
		if strings.HasSuffix(key, pulled) || strings.HasSuffix(key, started) {
			first[key] = at.Add(time.Second)
		}
	}
	all, _ := count([]round{roundA(began)}, first)
	for i, l := range way {
		event := strings.HasSuffix(l.end, pulled) || strings.HasSuffix(l.end, started)
		if (all[i].seen == 0) != event {
			t.Errorf("the end of %q was seen in %d rounds", l.end, all[i].seen)
		}
	}
	for _, end := range []string{"volume", boundEnd, "user taken on", "stage"} {
		if got := all[legOf(end)]; got.rounds != 1 || got.took != tookA[end]*time.Millisecond {
			t.Errorf("of %q is known %+v, want %d ms", end, got, tookA[end])
		}
	}
}

// someSaw are three similar rounds. In one, no watch saw the creation pod start; in none was the
// user pod's start seen.
func someSaw(began time.Time) ([]round, map[string]time.Time) {
	first := oneWay(began).firsts()
	delete(first, "a user "+started)
	rounds := []round{roundA(began)}
	for i, id := range []string{"b", "c"} {
		longer := time.Duration(i+1) * 60 * time.Millisecond
		r := roundA(began)
		r.id, r.ready = id, r.ready.Add(longer)
		rounds = append(rounds, r)
		for key, at := range maps.Clone(first) {
			if end, ok := strings.CutPrefix(key, "a "); ok {
				first[id+" "+end] = at
			}
		}
		first[id+" creation "+started] = first["a creation "+started].Add(longer)
	}
	delete(first, "a creation "+started)
	return rounds, first
}

func TestALegIsTheAverageOfTheRoundsThatSawBothItsEnds(t *testing.T) {
	rounds, first := someSaw(time.Now())
	all, inNoLeg := legs(rounds, first, 40*time.Millisecond)
	want := []struct {
		what         string
		ms           float64 // -1 of none
		rounds, seen int
	}{
		{what: "creation pod: container made and started", ms: 140, rounds: 2, seen: 2},
		{what: "creation pod: runs, ends, result stored", ms: 60, rounds: 2, seen: 3},
		{what: "creation pod: sandbox", ms: 40, rounds: 3, seen: 3},
		{what: "creation pod: the kubelet's loops until its volumes are mounted", ms: 300, rounds: 3, seen: 3},
		{what: "pod: container made and started", ms: -1, rounds: 0, seen: 0},
		{what: "pod Ready", ms: -1, rounds: 0, seen: 3},
	}
	for _, w := range want {
		at := slices.IndexFunc(all, func(l legTook) bool { return l.What == w.what })
		if at < 0 {
			t.Fatalf("there is no leg %q", w.what)
		}
		got := all[at]
		if got.Rounds != w.rounds || got.Seen != w.seen || (got.Seconds == nil) != (w.ms < 0) || got.Seconds != nil && math.Abs(1000**got.Seconds-w.ms) > 1e-6 {
			t.Errorf("of %q is told %s ms of %d rounds, its end seen in %d, want %+v", w.what, inMS(got.Seconds), got.Rounds, got.Seen, w)
		}
	}
	sum := inNoLeg
	for _, l := range all {
		if l.Seconds != nil {
			sum += *l.Seconds * float64(l.Rounds) / float64(len(rounds))
		}
	}
	if math.Abs(sum-1.96) > 1e-6 {
		t.Errorf("each leg as often as it was measured, and %v s in none, are %v s, want 1.96", inNoLeg, sum)
	}
}

func TestWhereNotAllEndsWereSeenTheReportSaysSoAndThatTheLegsDoNotAddUp(t *testing.T) {
	rounds, first := someSaw(time.Now())
	o := &oneByOne{Rounds: len(rounds)}
	o.Legs, o.InNoLeg = legs(rounds, first, 40*time.Millisecond)
	var out bytes.Buffer
	printWay(&out, o)
	for _, want := range []string{
		"  not seen      0  not seen      0  runtime        pod: container made and started\n",
		"  not seen      0      1960      3  kubelet        pod Ready\n",
		"       140      2       540      2  runtime        creation pod: container made and started\n",
		"750  = claim: Bound", "1960  = pod with the volume: Ready",
		"do not add up", "327 ms a round, is in no leg",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
}

func TestWhereAllEndsWereSeenNothingIsSaidOfLegsThatDoNotAddUp(t *testing.T) {
	began := time.Now()
	o := &oneByOne{Rounds: 1}
	o.Legs, o.InNoLeg = legs([]round{roundA(began)}, oneWay(began).firsts(), 40*time.Millisecond)
	var out bytes.Buffer
	printWay(&out, o)
	if strings.Contains(out.String(), "add up") || strings.Contains(out.String(), "not seen") {
		t.Errorf("it says:\n%s", out.String())
	}
	var sum float64
	for _, l := range o.Legs {
		sum += *l.Seconds
		if math.Abs(*l.Until-sum) > 1e-6 {
			t.Errorf("until the end of %q it took %v s, the legs add up to %v", l.What, *l.Until, sum)
		}
		if l.Whose == "" || l.What == "" {
			t.Errorf("a leg is nobody's: %+v", l)
		}
	}
}

func TestASandboxOfWhichTheKubeletSaysNothingIsNotSaidToTakeNothing(t *testing.T) {
	began := time.Now()
	all, _ := legs([]round{roundA(began)}, oneWay(began).firsts(), 0)
	if len(all) != len(way) {
		t.Errorf("of %d legs are made %d", len(way), len(all))
	}
	if got := all[legOf("creation "+pulled)]; got.Until == nil || !strings.HasSuffix(got.What, "and its sandbox") || math.Abs(*got.Seconds-0.34) > 1e-6 {
		t.Errorf("of loops and sandbox is told %q, %s ms", got.What, inMS(got.Seconds))
	}
}

func TestOfLoopsWhoseBeginningNobodySawTheEndIsNotKnownEither(t *testing.T) {
	began := time.Now()
	first := oneWay(began).firsts()
	delete(first, "a creation scheduled")
	all, _ := legs([]round{roundA(began)}, first, 40*time.Millisecond)
	at := legOf("creation " + pulled)
	if loops := all[at]; loops.Seconds != nil || loops.Until != nil || loops.Seen != 0 {
		t.Errorf("of the loops is told %s ms, until %s, their end seen in %d rounds", inMS(loops.Seconds), inMS(loops.Until), loops.Seen)
	}
	if sandbox := all[at+1]; sandbox.Seconds != nil || inMS(sandbox.Until) != "400" || sandbox.Seen != 1 {
		t.Errorf("of the sandbox is told %s ms, until %s, its end seen in %d rounds", inMS(sandbox.Seconds), inMS(sandbox.Until), sandbox.Seen)
	}
}

func TestInHowManyRoundsALegWasSeenIsKept(t *testing.T) {
	rounds, first := someSaw(time.Now())
	o := &oneByOne{Rounds: len(rounds)}
	o.Legs, o.InNoLeg = legs(rounds, first, 40*time.Millisecond)
	report, folder := report{OneByOne: o}, t.TempDir()
	if err := report.save(folder); err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(filepath.Join(folder, "volumes-*.json"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept are %v (%v)", kept, err)
	}
	text, err := os.ReadFile(kept[0])
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		OneByOne struct {
			InNoLeg float64
			Legs    []map[string]any
		}
	}
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	if len(read.OneByOne.Legs) != len(o.Legs) || math.Abs(read.OneByOne.InNoLeg-0.98/3) > 1e-6 {
		t.Fatalf("of %d legs are kept %d, and %v s in none", len(o.Legs), len(read.OneByOne.Legs), read.OneByOne.InNoLeg)
	}
	for i, l := range read.OneByOne.Legs {
		seconds, told := l["seconds"]
		if l["seen"] != float64(o.Legs[i].Seen) || l["rounds"] != float64(o.Legs[i].Rounds) || !told || (seconds == nil) != (o.Legs[i].Seconds == nil) {
			t.Errorf("of %+v is kept %v", o.Legs[i], l)
		}
	}
}
