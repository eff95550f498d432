package stage

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestAStageThatWasDeletedUnderPodsIsHeldByThem(t *testing.T) {
	container := func(state corev1.ContainerState) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{State: state}}
	}
	running := container(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	stopped := container(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
	waiting := container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}})
	aPod := func(name string, status corev1.PodStatus) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: status}
	}
	runs := aPod("runs", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: running})
	begins := aPod("begins", corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: running})
	crashes := aPod("crashes", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: waiting})
	ended := aPod("ended", corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: stopped})
	asked := aPod("asked", runs.Status) // asked to end, with a grace period
	asked.DeletionTimestamp = &metav1.Time{Time: noon}
	for name, c := range map[string]struct {
		told *bool
		pods []corev1.Pod
		held bool
		want string
	}{
		"mounted, and pods run":                        {ref(true), []corev1.Pod{runs, begins, crashes, ended}, true, "runs begins"},
		"mounted, under one asked to end":              {ref(true), []corev1.Pod{asked}, true, "asked"},
		"mounted, between two containers":              {ref(true), []corev1.Pod{crashes, ended}, true, "crashes"},
		"mounted, and the pod has ended by its status": {ref(true), []corev1.Pod{ended}, true, ""},
		"mounted, and the pod is gone":                 {ref(true), nil, true, ""},
		"not told, and pods run":                       {nil, []corev1.Pod{runs, begins, ended}, true, "runs begins"},
		"not told, and none runs":                      {nil, []corev1.Pod{crashes, ended}, false, ""},
	} {
		held, users := usedBy(c.told, c.pods)
		var names []string
		for i := range users {
			names = append(names, users[i].Name)
		}
		if got := strings.Join(names, " "); held != c.held || got != c.want {
			t.Errorf("%s: held is %t by %q, want %t by %q", name, held, got, c.held, c.want)
		}
	}
}

func TestAStageThatIsHeldStaysAndSaysSo(t *testing.T) {
	users := func(v *View) {
		v.Held = true
		v.Stage.Status.Node.InUse = ref(true)
		for _, name := range []string{"d", "b", "c", "a", "e"} {
			v.Users = append(v.Users, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}})
		}
	}
	v := view(ending(aStage(of(tarnv1.StagePodRunning, ""))), pod(aPod(staging, corev1.PodRunning)), users)
	got := plan(v, noon)
	if said(got) != "write, post UnstagingHeld" || got.LookAt != noon.Add(heldLook) {
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
	v.Stage.Status.Node.InUse = nil
	if quiet := plan(v, noon.Add(time.Second)); len(quiet.Actions) != 0 || quiet.LookAt.IsZero() {
		t.Errorf("before the node agent has told there is %+v to do, want another look", quiet)
	}
	if late := plan(v, noon.Add(heldQuiet)); said(late) != "write, post UnstagingHeld" {
		t.Errorf("where the node agent does not tell there is %+v to do, want it to be said", late)
	}
	v.Held = false
	if then := plan(v, noon); len(then.Actions) != 1 {
		t.Errorf("when they have ended there is %+v to do, want the staging pod to go", then)
	}
}
