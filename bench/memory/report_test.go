package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tarn.dev/tarn/bench/results"
)

func TestAProcessKeepsToItsLimitByEachWayOfCountingThatIsItsOwn(t *testing.T) {
	const mebi = 1 << 20
	within := held{Own: 150 * mebi, All: 190 * mebi, Peak: 200 * mebi, Set: 150 * mebi}
	unknown := within
	unknown.Set = 0 // no cgroup of its own
	over := func(change func(*held)) held {
		h := within
		change(&h)
		return h
	}
	for _, c := range []struct {
		name      string
		now, most held
		missed    bool
	}{
		{"just within, but for the pages of its program", within, within, false},
		{"its working set is not known", unknown, unknown, false},
		{"RssAnon at rest", over(func(h *held) { h.Own++ }), within, true},
		{"RssAnon at most", within, over(func(h *held) { h.Own++ }), true},
		{"working set at rest", over(func(h *held) { h.Set++ }), within, true},
		{"working set at most", within, over(func(h *held) { h.Set++ }), true},
		{"RssAnon, its working set not known", unknown, held{Own: 151 * mebi}, true},
	} {
		r := &report{}
		r.add(result{What: "before", Asked: 150 * mebi})
		r.add(result{What: c.name, Asked: 150 * mebi, Now: c.now, Most: c.most})
		r.add(result{What: "after", Asked: 150 * mebi})
		if err := r.verdict(); errors.Is(err, results.ErrMissed) != c.missed {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}

func TestWhatWasMeasuredIsKeptThoughItIsTooMuch(t *testing.T) {
	folder, failure := t.TempDir(), errors.New("the third start")
	b := &bench{report: report{Began: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)}}
	b.report.add(result{What: "controller", Asked: 1, Now: held{Own: 2}, Most: held{Own: 3, Set: 4}})
	if err := b.end(failure, folder, "controller"); !errors.Is(err, failure) || !errors.Is(err, results.ErrMissed) {
		t.Errorf("got %v", err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "memory-controller-20261120T120000Z.json"))
	if err != nil {
		t.Fatal(err)
	}
	var kept report
	if err := json.Unmarshal(text, &kept); err != nil || len(kept.Results) != 1 || kept.Results[0].Most.Set != 4 || !strings.Contains(string(text), `"rssAnon": 2`) {
		t.Errorf("kept is %s (%v)", text, err)
	}
}

func TestNothingMeasuredIsNotKept(t *testing.T) {
	folder := t.TempDir()
	if err := (&bench{}).end(nil, folder, "node"); err != nil {
		t.Error(err)
	}
	if kept, err := os.ReadDir(folder); err != nil || len(kept) != 0 {
		t.Errorf("kept are %v (%v)", kept, err)
	}
}
