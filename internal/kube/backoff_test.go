package kube_test

import (
	"fmt"
	"testing"
	"time"

	"tarn.dev/tarn/internal/kube"
)

func TestPausesAreSpreadAndTheSameForTheSameObject(t *testing.T) {
	const first, most, objects = 2 * time.Second, 5 * time.Minute, 1000
	for n, plain := range map[int32]time.Duration{
		1: first, 2: 2 * first, 5: 16 * first, 8: 128 * first,
		9: most, 1000: most, 0: first, -3: first,
	} {
		t.Run(fmt.Sprintf("after failure %d", n), func(t *testing.T) {
			fourths := [4]int{} // of the range from 80% to 120%, how many pauses lie in each fourth
			for i := range objects {
				seed := fmt.Sprintf("5f1c8a52-7e44-4c0e-9d5b-%012d", i)
				pause := kube.Backoff(n, first, most, seed)
				if again := kube.Backoff(n, first, most, seed); again != pause {
					t.Fatalf("%s pauses %s, then %s", seed, pause, again)
				}
				if pause < plain*4/5 || pause >= plain*6/5 {
					t.Fatalf("%s pauses %s, want 80%% to 120%% of %s", seed, pause, plain)
				}
				fourths[int((pause-plain*4/5)*4/(plain*2/5))]++
			}
			for i, here := range fourths {
				if here < objects/8 {
					t.Errorf("%d of %d pauses are in fourth %d of the range: they are not spread", here, objects, i+1)
				}
			}
		})
	}
}
