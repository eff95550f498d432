package apps

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
)

// podOf is a pod of the newest deploy of a view's App. Its container is in the given state and
// has ended before as given; nil means never.
func podOf(v *View, name string, waits corev1.ContainerStateWaiting, ended *corev1.ContainerStateTerminated) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: v.App.Namespace, Name: name, Labels: v.Deployment.Spec.Template.Labels},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: container, State: corev1.ContainerState{Waiting: &waits}, LastTerminationState: corev1.ContainerState{Terminated: ended},
		}}},
	}
}

func TestAPodThatCannotRunIsToldOfWithItsLastWords(t *testing.T) {
	loop := corev1.ContainerStateWaiting{Reason: crashing, Message: "back-off 10s"}
	for _, c := range []struct {
		name  string
		waits corev1.ContainerStateWaiting
		ended *corev1.ContainerStateTerminated
		want  string
	}{
		{"it is being started", corev1.ContainerStateWaiting{Reason: "ContainerCreating"}, nil, ""},
		{"it fails", loop, &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", Message: "reading\nno config\n"},
			"pod p keeps ending, with exit code 3; it printed last:\nreading\nno config"},
		{"it is killed", loop, &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}, "pod p keeps ending, with exit code 137 (OOMKilled)"},
		{"it has nothing to do", loop, &corev1.ContainerStateTerminated{Reason: "Completed"}, "pod p keeps ending, with exit code 0: an app must keep running"},
		{"nobody knows how it ended", loop, nil, "pod p keeps ending"},
		{"its image is not there", corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such host"}, nil, "the image of pod p cannot be pulled: no such host"},
		{"its image is not there still", corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}, nil, "the image of pod p cannot be pulled: ImagePullBackOff"},
		{"it has not been started again and again", loop, &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: "no such file"}, "the container of pod p cannot be started: no such file"},
		{"it cannot be started", corev1.ContainerStateWaiting{Reason: "RunContainerError", Message: "no such file"}, nil, "the container of pod p cannot be started: no such file"},
	} {
		if got := failureOf(podOf(deployed(appOf()), "p", c.waits, c.ended)); got != c.want {
			t.Errorf("%s: it says %q, want %q", c.name, got, c.want)
		}
	}
}

func TestOfALongLogTheEndIsTold(t *testing.T) {
	var long []string
	for i := range 99 {
		long = append(long, fmt.Sprintf("line %d", i))
	}
	if got := tail(strings.Join(long, "\n")); !strings.HasPrefix(got, "line 89\n") || !strings.HasSuffix(got, "\nline 98") {
		t.Errorf("of 99 lines it tells\n%s", got)
	}
	wide := strings.Repeat("x", 400)
	if got := tail(strings.Join([]string{wide, wide, wide + "!"}, "\n")); got != wide+"\n"+wide+"!" {
		t.Errorf("of wide lines it tells %d bytes\n%s", len(got), got)
	}
	if got := tail(strings.Repeat("y", 5000)); len(got) > lastBytes || !strings.HasPrefix(got, "yyy") {
		t.Errorf("of one line without end it tells %d bytes", len(got))
	}
}

func TestOnlyPodsOfTheDeployAtHandSayThatItFails(t *testing.T) {
	crash := func(v *View) *corev1.Pod {
		return podOf(v, "p", corev1.ContainerStateWaiting{Reason: crashing}, &corev1.ContainerStateTerminated{ExitCode: 1})
	}
	fewer := func(v *View) { v.Deployment.Status.AvailableReplicas = 0 }
	for _, c := range []struct {
		name   string
		change func(*View)
		reason string
	}{
		{"a pod of it", func(v *View) { v.Pods = []*corev1.Pod{crash(v)} }, tarnv1.ReasonPodsFailing},
		{"one that is being stopped", func(v *View) {
			v.Pods = []*corev1.Pod{crash(v)}
			v.Pods[0].DeletionTimestamp = ptr.To(metav1.NewTime(noon))
		}, tarnv1.ReasonWaitingForPods},
		{"one of an earlier deploy", func(v *View) {
			v.Pods = []*corev1.Pod{crash(deployed(appOf(), asks(func(s *tarnv1.AppSpec) { s.Image = "shop:0" }), settle))}
		}, tarnv1.ReasonWaitingForPods},
		{"one of another number of them", func(v *View) {
			v.Pods = []*corev1.Pod{crash(deployed(appOf(), asks(func(s *tarnv1.AppSpec) { s.Replicas = ptr.To[int32](7) }), settle))}
		}, tarnv1.ReasonPodsFailing},
	} {
		status := statusOf(deployed(appOf(), fewer, c.change), noon)
		if ready := meta.FindStatusCondition(status.Conditions, tarnv1.ConditionReady); ready.Reason != c.reason {
			t.Errorf("%s: Ready is %+v, want reason %s", c.name, ready, c.reason)
		}
	}
}

