package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// held is the memory of a process, in bytes.
type held struct {
	// Own is its own memory now (RssAnon), All includes the pages of its binary (VmRSS), and Peak
	// is the highest VmRSS so far.
	Own  int64 `json:"rssAnon"`
	All  int64 `json:"vmRSS"`
	Peak int64 `json:"vmHWM"`
	// Set is the working set of its container; 0 if it has no cgroup of its own.
	Set int64 `json:"workingSet,omitempty"`
}

// memoryOf reads /proc/PID/status, and the cgroup.
func memoryOf(pid int) (held, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return held{}, err
	}
	defer f.Close()
	var h held
	if h.Set, err = workingSet(pid); err != nil && !errors.Is(err, errShared) && !errors.Is(err, fs.ErrNotExist) {
		return held{}, err
	}
	into := map[string]*int64{"RssAnon:": &h.Own, "VmRSS:": &h.All, "VmHWM:": &h.Peak}
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

// watchMost measures a process ten times per second until ctx ends. It gives the highest value of
// each figure.
func watchMost(ctx context.Context, pid int) <-chan held {
	most := make(chan held, 1)
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		var seen held
		for {
			if h, err := memoryOf(pid); err == nil {
				seen = held{Own: max(seen.Own, h.Own), All: max(seen.All, h.All), Peak: max(seen.Peak, h.Peak), Set: max(seen.Set, h.Set)}
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

// get sends a request to a process' own server.
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

// keepProfile writes a heap profile, after a garbage collection, to the requested file.
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

// metric sums the samples of a metric that have all the labels. A label is written as in the
// output: controller="pavvolume".
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
