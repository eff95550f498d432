package stage

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

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
