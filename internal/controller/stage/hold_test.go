package stage

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestAPodHoldsAStageThatWasDeletedUnderIt(t *testing.T) {
	running := []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	stopped := []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	// asked is a pod that was asked to end, with 30 s to do so, this long after the stage.
	asked := func(after time.Duration) metav1.ObjectMeta {
		return metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: noon.Add(after + 30*time.Second)}, DeletionGracePeriodSeconds: ref(int64(30))}
	}
	for name, c := range map[string]struct {
		pod  corev1.Pod
		want bool
	}{
		"one that runs":                    {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: running}}, true},
		"one that is being initialised":    {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: running}}, true},
		"one without containers yet":       {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending}}, false},
		"one that has ended":               {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: stopped}}, false},
		"one asked to end later":           {corev1.Pod{ObjectMeta: asked(time.Second), Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: running}}, true},
		"one asked to end later, and done": {corev1.Pod{ObjectMeta: asked(time.Second), Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: stopped}}, false},
		"one asked to end before":          {corev1.Pod{ObjectMeta: asked(-time.Second), Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: running}}, false},
		"one asked to end then":            {corev1.Pod{ObjectMeta: asked(0), Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: running}}, false},
	} {
		if got := holds(&c.pod, ending(aStage(tarnv1.PavStagePodStatus{}))); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

func TestAStageThatIsHeldStaysAndSaysSo(t *testing.T) {
	users := func(v *View) {
		for _, name := range []string{"d", "b", "c", "a", "e"} {
			v.Users = append(v.Users, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}})
		}
	}
	v := view(ending(aStage(of(tarnv1.StagePodRunning, ""))), pod(aPod(staging, corev1.PodRunning)), users)
	got := plan(v, noon)
	if len(got.Actions) != 2 || got.LookAt != noon.Add(heldLook) {
		t.Fatalf("got %+v, want a status, an Event and a look at %s", got, noon.Add(heldLook))
	}
	write, ok := got.Actions[0].(WriteStatus)
	if want := "until these have ended: shop/a, shop/b, shop/c, 2 more"; !ok || !strings.Contains(write.Status.Message, want) || write.Status.Phase != tarnv1.StagePodRunning {
		t.Errorf("got %+v, want it to be as it was and to say %q", got.Actions[0], want)
	}
	v.Stage.Status.Pod = write.Status
	if again := plan(v, noon); len(again.Actions) != 0 || again.LookAt.IsZero() {
		t.Errorf("once said, there is %+v to do, want another look", again)
	}
	v.Users = nil
	if then := plan(v, noon); len(then.Actions) != 1 {
		t.Errorf("when they have ended there is %+v to do, want the staging pod to go", then)
	}
}
