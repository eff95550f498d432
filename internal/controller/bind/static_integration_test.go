//go:build integration

package bind

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"tarn.dev/tarn/internal/testkit"
)

func TestClaimsAndVolumesAreBoundOneToOne(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t))
	killer := testkit.NewKiller(0)
	defer w.start(killer.Wrap(w.config), nil, Options{})()
	const n = 50
	for i := range n {
		w.volume(fmt.Sprintf("one-%d", i), "1Gi", class("one"), in(corev1.VolumePending))
		w.claim(fmt.Sprintf("one-%d", i), "1Gi", ofClass("one"))
	}
	volumes := map[string]bool{}
	for i := range n {
		name := fmt.Sprintf("one-%d", i)
		w.until(func() string { return w.joined(name, "") })
		volumes[read(w, claimOf("1Gi", called("default", name))).Spec.VolumeName] = true
	}
	if len(volumes) != n {
		t.Errorf("%d claims share %d volumes", n, len(volumes))
	}
	// One write for Available, and the four of a binding.
	if got := killer.Writes(); got != 5*n {
		t.Errorf("took %d writes for %d bindings of new volumes, want %d", got, n, 5*n)
	}
}
