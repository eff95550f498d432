package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// oneWay is what watches tell of one claim, each n ms after the start. The volume is told
// of before the record, as they are watched apart.
func oneWay(began time.Time) *sights {
	s := &sights{}
	see := func(ms int, o client.Object) {
		s.all = append(s.all, seen{began.Add(time.Duration(ms) * time.Millisecond), o})
	}
	pod := func(name, node, result string, labels map[string]string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{tarnv1.AnnotationResult: result}}}
		p.Spec.NodeName = node
		return p
	}
	event := func(name, reason string) *corev1.Event {
		return &corev1.Event{InvolvedObject: corev1.ObjectReference{Name: name}, Reason: reason}
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	see(1, claim)
	claim = claim.DeepCopy()
	claim.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": name}
	see(20, claim)
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-a"}}
	vol.Spec.ClaimRef = &corev1.ObjectReference{Name: "a"}
	see(700, vol)
	record := &tarnv1.PavVolume{ObjectMeta: metav1.ObjectMeta{UID: "r"}}
	record.Spec.Claim.Name = "a"
	see(40, record)
	creation := map[string]string{tarnv1.LabelStep: string(tarnv1.StepCreation), tarnv1.LabelRecord: "r"}
	see(50, pod("make-a", "", "", creation))
	see(60, pod("make-a", "n", "", creation))
	see(400, event("make-a", pulled))
	see(450, event("make-a", started))
	see(600, pod("make-a", "n", "{}", creation))
	see(820, pod("a", "n", "", nil))
	stage := &tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{UID: types.UID("s")}}
	stage.Spec.VolumeName = "pvc-a"
	see(1000, stage)
	stage = stage.DeepCopy()
	stage.Status.Node.Targets = []string{"/pods/u/target"}
	see(1020, stage)
	staging := map[string]string{tarnv1.LabelStep: string(tarnv1.StepStaging), tarnv1.LabelStage: "s"}
	see(1050, pod("stage-a", "n", "", staging))
	see(1300, event("stage-a", pulled))
	stage = stage.DeepCopy()
	stage.Status.Node.Phase = tarnv1.StageStaged
	see(1450, stage)
	see(1460, event("stage-a", started)) // late: Events are written aside
	see(1700, event("a", pulled))
	see(1800, event("a", started))
	see(1750, pod("unstage-a", "n", "", map[string]string{tarnv1.LabelStep: string(tarnv1.StepUnstaging), tarnv1.LabelStage: "s"}))
	return s
}

func TestTheLegsOfAWayAddUpToWhatWasMeasured(t *testing.T) {
	began := time.Now()
	r := round{id: "a", began: began, bound: began.Add(750 * time.Millisecond), ready: began.Add(1900 * time.Millisecond)}
	first := oneWay(began).firsts()
	want := map[string]time.Duration{
		"asked": 20, "creation": 30, "creation scheduled": 10, "creation Pulled": 340, "creation Started": 50, "creation result": 150, "volume": 100, "bound": 50,
		"user scheduled": 70, "stage": 200, "staging": 30, "staging Pulled": 250, "staging Started": 160, "staged": 0, "user Pulled": 240, "user Started": 100, "ready": 100,
	}
	var sum time.Duration
	for i, took := range lengths(r, first) {
		sum += took
		if took != want[way[i].end]*time.Millisecond {
			t.Errorf("until %q it took %s, want %d ms", way[i].end, took, want[way[i].end])
		}
		if way[i].end == boundEnd && sum != r.bound.Sub(began) {
			t.Errorf("until the claim is Bound they add up to %s", sum)
		}
	}
	if sum != r.ready.Sub(began) {
		t.Errorf("they add up to %s", sum)
	}
}

func TestAnEndNobodySawLeavesTheSumAsItIs(t *testing.T) {
	began := time.Now()
	r := round{id: "a", began: began, bound: began.Add(750 * time.Millisecond), ready: began.Add(1900 * time.Millisecond)}
	for _, l := range way {
		for _, at := range []int{-1, -100, 5000} { // never, before the start, after the end
			first := oneWay(began).firsts()
			delete(first, "a "+l.end)
			if at != -1 {
				first["a "+l.end] = began.Add(time.Duration(at) * time.Millisecond)
			}
			var sum time.Duration
			for _, took := range lengths(r, first) {
				if took < 0 {
					t.Errorf("with %q seen at %d ms a leg takes %s", l.end, at, took)
				}
				sum += took
			}
			if sum != r.ready.Sub(began) {
				t.Errorf("with %q seen at %d ms they add up to %s", l.end, at, sum)
			}
		}
	}
}

func TestTheLegsThatAreKeptAddUpToTheAverage(t *testing.T) {
	began := time.Now()
	r := round{id: "a", began: began, bound: began.Add(750 * time.Millisecond), ready: began.Add(1900 * time.Millisecond)}
	slow := r
	slow.id, slow.ready = "nobody saw", began.Add(2100*time.Millisecond)
	all := legs([]round{r, slow}, oneWay(began).firsts(), 50*time.Millisecond)
	var until, bound, sandboxes float64
	for _, l := range all {
		until += l.Seconds
		if l.Bound {
			bound = until
		}
		if strings.HasSuffix(l.What, ": sandbox") {
			sandboxes += l.Seconds
		}
		if l.Whose == "" || l.What == "" {
			t.Errorf("a leg is nobody's: %+v", l)
		}
	}
	if math.Abs(until-2) > 1e-6 || math.Abs(bound-0.75) > 1e-6 || math.Abs(sandboxes-0.15) > 1e-6 {
		t.Errorf("Bound after %v s, Ready after %v s, sandboxes for %v s, want 0.75, 2 and 0.15", bound, until, sandboxes)
	}
	report := report{OneByOne: &oneByOne{Legs: all}}
	folder := t.TempDir()
	if err := report.save(folder); err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(filepath.Join(folder, "volumes-*.json"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept are %v (%v)", kept, err)
	}
	if text, err := os.ReadFile(kept[0]); err != nil || strings.Count(string(text), `"whose"`) != len(all) {
		t.Errorf("of %d legs there are kept (%v): %s", len(all), err, text)
	}
}

func TestASampleIsFoundByItsLabels(t *testing.T) {
	const page = "# HELP x y\nx_sum{a=\"1\"} 2.5\nx_sum{a=\"10\"} 7\n"
	if got := sample(page, `x_sum{a="1"} `); got != 2.5 {
		t.Errorf("got %v, want 2.5", got)
	}
	if got := sample(page, `x_sum{a="2"} `); got != 0 {
		t.Errorf("got %v for a sample that is not there", got)
	}
}
