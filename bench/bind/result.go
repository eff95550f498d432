package main

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// result is the result of one run. Times are in seconds.
type result struct {
	Subject string `json:"subject"`
	Mode    string `json:"mode"`
	Claims  int    `json:"claims"`
	// Rate is how many pairs were made per second in mode prebound.
	Rate int `json:"pairsPerSecond,omitempty"`
	// Turn is the number of the turn, from 1.
	Turn  int `json:"turn"`
	Bound int `json:"bound"`
	// Seconds is the time from the first request for a claim until the last was seen Bound.
	// PerSecond is bindings per second of that time.
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"bindsPerSecond"`
	// AfterPerSecond is bindings per second from when the last claim was made and the binder had
	// the API server to itself. It is 0 where nothing was left to bind by then.
	AfterPerSecond float64 `json:"bindsPerSecondOnceMade"`
	Latency        latency `json:"latency"`
	// Processor is seconds of processor time by component.
	Processor map[string]float64 `json:"processorSeconds"`
	// Idle is the part of the processors' time, 0 to 1, in which no program used them.
	Idle float64 `json:"processorsIdle"`
	// Stolen is the part that the host of a virtual machine gave to other machines.
	Stolen float64 `json:"processorsStolen"`
	// Requests are the requests for one binding, except those of this program, by verb and
	// resource. Writes are those that change claims and volumes.
	Requests  map[string]float64 `json:"requestsPerBind"`
	Writes    float64            `json:"writesPerBind"`
	Conflicts int                `json:"conflicts"`
	// Gets are the API server's own reads of single claims and volumes in etcd for one binding.
	Gets float64 `json:"etcdGetsPerBind"`
	// Agree says that every claim and every volume name each other.
	Agree bool `json:"agree"`
}

// latency is the time of a claim from its request until it was seen Bound.
type latency struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// fill computes times and rates. made is the time when the last claim was made.
func (r *result) fill(seen *claims, made time.Time) {
	asked, bound := seen.times()
	r.Bound = len(bound)
	if r.Bound == 0 {
		return
	}
	var waits []time.Duration
	var first, last time.Time
	after := 0
	for name, at := range bound {
		waits = append(waits, at.Sub(asked[name]))
		if first.IsZero() || asked[name].Before(first) {
			first = asked[name]
		}
		if at.After(last) {
			last = at
		}
		if at.After(made) {
			after++
		}
	}
	r.Seconds = last.Sub(first).Seconds()
	r.PerSecond = float64(r.Bound) / r.Seconds
	if after > 0 {
		r.AfterPerSecond = float64(after) / last.Sub(made).Seconds()
	}
	slices.Sort(waits)
	r.Latency = latency{P50: at(waits, 50), P90: at(waits, 90), P99: at(waits, 99), Max: waits[len(waits)-1].Seconds()}
}

// at is the given percentile of sorted times, in seconds: the least that at least so many percent
// of the times do not exceed.
func at(sorted []time.Duration, percent int) float64 {
	return sorted[(len(sorted)*percent+99)/100-1].Seconds()
}

// spent takes the difference of two usages, without the requests of this program.
func (r *result) spent(before, after usage, process string) {
	r.Processor = map[string]float64{}
	for component := range after.seconds {
		r.Processor[component] = after.seconds[component] - before.seconds[component]
	}
	r.Processor["binder"] = r.Processor[process]
	delete(r.Processor, process)
	if all := after.machine.all - before.machine.all; all > 0 {
		r.Idle = (after.machine.idle - before.machine.idle) / all
		r.Stolen = (after.machine.stolen - before.machine.stolen) / all
	}
	r.Requests = map[string]float64{}
	own := ownWrites(r.Mode)
	for _, name := range slices.Sorted(maps.Keys(after.requests)) {
		n := after.requests[name] - before.requests[name] - own[name]*r.Claims
		if n == 0 {
			continue
		}
		r.Requests[name] = float64(n) / float64(r.Claims)
		switch {
		case isWrite(name):
			r.Writes += r.Requests[name]
		case strings.HasPrefix(name, etcdGet) && name != etcdGet+"events":
			r.Gets += r.Requests[name]
		}
	}
	r.Conflicts = after.conflict - before.conflict
}

// isWrite reports whether a request changes claims or volumes.
func isWrite(name string) bool {
	verb, resource, _ := strings.Cut(name, " ")
	return resource != "events" && slices.Contains([]string{"POST", "PUT", "PATCH", "APPLY", "DELETE"}, verb)
}
