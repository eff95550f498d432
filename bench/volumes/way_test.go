package main

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func uidOf(pod string) types.UID { return types.UID("uid of " + pod) }

// oneWay is what watches report of one claim, each change n ms after the start. The volume is
// reported before the record, because their watches are separate.
func oneWay(began time.Time) *sights {
	s := &sights{}
	see := func(ms int, o client.Object) {
		s.all = append(s.all, seen{at: began.Add(time.Duration(ms) * time.Millisecond), object: o})
	}
	pod := func(name, node, result string, labels map[string]string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uidOf(name), Labels: labels, Annotations: map[string]string{tarnv1.AnnotationResult: result}}}
		p.Spec.NodeName = node
		return p
	}
	event := func(name, reason string) *corev1.Event {
		return &corev1.Event{InvolvedObject: corev1.ObjectReference{Name: name, UID: uidOf(name)}, Reason: reason}
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
	taken := pod("a", "n", "", nil)
	taken.Status.StartTime = &metav1.Time{Time: began}
	see(840, taken)
	stage := &tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{UID: types.UID("s")}}
	stage.Spec.VolumeName = "pvc-a"
	see(1000, stage)
	stage = stage.DeepCopy()
	stage.Status.Node.Targets = []string{"/pods/u/target"}
	see(1020, stage)
	staging := map[string]string{tarnv1.LabelStep: string(tarnv1.StepStaging), tarnv1.LabelStage: "s"}
	see(1050, pod("stage-a", "n", "", staging))
	see(1300, event("stage-a", pulled))
	see(1400, event("stage-a", started))
	stage = stage.DeepCopy()
	stage.Status.Node.Phase = tarnv1.StageStaged
	see(1450, stage)
	see(1700, event("a", pulled))
	see(1800, event("a", started))
	see(1750, pod("unstage-a", "n", "", map[string]string{tarnv1.LabelStep: string(tarnv1.StepUnstaging), tarnv1.LabelStage: "s"}))
	return s
}

func TestAnEventOfAnEarlierPodOfTheSameNameIsNoneOfThisOne(t *testing.T) {
	began := time.Now()
	s := oneWay(began)
	earlier := &corev1.Event{InvolvedObject: corev1.ObjectReference{Name: "a", UID: "of an earlier run"}, Reason: pulled}
	s.all = append(s.all, seen{at: began.Add(1500 * time.Millisecond), object: earlier})
	if at := s.firsts()["a user "+pulled]; at.Sub(began) != 1700*time.Millisecond {
		t.Errorf("the image of the pod was there after %s, want 1.7s", at.Sub(began))
	}
}

func TestATraceTellsThatAStageIsThereBeforeItHasATarget(t *testing.T) {
	var lines []string
	for _, s := range oneWay(time.Now()).inOrder() {
		if _, ok := s.object.(*tarnv1.PavStage); ok {
			lines = append(lines, describe(s))
		}
	}
	if len(lines) == 0 || !strings.Contains(lines[0], "targets 0") || !strings.Contains(lines[1], "targets 1") {
		t.Errorf("it tells %q", lines)
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
