package stage

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// telling has the node agent say what the pod of an attempt has left in /pav/error.
func telling(stage *tarnv1.PavStage, attempt int32, text string) *tarnv1.PavStage {
	stage.Status.Node.Message = volume.UnstagingWord(inUnstaging(attempt), text)
	return stage
}

func TestWhatAFailedUnstagingPodHasSaidIsTold(t *testing.T) {
	const seen, both = "container main exited with 1", "the lock is held (container main exited with 1)"
	failed := func(after time.Duration, message string) *tarnv1.PavStage {
		return unmounted(aStage(inUnstaging(1, withUID, again(after, message))))
	}
	kept := pod(aPod(unstaging, corev1.PodFailed))
	for _, c := range []planCase{
		{
			name: "as soon as the node agent tells it", view: view(telling(failed(time.Minute, seen), 1, "the lock is held"), kept),
			want: "write, post UnstagingFailed", wantStatus: ref(inUnstaging(1, withUID, again(time.Minute, both))), wantNote: both,
		},
		{
			name: "before the pod goes", view: view(telling(failed(0, seen), 1, "the lock is held"), kept),
			want: "write, post UnstagingFailed", wantStatus: ref(inUnstaging(1, withUID, again(0, both))), wantNote: both,
		},
		{name: "once", view: view(telling(failed(time.Minute, both), 1, "the lock is held"), kept), wantLook: time.Minute},
		{name: "and not waited for", view: view(failed(0, seen), kept), want: "discard " + unstaging},
		{
			name: "though what was seen begins like it", view: view(telling(failed(time.Minute, seen), 1, "container main"), kept),
			want: "write, post UnstagingFailed", wantStatus: ref(inUnstaging(1, withUID, again(time.Minute, "container main ("+seen+")"))),
			wantNote: "container main (" + seen + ")",
		},
		{name: "but not that of another attempt", view: view(telling(failed(time.Minute, seen), 2, "the lock is held"), kept), wantLook: time.Minute},
		{
			name: "and not of a pod of somebody else", wantLook: time.Minute,
			view: view(telling(failed(time.Minute, seen), 1, "the lock is held"), pod(aPod(unstaging, corev1.PodFailed, foreign))),
		},
	} {
		t.Run(c.name, c.run)
	}
}