func TestAPodIsLookedAtWhenItBeginsOrCeasesToFail(t *testing.T) {
	v := deployed(appOf())
	fails := podOf(v, "p", corev1.ContainerStateWaiting{Reason: crashing}, nil)
	works := podOf(v, "p", corev1.ContainerStateWaiting{Reason: "ContainerCreating"}, nil)
	stranger := fails.DeepCopy()
	stranger.Labels = nil
	p := failing()
	for _, c := range []struct {
		old, now *corev1.Pod
		want     bool
	}{{works, fails, true}, {fails, works, true}, {fails, fails, false}, {works, works, false}, {works, stranger, false}} {
		if got := p.Update(event.TypedUpdateEvent[*corev1.Pod]{ObjectOld: c.old, ObjectNew: c.now}); got != c.want {
			t.Errorf("from %q to %q: %v, want %v", failureOf(c.old), failureOf(c.now), got, c.want)
		}
	}
	for pod, want := range map[*corev1.Pod]bool{works: false, fails: true, stranger: false} {
		if got := p.Create(event.TypedCreateEvent[*corev1.Pod]{Object: pod}); got != want {
			t.Errorf("a pod that comes saying %q: %v, want %v", failureOf(pod), got, want)
		}
		if got := p.Delete(event.TypedDeleteEvent[*corev1.Pod]{Object: pod}); got != want {
			t.Errorf("a pod that goes saying %q: %v, want %v", failureOf(pod), got, want)
		}
	}
}

func TestAVolumeWhoseClaimWasDeletedByHandIsMadeAnewLoudly(t *testing.T) {
	lose := func(v *View) {
		v.App.Status = statusOf(v, noon)
		delete(v.Claims, "paas-app-shop-data")
	}
	lost := deployed(appOf(volumeOf("data", 1)), lose)
	var made *corev1.PersistentVolumeClaim
	loud := false
	for _, a := range plan(lost) {
		switch a := a.(type) {
		case MakeClaim:
			made = a.Claim
		case action.Emit:
			loud = a.Type == corev1.EventTypeWarning && a.Reason == eventRemade && strings.Contains(a.Note, "claim paas-app-shop-data of volume data was deleted by hand")
		}
	}
	if made == nil || !loud {
		t.Fatalf("it makes %v, and tells of it: %v", made, loud)
	}
	if said := strings.Join(warnings(deployed(appOf(volumeOf("data", 1)), bound(made))), "\n"); !strings.Contains(said, "volume 'data' was created again, empty, at ") {
		t.Errorf("afterwards it warns of\n%s", said)
	}
	for name, v := range map[string]*View{
		"never looked at": deployed(appOf(volumeOf("data", 1)), func(v *View) { delete(v.Claims, "paas-app-shop-data") }),
		"without storage": deployed(appOf(volumeOf("data", 1)), onClaim("data", func(claim *corev1.PersistentVolumeClaim) { claim.Status.Capacity = nil }), lose),
		"not mounted":     deployed(appOf(volumeOf("data", 1)), lose, func(v *View) { v.Deployed.Volumes[0].MountPath = "" }),
	} {
		if notes := told(plan(v)); notes[eventRemade] != "" || notes[eventCreated] == "" {
			t.Errorf("%s: it tells %v", name, notes)
		}
	}
}
