package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// held is what a process has of memory, in bytes.
type held struct {
	// own is memory of its own now (RssAnon), all with the pages of its binary (VmRSS),
	// peak the most it ever had of that.
	own, all, peak int64
}

// memoryOf reads /proc/PID/status.
func memoryOf(pid int) (held, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return held{}, err
	}
	defer f.Close()
	var h held
	into := map[string]*int64{"RssAnon:": &h.own, "VmRSS:": &h.all, "VmHWM:": &h.peak}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || into[words[0]] == nil {
			continue
		}
		kilobytes, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			return held{}, fmt.Errorf("%s: %w", f.Name(), err)
		}
		*into[words[0]] = kilobytes << 10
	}
	return h, lines.Err()
}

// watchMost looks at a process ten times a second until ctx ends, and gives the most
// memory of its own that was seen, in bytes.
func watchMost(ctx context.Context, pid int) <-chan int64 {
	most := make(chan int64, 1)
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		var seen int64
		for {
			if h, err := memoryOf(pid); err == nil {
				seen = max(seen, h.own)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				most <- seen
				return
			}
		}
	}()
	return most
}

// report prints what a process holds beside what it may.
func report(what string, h held, most int64, mayHold int64) {
	verdict := "reached"
	if most > mayHold<<20 {
		verdict = "NOT reached"
	}
	fmt.Printf("%s: %.1f MiB of its own now, at most %.1f (asked: %d MiB, %s); with the binary's pages %.1f, at most %.1f\n",
		what, mib(h.own), mib(most), mayHold, verdict, mib(h.all), mib(h.peak))
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// get asks a process' own server.
func get(ctx context.Context, address, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s%s: %s", address, path, answer.Status)
	}
	return io.ReadAll(answer.Body)
}

// keepProfile writes a heap's profile, after a collection, to the file asked for.
func (b *bench) keepProfile(ctx context.Context, address string) error {
	if b.profile == "" || address == "" {
		return nil
	}
	data, err := get(ctx, address, "/debug/pprof/heap?gc=1")
	if err != nil {
		return fmt.Errorf("reading the heap's profile: %w", err)
	}
	return os.WriteFile(b.profile, data, 0o644)
}

// metric adds up the samples of a metric that have all the labels, each given as it is
// printed: controller="provision".
func metric(page []byte, metricName string, labels ...string) float64 {
	var sum float64
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, metricName+"{") && !strings.HasPrefix(line, metricName+" ") {
			continue
		}
		has := true
		for _, label := range labels {
			has = has && strings.Contains(line, label)
		}
		words := strings.Fields(line)
		if value, err := strconv.ParseFloat(words[len(words)-1], 64); has && err == nil {
			sum += value
		}
	}
	return sum
}
