package testkit

import (
	"fmt"
	"testing"

	"k8s.io/client-go/rest"
)

// servers is over how many API servers AtEveryWrite spreads its lives. A life keeps about
// two thirds of a processor busy, and packages are tested side by side.
const servers = 2

// AtEveryWrite runs a life once for each of its writes, n from 1, for a Killer that dies
// there. Lives that run side by side have an API server each: a controller would do the
// work of the others.
func AtEveryWrite(t *testing.T, writes int, live func(t *testing.T, server *rest.Config, n int)) {
	t.Helper()
	if writes == 0 {
		t.Fatal("the life has no write to be killed at")
	}
	for first := 1; first <= min(servers, writes); first++ {
		t.Run(fmt.Sprintf("server %d", first), func(t *testing.T) {
			t.Parallel()
			server := OwnAPIServer(t)
			for n := first; n <= writes; n += servers {
				t.Run(fmt.Sprint(n), func(t *testing.T) { live(t, server, n) })
			}
		})
	}
}
