package main

import (
	"fmt"
	"slices"
	"time"

	"tarn.dev/tarn/bench/results"
)

// The goals for Tarn: the p50 of one claim and pod at a time, in seconds, and how many pods made at
// once become Ready per second.
const (
	askedBound = 0.9
	askedReady = 1.8
	askedBatch = 20
	askedRate  = 1.2
)

// report is the result of one call of the program. All times are in seconds.
type report struct {
	Began    time.Time       `json:"began"`
	Machine  results.Machine `json:"machine"`
	OneByOne *oneByOne       `json:"oneByOne,omitempty"`
	AtOnce   *atOnce         `json:"atOnce,omitempty"`
	Verdicts []verdict       `json:"verdicts"`
}

// oneByOne is how long one claim and pod take, beside a pod without a volume.
type oneByOne struct {
	Rounds int    `json:"rounds"`
	Bare   spread `json:"podWithoutVolumeReady"`
	Bound  spread `json:"claimBound"`
	Ready  spread `json:"podReady"`
	// Legs are the parts of the time until Ready, on average, in order. One of them ends when the
	// claim is Bound.
	Legs []legTook `json:"legs"`
	// InNoLeg is the average time of a round next to an end that was not seen. The legs, each
	// weighted by its rounds, and InNoLeg add up to the time until Ready.
	InNoLeg float64 `json:"inNoLeg"`
}

// legTook is one leg of the way.
type legTook struct {
	Whose string `json:"whose"`
	What  string `json:"what"`
	// Seconds is the average over the rounds in which both ends were seen; Rounds is their number.
	// It is null without such rounds.
	Seconds *float64 `json:"seconds"`
	Rounds  int      `json:"rounds"`
	// Until is the time from the start to the end of the leg. It is the average over the rounds in
	// which the end was seen; Seen is their number. It is null without such rounds.
	Until *float64 `json:"until"`
	Seen  int      `json:"seen"`
	Bound bool     `json:"bound,omitempty"`
}

// atOnce is how long many take that are made together.
type atOnce struct {
	Claims int     `json:"claims"`
	Window int     `json:"window"`
	Rate   float64 `json:"perSecond"`
	Ready  spread  `json:"podReady"`
}

type spread struct {
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	Max float64 `json:"max"`
}

// verdict is a figure and its goal.
type verdict struct {
	What    string  `json:"what"`
	Is      float64 `json:"is"`
	Asked   float64 `json:"asked"`
	Reached bool    `json:"reached"`
}

// judge compares a figure with the most that it may be, and prints it.
func (r *report) judge(what string, is, asked float64) {
	v := verdict{what, is, asked, is <= asked}
	r.Verdicts = append(r.Verdicts, v)
	word := "reached"
	if !v.Reached {
		word = "NOT REACHED"
	}
	fmt.Printf("  %s: %s, %.2f of at most %.2f s\n", word, what, is, asked)
}

// save saves the report beside the earlier ones.
func (r *report) save(folder string) error {
	if r.OneByOne == nil && r.AtOnce == nil {
		return nil
	}
	return results.Save(folder, "volumes", r.Began, r)
}

func print3(what string, times []time.Duration) spread {
	slices.Sort(times)
	s := spread{times[0].Seconds(), times[len(times)/2].Seconds(), times[len(times)-1].Seconds()}
	fmt.Printf("  %-28s min %.2f s  p50 %.2f s  max %.2f s\n", what, s.Min, s.P50, s.Max)
	return s
}
