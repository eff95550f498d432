package main

import "fmt"

// verdict is one goal, and whether it was reached.
type verdict struct {
	Goal string `json:"goal"`
	// Found is what was measured, as text; empty where it was not.
	Found   string `json:"found,omitempty"`
	Reached bool   `json:"reached"`
}

// The goals.
const (
	overPeer       = 2.5  // times the peer whose rate limits are lifted
	ofCeiling      = 0.85 // of what the API server's writes allow, and of the ideal binder
	preboundP99    = 0.25 // seconds, of claim pairs at 100 a second
	besideReleased = 0.9  // of mode match, with Released volumes about
	withNumber     = 0.9  // of the rate with a fifth of the claims
)

// judge holds Tarn's results to the goals. The goals for a thousand claims and more are
// not asked of fewer: there the first claims' way through an idle binder counts too
// much.
func judge(r report) []verdict {
	var all []verdict
	for _, one := range r.Results {
		if one.Subject != "tarn" {
			continue
		}
		atLeast := func(known bool, want float64, goal string) {
			all = append(all, held(one, known, one.PerSecond >= want, fmt.Sprintf("%.1f/s", one.PerSecond), fmt.Sprintf("%s, %.0f/s", goal, want)))
		}
		switch one.Mode {
		case modeMatch, modeDynamic:
			if one.Claims < 1000 {
				continue
			}
			peer, known := r.find("lifted", one.Mode, one.Claims)
			atLeast(known, overPeer*peer.PerSecond, fmt.Sprintf("at least %g times the peer without rate limits", overPeer))
			writes := writesPerBinding(one.Mode)
			atLeast(r.Ceiling.Best > 0, ofCeiling*r.Ceiling.Best/float64(writes), fmt.Sprintf("at least %g%% of the API server's ceiling for %d writes", 100*ofCeiling, writes))
			ideal, known := r.find("ideal", one.Mode, one.Claims)
			atLeast(known, ofCeiling*ideal.PerSecond, fmt.Sprintf("at least %g%% of the ideal binder", 100*ofCeiling))
			if fewer, known := r.find("tarn", one.Mode, one.Claims/5); known {
				atLeast(true, withNumber*fewer.PerSecond, fmt.Sprintf("no less than %g%% of the rate of %d claims", 100*withNumber, fewer.Claims))
			}
		case modePrebound:
			all = append(all, held(one, true, one.Latency.P99 < preboundP99, fmt.Sprintf("%.3f s", one.Latency.P99), fmt.Sprintf("p99 under %g s", preboundP99)))
		case modeNoise:
			match, known := r.find("tarn", modeMatch, one.Claims)
			atLeast(known, besideReleased*match.PerSecond, fmt.Sprintf("no less than %g%% of mode match", 100*besideReleased))
		}
	}
	return all
}

// held is one result held to one goal. A run that did not end well reaches none.
func held(one result, known, reached bool, found, goal string) verdict {
	v := verdict{Goal: fmt.Sprintf("%s, %d claims: %s", one.Mode, one.Claims, goal)}
	if known {
		v.Found, v.Reached = found, reached && one.Agree
	}
	return v
}

// find gives the result of a run, if it was done and every claim was bound.
func (r report) find(subject, mode string, claims int) (result, bool) {
	for _, one := range r.Results {
		if one.Subject == subject && one.Mode == mode && one.Claims == claims && one.Agree {
			return one, true
		}
	}
	return result{}, false
}
