// Command protect measures the deletion of a thousand claims of one namespace at once, beside fifty
// pods that use as many more. It measures how long it takes until they are gone, and how often the
// pods are listed for it. It compares Tarn's protection with Kubernetes' own, with default flags
// and with lifted rate limits. Each run has a fresh cluster of this machine. It uses only
// tarn-cluster's command line and the API.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"text/tabwriter"
	"time"

	"tarn.dev/tarn/bench/results"
)

// The goals for Tarn with a thousand claims and fifty pods.
const (
	mostLists   = 20
	mostSeconds = 20
)

// subject is a protection controller to measure.
type subject struct {
	name string
	// up are the arguments of tarn-cluster that select this controller.
	up []string
}

var subjects = []subject{
	{name: "tarn", up: []string{"--protection=tarn"}},
	{name: "lifted", up: []string{"--protection=kubernetes",
		"--kube-controller-manager-arg=--kube-api-qps=5000", "--kube-controller-manager-arg=--kube-api-burst=10000"}},
	{name: "default", up: []string{"--protection=kubernetes"}},
}

// report is the result of one call of the program.
type report struct {
	Began   time.Time       `json:"began"`
	Machine results.Machine `json:"machine"`
	Results []result        `json:"results"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	program := flag.String("cluster", "bin/tarn-cluster", "the program tarn-cluster")
	only := flag.String("subjects", "tarn,lifted,default", "who protects: default and lifted are kube-controller-manager, with its default flags and without rate limits")
	claims := flag.Int("n", 1000, "how many claims are deleted that no pod uses")
	pods := flag.Int("pods", 50, "how many pods run, each with a claim of its own that is deleted too")
	folder := flag.String("results", "bench/results", "directory for the results; empty for none")
	flag.Parse()
	if err := run(ctx, *program, strings.Split(*only, ","), *claims, *pods, *folder); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program string, only []string, claims, pods int, folder string) error {
	r := report{Began: time.Now().UTC().Truncate(time.Second), Machine: results.ThisMachine(ctx, program, "")}
	var failed []error
	for _, name := range only {
		one, err := named(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s  %d claims, protected by %s\n", time.Now().Format(time.TimeOnly), claims, name)
		found, err := measure(ctx, program, one, claims, pods)
		if err != nil { // a run that fails does not affect the others
			failed = append(failed, fmt.Errorf("%s: %w", name, err))
			continue
		}
		r.Results = append(r.Results, found)
	}
	if missed := r.print(); missed {
		failed = append(failed, results.ErrMissed)
	}
	return errors.Join(append(failed, r.save(folder))...)
}

func named(name string) (subject, error) {
	for _, s := range subjects {
		if s.name == name {
			return s, nil
		}
	}
	return subject{}, fmt.Errorf("subject %q: use any of tarn, lifted, default", name)
}

// print prints a report, and returns whether a goal is missed.
func (r report) print() (missed bool) {
	fmt.Printf("%d processors, load before %s; %s; %s\n\n", r.Machine.Processors, r.Machine.Load, r.Machine.Kubernetes, r.Machine.Tarn)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PROTECTED BY\tCLAIMS\tPODS\tASKED FOR IN\tGONE AFTER\tLISTS OF PODS\tREST GONE AFTER ITS PODS IN\tLISTS")
	for _, one := range r.Results {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.1f s\t%.1f s\t%d\t%.1f s\t%d\n", one.Subject, one.Claims, one.Pods, one.Asked, one.Seconds, one.Lists, one.UsedSeconds, one.UsedLists)
	}
	_ = w.Flush() // as with the prints: there is no reader any more
	for _, one := range r.Results {
		if one.Subject != "tarn" || one.Claims != 1000 || one.Pods != 50 {
			continue
		}
		verdict := "reached"
		if one.Lists > mostLists || one.Seconds > mostSeconds {
			verdict, missed = "NOT REACHED", true
		}
		fmt.Printf("\n%s: at most %d lists of pods and %d s\n", verdict, mostLists, mostSeconds)
	}
	return missed
}

// save saves a report beside the earlier ones.
func (r report) save(folder string) error {
	if len(r.Results) == 0 {
		return nil
	}
	return results.Save(folder, "protect", r.Began, r)
}
