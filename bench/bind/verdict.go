package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// verdict is one goal, and whether it was reached.
type verdict struct {
	Goal string `json:"goal"`
	// Found is the measured value as text; "" where there is none.
	Found   string `json:"found,omitempty"`
	Reached bool   `json:"reached"`
}

// The goals.
const (
	overPeer       = 2.5  // times the peer whose rate limits are lifted
	ofCeiling      = 0.85 // of what the API server's writes allow, and of the ideal binder
	preboundP99    = 0.25 // seconds, for pairs at preboundRate
	preboundRate   = 100  // pairs per second
	besideReleased = 0.9  // of mode match, beside Released volumes
	withNumber     = 0.9  // of the rate with a fifth of the claims
)

// judge compares Tarn's results with the goals. Rates are compared within each turn, because the
// machine's speed differs between turns; the median of the turns counts. The goals for a thousand
// claims and more do not apply to fewer. There, the first claims' way through an idle binder counts
// too much.
func judge(r report) []verdict {
	var all []verdict
	turns := r.turns()
	for i, one := range r.Results {
		if one.Subject != "tarn" || slices.ContainsFunc(r.Results[:i], one.sameKind) {
			continue
		}
		runs := r.runs(one.Subject, one.Mode, one.Claims)
		than := func(subject, mode string, claims int) map[int]float64 { return rates(r.runs(subject, mode, claims)) }
		atLeast := func(want float64, goal string, others map[int]float64) {
			all = append(all, compared(runs, others, turns, want, goal))
		}
		switch one.Mode {
		case modeMatch, modeDynamic:
			if one.Claims < 1000 {
				continue
			}
			peer := than("lifted", one.Mode, one.Claims)
			v := compared(runs, peer, turns, overPeer, fmt.Sprintf("at least %g times the peer without rate limits", overPeer))
			if _, ideal := paired(agreeing(r.runs("ideal", one.Mode, one.Claims)), peer); v.Found != "" && len(ideal) > 0 {
				v.Found += "; the ideal binder is " + inTurns(ideal, turns, times)
			}
			all = append(all, v)
			writes := writesPerBinding(one.Mode)
			atLeast(ofCeiling, fmt.Sprintf("at least %g%% of the API server's ceiling for %d writes", 100*ofCeiling, writes), r.ceilings(one.Claims, writes))
			atLeast(ofCeiling, fmt.Sprintf("at least %g%% of the ideal binder", 100*ofCeiling), than("ideal", one.Mode, one.Claims))
			if fewer := than("tarn", one.Mode, one.Claims/5); len(fewer) > 0 {
				atLeast(withNumber, fmt.Sprintf("no less than %g%% of the rate of %d claims", 100*withNumber, one.Claims/5), fewer)
			}
		case modePrebound:
			all = append(all, r.soon(runs, turns))
		case modeNoise:
			atLeast(besideReleased, fmt.Sprintf("no less than %g%% of mode match", 100*besideReleased), than("tarn", modeMatch, one.Claims))
		}
	}
	return all
}

// compared compares some runs' rates with others' by turn, and with the wanted ratio. A run that
// failed reaches no goal. Neither do runs where a turn lacks its counterpart.
func compared(runs []result, others map[int]float64, turns int, want float64, goal string) verdict {
	v := verdict{Goal: fmt.Sprintf("%s, %d claims: %s", runs[0].Mode, runs[0].Claims, goal)}
	own, found := paired(runs, others)
	if len(found) == 0 {
		return v
	}
	show := percent
	if want > 1 {
		show = times
	}
	v.Found = fmt.Sprintf("%.1f/s, %s", median(own), inTurns(found, turns, show))
	v.Reached = median(found) >= want && len(found) == turns && allAgree(runs)
	return v
}

// paired gives the rates of some runs and their ratios to others' rates, for the turns with both.
func paired(runs []result, others map[int]float64) (own, ratios []float64) {
	for _, one := range runs {
		if other := others[one.Turn]; other > 0 {
			own, ratios = append(own, one.PerSecond), append(ratios, one.PerSecond/other)
		}
	}
	return own, ratios
}

// percent and times format a ratio, truncated and not rounded. A ratio below a goal must not look
// as if it reached the goal.
func percent(ratio float64) string { return fmt.Sprintf("%.1f%%", math.Floor(1000*ratio)/10) }
func times(ratio float64) string   { return fmt.Sprintf("%.2f times", math.Floor(100*ratio)/100) }

