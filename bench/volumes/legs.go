package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// apart is how much later than another a watch may report an earlier change; both then count as
// simultaneous. A still later report does not tell the time of the change. The kubelet delayed that
// Event, or a watch had ended.
const apart = 20 * time.Millisecond

// places gives the time of each end of a leg in a round. The time is zero where no watch reported
// the end in its place, before the next end that was seen.
func places(r round, first map[string]time.Time) []time.Time {
	at := make([]time.Time, len(way))
	least, next := r.bound, r.ready
	for i, l := range slices.Backward(way) {
		switch l.end {
		case readyEnd:
			at[i] = r.ready
		case boundEnd:
			at[i], least, next = r.bound, r.began, r.bound
		default:
			seen, ok := first[r.id+" "+l.end]
			if !ok || seen.Before(least.Add(-apart)) || seen.After(next.Add(apart)) {
				continue
			}
			at[i] = latest(least, earliest(seen, next))
			next = at[i]
		}
	}
	return at
}

func earliest(x, y time.Time) time.Time {
	if y.Before(x) {
		return y
	}
	return x
}

func latest(x, y time.Time) time.Time {
	if y.After(x) {
		return y
	}
	return x
}

// tally sums up one leg over all rounds.
type tally struct {
	seen   int           // rounds in which its end was seen
	until  time.Duration // from the start to its end, over those rounds
	rounds int           // rounds in which both ends were seen
	took   time.Duration // the leg's time, over those rounds
}

// count sums up all rounds. Where an end was not seen, the time between its neighbours belongs to
// no leg.
func count(rounds []round, first map[string]time.Time) (all []tally, inNone time.Duration) {
	all = make([]tally, len(way))
	for _, r := range rounds {
		before, whole := r.began, true
		for i, at := range places(r, first) {
			if at.IsZero() {
				whole = false
				continue
			}
			t := &all[i]
			t.seen++
			t.until += at.Sub(r.began)
			if whole {
				t.rounds++
				t.took += at.Sub(before)
			} else {
				inNone += at.Sub(before)
			}
			before, whole = at, true
		}
	}
	return all, inNone
}

// legs are the average legs over the rounds in which they were measured, and the average time
// outside all legs, in seconds. sandbox is the runtime's time for a sandbox; 0 where the kubelet
// does not report it.
func legs(rounds []round, first map[string]time.Time, sandbox time.Duration) (all []legTook, inNoLeg float64) {
	tallies, inNone := count(rounds, first)
	for i, l := range way {
		t := tallies[i]
		one := legTook{Whose: l.whose, What: l.what, Seconds: mean(t.took, t.rounds), Rounds: t.rounds, Until: mean(t.until, t.seen), Seen: t.seen, Bound: l.end == boundEnd}
		if l.sandbox {
			all = append(all, split(one, sandbox)...)
			continue
		}
		all = append(all, one)
	}
	return all, inNone.Seconds() / float64(len(rounds))
}

// split separates the runtime's work on a sandbox from the kubelet's loops before it. No object
// reports the end of the loops. It follows from the time of both legs together and that of the
// sandbox.
func split(one legTook, sandbox time.Duration) []legTook {
	loops, work := one, one
	loops.Whose, loops.What = "kubelet", one.What+": the kubelet's loops until its volumes are mounted"
	work.Whose, work.What = "runtime", one.What+": sandbox"
	if sandbox == 0 {
		loops.Whose, loops.What = "kubelet, runtime", loops.What+", and its sandbox"
		return []legTook{loops}
	}
	loops.Until, loops.Seen = nil, one.Rounds
	if one.Seconds != nil {
		part := min(sandbox.Seconds(), *one.Seconds)
		rest, end := *one.Seconds-part, *one.Until-part
		loops.Seconds, loops.Until, work.Seconds = &rest, &end, &part
	}
	return []legTook{loops, work}
}

// mean is in seconds; nil without values.
func mean(sum time.Duration, of int) *float64 {
	if of == 0 {
		return nil
	}
	m := sum.Seconds() / float64(of)
	return &m
}

// printWay prints the legs, and whether their sum is the total.
func printWay(out io.Writer, o *oneByOne) {
	fmt.Fprintf(out, "where the time goes, in ms, on average over so many rounds\n  %8s %6s  %8s %6s  %s\n", "takes", "rounds", "until", "rounds", "whose")
	addUp := true
	for _, l := range o.Legs {
		addUp = addUp && l.Rounds == o.Rounds
		fmt.Fprintf(out, "  %8s %6d  %8s %6d  %-14s %s\n", inMS(l.Seconds), l.Rounds, inMS(l.Until), l.Seen, l.Whose, l.What)
		if l.Bound {
			fmt.Fprintf(out, "  %15s  %8s  = claim: Bound, on average\n", "", inMS(l.Until))
		}
	}
	fmt.Fprintf(out, "  %15s  %8s  = pod with the volume: Ready, on average\n", "", inMS(o.Legs[len(o.Legs)-1].Until))
	if !addUp {
		fmt.Fprintf(out, "  these legs do not add up: not every end was seen in its place in every round, and what lies beside one that was not, %.0f ms a round, is in no leg\n", 1000*o.InNoLeg)
	}
}

func inMS(seconds *float64) string {
	if seconds == nil {
		return "not seen"
	}
	return fmt.Sprintf("%.0f", 1000**seconds)
}
