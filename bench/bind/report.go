package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"tarn.dev/tarn/bench/results"
)

// report is the result of one call of the program.
type report struct {
	Began    time.Time       `json:"began"`
	Machine  results.Machine `json:"machine"`
	Ceilings []ceiling       `json:"ceilings"`
	Results  []result        `json:"results"`
	Verdicts []verdict       `json:"verdicts"`
}

// measured is the result of one run, of either kind.
type measured struct {
	ceiling  ceiling
	bindings *result
}

// take adds the result of a run.
func (r *report) take(found measured) {
	if found.bindings != nil {
		r.Results = append(r.Results, *found.bindings)
	} else if len(found.ceiling.Levels) > 0 {
		r.Ceilings = append(r.Ceilings, found.ceiling)
	}
}

// sort orders the results so that comparable ones stand together.
func (r *report) sort() {
	place := func(one result) int {
		return slices.IndexFunc(subjects, func(s subject) bool { return s.name == one.Subject })
	}
	slices.SortFunc(r.Results, func(a, b result) int {
		return cmp.Or(cmp.Compare(slices.Index(modeNames(), a.Mode), slices.Index(modeNames(), b.Mode)),
			cmp.Compare(a.Claims, b.Claims), cmp.Compare(place(a), place(b)), cmp.Compare(a.Turn, b.Turn))
	})
}

// print prints a report as tables.
func (r report) print(out io.Writer) {
	m := r.Machine
	fmt.Fprintf(out, "%s\n%d processors (%s), %s memory, Linux %s, load before %s\n%s; %s; %s\n\n",
		r.Began.Format(time.RFC3339), m.Processors, m.Processor, m.Memory, m.Kernel, m.Load, m.Kubernetes, m.Tarn, m.Go)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, ceiling := range r.Ceilings {
		fmt.Fprintf(w, "CEILING %d\tat once\tpairs\twrites/s\tAPI server s/1000\tetcd s/1000\n", ceiling.Turn)
		for _, l := range ceiling.Levels {
			fmt.Fprintf(w, "\t%d\t%d\t%.0f\t%.2f\t%.2f\n", l.Concurrency, l.Pairs, l.PerSecond, l.APIServer, l.Etcd)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w, "MODE\tCLAIMS\tBINDER\tTURN\tBINDS/S\tONCE MADE/S\tP50\tP90\tP99\tMAX\tWRITES/BIND\t409\tGETS/BIND\tCPU binder\tapiserver\tetcd\tIDLE\tAGREE")
	for _, one := range r.Results {
		agree := "yes"
		if !one.Agree {
			agree = fmt.Sprintf("NO, %d bound", one.Bound)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%.1f\t%.1f\t%.3f\t%.3f\t%.3f\t%.3f\t%.2f\t%d\t%.2f\t%.2f s\t%.2f s\t%.2f s\t%.0f%%\t%s\n",
			one.Mode, one.Claims, one.Subject, one.Turn, one.PerSecond, one.AfterPerSecond, one.Latency.P50, one.Latency.P90, one.Latency.P99, one.Latency.Max,
			one.Writes, one.Conflicts, one.Gets, one.Processor["binder"], one.Processor[apiServer], one.Processor[etcd], 100*one.Idle, agree)
	}
	_ = w.Flush() // as with the prints: there is no reader any more
	fmt.Fprintln(out)
	for _, v := range r.Verdicts {
		switch {
		case v.Found == "":
			fmt.Fprintf(out, "not measured  %s\n", v.Goal)
		case v.Reached:
			fmt.Fprintf(out, "reached       %s: %s\n", v.Goal, v.Found)
		default:
			fmt.Fprintf(out, "NOT REACHED   %s: %s\n", v.Goal, v.Found)
		}
	}
}

// save saves a report beside the earlier ones.
func (r report) save(folder string) error {
	return results.Save(folder, "bind", r.Began, r)
}