// soon compares the p99 of some runs with the goal, and names the rate, because -rate may be lower
// on slow machines. Two figures beside it show the cause of a miss. They are the p99 of the ideal
// binder in the same turns, and how many pairs per second the API server's ceiling allows.
func (r report) soon(runs []result, turns int) verdict {
	mode, claims := runs[0].Mode, runs[0].Claims
	v := verdict{Goal: fmt.Sprintf("%s at %d/s, %d claims: p99 under %g s", mode, runs[0].Rate, claims, preboundP99)}
	own := waits(runs)
	if len(own) == 0 {
		v.Found = "no run ended well"
		return v
	}
	v.Found = inTurns(inOrder(own), turns, seconds)
	for _, beside := range []struct {
		what   string
		byTurn map[int]float64
		show   func(float64) string
	}{
		{"the ideal binder has ", waits(r.runs("ideal", mode, claims)), seconds},
		{"the API server's ceiling is ", r.ceilings(claims, writesPerBinding(mode)), perSecond},
	} {
		maps.DeleteFunc(beside.byTurn, func(turn int, _ float64) bool { _, ended := own[turn]; return !ended })
		if len(beside.byTurn) > 0 {
			v.Found += "; " + beside.what + inTurns(inOrder(beside.byTurn), turns, beside.show)
		}
	}
	v.Reached = median(inOrder(own)) < preboundP99 && len(own) == turns
	return v
}

// waits are the p99 by turn, in seconds, of the runs that ended well.
func waits(runs []result) map[int]float64 {
	found := map[int]float64{}
	for _, one := range agreeing(runs) {
		found[one.Turn] = one.Latency.P99
	}
	return found
}

// inOrder are the values by turn, the first turn's first.
func inOrder(byTurn map[int]float64) []float64 {
	var all []float64
	for _, turn := range slices.Sorted(maps.Keys(byTurn)) {
		all = append(all, byTurn[turn])
	}
	return all
}

// seconds formats a time, and perSecond a rate, truncated as in percent.
func seconds(s float64) string   { return fmt.Sprintf("%.3f s", s) }
func perSecond(n float64) string { return fmt.Sprintf("%.0f/s", math.Floor(n)) }

// inTurns formats the median of the values with the values themselves. It says so where turns are
// missing.
func inTurns(found []float64, turns int, show func(float64) string) string {
	text := show(median(found))
	if len(found) > 1 {
		var each []string
		for _, one := range found {
			each = append(each, show(one))
		}
		text += " in the median of " + strings.Join(each, ", ")
	}
	if len(found) < turns {
		text += fmt.Sprintf(", in %d of %d turns", len(found), turns)
	}
	return text
}

// median is the middle value; for an even number, the mean of the two middle values.
func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func allAgree(runs []result) bool { return len(agreeing(runs)) == len(runs) }

// agreeing are the runs that ended well.
func agreeing(runs []result) []result {
	return slices.DeleteFunc(slices.Clone(runs), func(one result) bool { return !one.Agree })
}

// turns is how often everything was measured.
func (r report) turns() int {
	last := 0
	for _, one := range r.Results {
		last = max(last, one.Turn)
	}
	return last
}

// sameKind reports whether two runs have the same binder, mode and size.
func (r result) sameKind(other result) bool {
	return r.Subject == other.Subject && r.Mode == other.Mode && r.Claims == other.Claims
}

// runs are those of a binder, mode and size, one for each turn that has one.
func (r report) runs(subject, mode string, claims int) []result {
	var found []result
	for _, one := range r.Results {
		if one.sameKind(result{Subject: subject, Mode: mode, Claims: claims}) {
			found = append(found, one)
		}
	}
	return found
}

// rates are bindings per second by turn, of the runs that ended well.
func rates(runs []result) map[int]float64 {
	found := map[int]float64{}
	for _, one := range agreeing(runs) {
		found[one.Turn] = one.PerSecond
	}
	return found
}

// ceilings are, by turn, the most bindings per second that the API server allows for some claims,
// with so many writes each.
func (r report) ceilings(claims, writes int) map[int]float64 {
	found := map[int]float64{}
	for _, one := range r.Ceilings {
		found[one.Turn] = one.of(claims) / float64(writes)
	}
	return found
}
