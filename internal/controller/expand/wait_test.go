package expand

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/steppod/steppodtest"
)

func TestAnExpansionPodThatCouldNotBeginIsExplainedByWhatItWaitedFor(t *testing.T) {
	v := viewOf(journal(2*gi, 0), claimIs(corev1.PersistentVolumeClaimControllerResizeInProgress, 2*gi))
	v.Claim = started(v.Claim, "prov", 2*gi, true, noon)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "p", CreationTimestamp: metav1.NewTime(noon), OwnerReferences: []metav1.OwnerReference{{UID: v.Record.UID}},
	}}
	look := func(pod *corev1.Pod) Plan {
		v.Observed = steppod.Observe(pod, v.Record.UID, noon.Add(time.Second))
		p := plan(v, noon.Add(time.Second))
		follow(v, p)
		return p
	}
	if p := look(pod); len(p.Actions) > 0 {
		t.Errorf("of one that waits for nothing it is told %s", told(p))
	}
	look(steppodtest.CannotPull(pod))
	if got := waitedFor(v.Claim); got != steppodtest.NoImage {
		t.Errorf("while it waits, the claim says %q", got)
	}
	if p := look(steppodtest.CannotPull(pod)); len(p.Actions) > 0 {
		t.Errorf("which is told again: %s", told(p))
	}
	waits := *v

	p := look(steppodtest.TimeIsUp(pod))
	post, ok := p.Actions[len(p.Actions)-1].(action.Emit)
	if !ok || !strings.Contains(post.Note, "has not ended within 5s: "+steppodtest.NoImage) {
		t.Errorf("it is told %+v", p.Actions)
	}
	if got := waitedFor(v.Claim); got != "" {
		t.Errorf("after it the claim still says to wait: %q", got)
	}

	*v = waits
	look(pod)
	if got := waitedFor(v.Claim); got != "" {
		t.Errorf("when it waits no more, the claim says %q", got)
	}
}
