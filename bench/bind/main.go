// Command bind measures how fast claims are bound to volumes. It measures Tarn, and
// kube-controller-manager with its default flags and with its rate limits lifted. Each run has a
// fresh cluster of this machine. It uses only tarn-cluster's command line and the API, and must not
// know how either binder works.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tarn.dev/tarn/bench/results"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// settings are the command line's settings.
type settings struct {
	program    string // tarn-cluster
	tarn       string // the binary of Tarn; empty for the one beside tarn-cluster
	subjects   []string
	modes      []string
	sizes      []int
	slowSizes  []int // for the default flags, with which a thousand claims take minutes
	noise      int   // Released volumes that exist beside the others
	rate       int   // pairs per second of mode prebound
	turns      int   // how often everything is measured, except subject default
	results    string
	profiles   string
	ceilingFor int // pairs bound at each concurrency of mode ceiling; at the best, as many as there are claims
}

func read(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("bind", flag.ContinueOnError)
	flags.StringVar(&s.program, "cluster", "bin/tarn-cluster", "the program tarn-cluster")
	flags.StringVar(&s.tarn, "tarn", "", "the program tarn (default: beside tarn-cluster)")
	subjects := flags.String("subjects", "default,lifted,ideal,tarn", "who binds: default and lifted are kube-controller-manager, with its default flags and without rate limits; ideal is this program, which has nothing to find out")
	modes := flags.String("modes", strings.Join(modeNames(), ","), "what is measured")
	sizes := flags.String("n", "300,1000", "how many claims a run has")
	slow := flags.String("slow-n", "300", "the same for subject default")
	whole := flags.Bool("whole", false, "300, 1000 and 5000 claims for everybody; takes an hour, more than half of it for subject default")
	flags.IntVar(&s.noise, "noise", 3000, "how many Released volumes lie about in mode noise")
	flags.IntVar(&s.rate, "rate", preboundRate, "pairs made a second in mode prebound")
	flags.IntVar(&s.turns, "turns", 1, "how often all is measured but subject default; the goals are held against the medians, as a machine may be faster at one time than at another")
	flags.IntVar(&s.ceilingFor, "ceiling-pairs", 1000, "pairs bound at each concurrency of mode ceiling, of which the best is measured again for each larger -n: of as few as 400 128 at once are a burst of a second, which says little")
	flags.StringVar(&s.results, "results", "bench/results", "directory for the results; empty for none")
	flags.StringVar(&s.profiles, "profiles", "", "directory for CPU profiles of Tarn's controller and of the API server, taken in each run of the first turn that binds; they cost a little speed")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	s.subjects, s.modes = strings.Split(*subjects, ","), strings.Split(*modes, ",")
	if *whole {
		*sizes, *slow = "300,1000,5000", "300,1000,5000"
	}
	var err, slowErr, turnsErr error
	s.sizes, err = numbers(*sizes)
	s.slowSizes, slowErr = numbers(*slow)
	if s.turns < 1 {
		turnsErr = fmt.Errorf("-turns=%d: give 1 or more", s.turns)
	}
	return s, errors.Join(err, slowErr, turnsErr)
}

func numbers(text string) ([]int, error) {
	var found []int
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no number of claims: give such as 300,1000", word)
		}
		if slices.Contains(found, n) {
			return nil, fmt.Errorf("%d claims are given twice in %q: for more than one run of each use -turns", n, text)
		}
		found = append(found, n)
	}
	return found, nil
}

func run(ctx context.Context, args []string) error {
	s, err := read(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	rounds, err := schedule(s)
	if err != nil {
		return err
	}
	unlock, err := alone()
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }() // the kernel also unlocks at the end of the process
	if err := stopLeft(s); err != nil {
		return err
	}
	r := report{Machine: results.ThisMachine(ctx, s.program, s.tarn), Began: time.Now().UTC().Truncate(time.Second)}
	var failed []error
	for i, round := range rounds {
		for _, one := range round {
			fmt.Fprintf(os.Stderr, "%s  %d of %d: %s\n", time.Now().Format(time.TimeOnly), i+1, len(rounds), one)
		}
		// A run that fails does not affect the others.
		if err := r.sideBySide(ctx, s, round); err != nil {
			failed = append(failed, err)
			fmt.Fprintln(os.Stderr, "  ", err)
		}
		if ctx.Err() != nil {
			return errors.Join(failed...)
		}
	}
	r.sort()
	r.Verdicts = judge(r)
	r.print(os.Stdout)
	if slices.ContainsFunc(r.Verdicts, func(v verdict) bool { return v.Found != "" && !v.Reached }) {
		failed = append(failed, results.ErrMissed)
	}
	return errors.Join(append(failed, r.save(s.results))...)
}

// sideBySide does the runs of a round in parallel.
func (r *report) sideBySide(ctx context.Context, s settings, round []planned) error {
	var runs sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	for _, one := range round {
		runs.Go(func() {
			found, err := measure(ctx, s, one)
			mu.Lock()
			defer mu.Unlock()
			r.take(found)
			if err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", one, err))
			}
		})
	}
	runs.Wait()
	return errors.Join(failed...)
}

// measure does one run on a cluster of its own.
func measure(ctx context.Context, s settings, one planned) (found measured, err error) {
	c, err := start(ctx, s, one)
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if one.mode == modeCeiling {
		found.ceiling, err = c.ceiling(ctx, s.ceilingFor, s.sizes, one.turn)
		return found, err
	}
	bindings, err := c.bindings(ctx, s, one)
	found.bindings = &bindings
	return found, err
}
