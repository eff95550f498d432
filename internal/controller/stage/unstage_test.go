package stage

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// telling makes the node agent report what the pod of an attempt has left in /pav/error.
func telling(stage *tarnv1.PavStage, attempt int32, text string) *tarnv1.PavStage {
	stage.Status.Node.Message = volume.UnstagingWord(inUnstaging(attempt), text)
	return stage
}

func TestWhatAFailedUnstagingPodHasSaidIsTold(t *testing.T) {
	const seen, both = "container main exited with 1", "the lock is held (container main exited with 1)"
	const theirs = "pod ns/" + unstaging + " exists and belongs to something else; delete it to continue"
	untold := func(after time.Duration) *tarnv1.PavStage {
		return unmounted(aStage(inUnstaging(1, withUID, again(after, seen))))
	}
	told := func(after time.Duration, message string) *tarnv1.PavStage {
		return unmounted(aStage(inUnstaging(1, again(after, message))))
	}
	kept := pod(aPod(unstaging, corev1.PodFailed))
	for _, c := range []planCase{
		{
			name: "as soon as the node agent tells it", view: view(telling(untold(time.Minute), 1, "the lock is held"), kept),
			want: "write, post UnstagingFailed", wantStatus: ref(inUnstaging(1, again(time.Minute, both))), wantNote: both,
		},
		{
			name: "before the pod goes", view: view(telling(untold(0), 1, "the lock is held"), kept),
			want: "write, post UnstagingFailed", wantStatus: ref(inUnstaging(1, again(0, both))), wantNote: both,
		},
		{name: "and waited for till then", view: view(untold(time.Minute), kept), wantLook: time.Minute},
		{
			name: "and no longer", view: view(untold(0), kept),
			want: "write, post UnstagingFailed", wantStatus: ref(inUnstaging(1, again(0, seen))), wantNote: seen,
		},
		{
			name: "nor where the pod has gone early", view: view(untold(time.Minute)),
			want: "write, post UnstagingFailed", wantStatus: ref(inUnstaging(1, again(time.Minute, seen))), wantNote: seen,
		},
		{name: "once", view: view(telling(told(time.Minute, both), 1, "the lock is held"), kept), wantLook: time.Minute},
		{name: "once, though it came late", view: view(telling(told(time.Minute, seen), 1, "the lock is held"), kept), wantLook: time.Minute},
		{name: "then the pod goes", view: view(told(0, seen), kept), want: "discard " + unstaging},
		{
			name: "though what was seen begins like it", view: view(telling(untold(time.Minute), 1, "container main"), kept),
			want: "write, post UnstagingFailed", wantStatus: ref(inUnstaging(1, again(time.Minute, "container main ("+seen+")"))),
			wantNote: "container main (" + seen + ")",
		},
		{name: "but not that of another attempt", view: view(telling(untold(time.Minute), 2, "the lock is held"), kept), wantLook: time.Minute},
		{
			name: "and not of a pod of somebody else", wantLook: time.Minute,
			view: view(telling(untold(time.Minute), 1, "the lock is held"), pod(aPod(unstaging, corev1.PodFailed, foreign))),
		},
		{
			name: "whose being there is told at once", view: view(unmounted(aStage(inUnstaging(1, withUID))), pod(aPod(unstaging, corev1.PodFailed, foreign))),
			want: "write, post UnstagingFailed", wantLook: time.Second,
			wantStatus: ref(inUnstaging(1, again(time.Second, theirs))), wantNote: theirs,
		},
	} {
		t.Run(c.name, c.run)
	}
}

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

// An attacker who controls a node can create stages of that node and never end them.
func TestAStageThatFitsNothingIsDroppedThoughItsNodeHoldsIt(t *testing.T) {
	for name, forge := range map[string]func(*tarnv1.PavStage){
		"no name of a stage":       func(s *tarnv1.PavStage) { s.Name = "squatter" },
		"the name of another node": func(s *tarnv1.PavStage) { s.Name = tarnv1.StageName(s.Spec.VolumeUID, "n2", false) },
		"a volume that there never was": func(s *tarnv1.PavStage) {
			s.Spec.VolumeUID = "made-up"
			s.Name = tarnv1.StageName(s.Spec.VolumeUID, "n1", false)
		},
		"no pod": func(s *tarnv1.PavStage) {
			s.Status.Node = tarnv1.PavStageNodeStatus{Phase: tarnv1.StageLost, Targets: []string{"/t"}, Loss: &tarnv1.StageLoss{Number: 1}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stolen := context.Background(), aStage(tarnv1.PavStagePodStatus{})
			forge(stolen)
			objects := slices.DeleteFunc(subjects(), func(o client.Object) bool {
				_, isStage := o.(*tarnv1.PavStage)
				_, isPod := o.(*corev1.Pod)
				return isStage || isPod && name == "no pod"
			})
			w := newWorld(t, append(objects, stolen)...)
			look := func() {
				for range 6 {
					if _, err := w.r.Reconcile(ctx, requestFor(stolen.Name)); err != nil {
						t.Fatal(err)
					}
				}
			}
			look()
			got := &tarnv1.PavStage{}
			if err := w.store.Get(ctx, client.ObjectKey{Name: stolen.Name}, got); err != nil || !got.Void() || len(w.made) > 0 {
				t.Fatalf("%+v, with pods %q (%v), want one that is void", got.Status.Pod, w.made, err)
			}
			w.clock.SetTime(noon.Add(dropAfter))
			look()
			if err := w.store.Get(ctx, client.ObjectKey{Name: stolen.Name}, got); !apierrors.IsNotFound(err) {
				t.Errorf("after %s it is still there: %v, %+v", dropAfter, got.Finalizers, got.Status.Pod)
			}
		})
	}
}

func TestTheNodeIsToldThatAClaimIsBeingDeletedAndNoPodStartsOnIt(t *testing.T) {
	for name, started := range map[string]bool{"its pod has never started": false, "its pod has": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, subjects()...)
			ctx := context.Background()
			claim := &corev1.PersistentVolumeClaim{}
			w.must(w.store.Get(ctx, client.ObjectKey{Namespace: "app", Name: "data"}, claim))
			claim.Finalizers = []string{"kubernetes.io/pvc-protection"}
			w.must(w.store.Update(ctx, claim))
			w.must(w.store.Delete(ctx, claim))
			if started {
				pod := &corev1.Pod{}
				w.must(w.store.Get(ctx, client.ObjectKeyFromObject(consumer("app", "data", "")), pod))
				pod.Status.Phase = corev1.PodRunning
				w.must(w.store.Status().Update(ctx, pod))
			}
			w.look()
			if got := w.stage().Status.Pod; got.ClaimDeleted != claim.UID || got.Phase != "" || len(w.made) > 0 {
				t.Fatalf("at first %+v, with pods %q, want the word on the claim alone", got, w.made)
			}
			w.look()
			got := w.stage().Status.Pod
			if got.ClaimDeleted != claim.UID {
				t.Errorf("the word on the claim is lost: %+v", got)
			}
			if want := "claim app/data is being deleted, and no pod"; !started && (got.Phase != tarnv1.StagePodFailed || !strings.HasPrefix(got.Message, want) || len(w.made) > 0) {
				t.Errorf("%s, %q, with pods %q, want Failed and %q", got.Phase, got.Message, w.made, want)
			}
			if started && (got.Phase != tarnv1.StagePodStarting || len(w.made) != 1) {
				t.Errorf("%s, %q, with pods %q, want one that starts", got.Phase, got.Message, w.made)
			}
		})
	}
}
