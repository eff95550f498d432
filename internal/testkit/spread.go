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
	deaths := Deaths(t, writes)
	for first := range min(servers, len(deaths)) {
		t.Run(fmt.Sprintf("server %d", first+1), func(t *testing.T) {
			t.Parallel()
			server := OwnAPIServer(t)
			for i := first; i < len(deaths); i += servers {
				n := deaths[i]
				t.Run(fmt.Sprint(n), func(t *testing.T) { live(t, server, n) })
			}
		})
	}
}

// sparse is of how many writes one is a death with -short.
const sparse = 4

// Deaths are the writes of a life, counted from 1, at which its process is to be killed: each
// of them, and with -short the first, the last and some between.
func Deaths(t *testing.T, writes int) []int {
	t.Helper()
	if writes == 0 {
		t.Fatal("the life has no write to be killed at")
	}
	step := 1
	if testing.Short() {
		step = sparse
	}
	var deaths []int
	for n := 1; n < writes; n += step {
		deaths = append(deaths, n)
	}
	deaths = append(deaths, writes)
	if step > 1 {
		t.Logf("with -short the process is killed at %v of %d writes; `make integration` kills it at each", deaths, writes)
	}
	return deaths
}
