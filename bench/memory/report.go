package main

import (
	"fmt"
	"slices"
	"time"

	"tarn.dev/tarn/bench/results"
)

// report is the result of one call of the program.
type report struct {
	Began   time.Time       `json:"began"`
	Machine results.Machine `json:"machine"`
	Results []result        `json:"results"`
}

// result is the memory of one process, in bytes.
type result struct {
	What string `json:"what"`
	// Asked is the most it may use.
	Asked int64 `json:"asked"`
	Now   held  `json:"now"`
	Most  held  `json:"most"`
	// Seconds is how long the watched work took; 0 where the process had no work.
	Seconds float64 `json:"seconds,omitempty"`
}

// add prints a result and adds it.
func (r *report) add(one result) {
	one.print()
	r.Results = append(r.Results, one)
}

// within reports whether a process keeps its limit, by each figure that counts only its own memory.
// VmRSS does not count, because it includes the pages of the program.
func (one result) within() bool {
	return max(one.Now.Own, one.Most.Own, one.Now.Set, one.Most.Set) <= one.Asked
}

// verdict is ErrMissed where a process used more than it may.
func (r *report) verdict() error {
	if slices.ContainsFunc(r.Results, func(one result) bool { return !one.within() }) {
		return results.ErrMissed
	}
	return nil
}

// save saves the report beside the earlier ones.
func (r *report) save(folder, kind string) error {
	if len(r.Results) == 0 {
		return nil
	}
	return results.Save(folder, "memory-"+kind, r.Began, r)
}

// print prints each figure of a process's memory beside its limit.
func (one result) print() {
	fmt.Printf("%s (asked: %.0f MiB)\n", one.What, mib(one.Asked))
	verdict := func(bytes int64) string {
		if bytes > one.Asked {
			return "NOT within"
		}
		return "within"
	}
	line := func(name string, now, most int64, means string) {
		fmt.Printf("  %-12s %6.1f MiB now (%s), at most %6.1f (%s): %s\n", name, mib(now), verdict(now), mib(most), verdict(most), means)
	}
	line("RssAnon", one.Now.Own, one.Most.Own, "memory of its own")
	if one.Most.Set > 0 {
		line("working set", one.Now.Set, one.Most.Set, "what the kubelet says of such a container: its cgroup's, less file pages not used again")
	} else {
		fmt.Println("  working set  not known: the process has no cgroup of its own; hack/bench-memory.sh gives it one")
	}
	fmt.Printf("  %-12s %6.1f MiB now, at most %6.1f: with the pages of the binary, which the kernel takes back as it likes; nothing is asked of it\n", "RSS", mib(one.Now.All), mib(one.Most.Peak))
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
