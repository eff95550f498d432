package testkit

import (
	"fmt"
	"testing"

	"k8s.io/client-go/rest"
)

// servers is the number of API servers over which AtEveryWrite spreads its lives. A life keeps
// about two thirds of a processor busy, and packages are tested in parallel.
const servers = 2

// AtEveryWrite runs a life once for each of its writes, n from 1, with a Killer that fails there.
// Parallel lives have an API server each, because a controller would do the other lives' work.
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

// Many is a number of objects that a test makes; with -short it is a fifth of it.
func Many(n int) int {
	if testing.Short() {
		return n / 5
	}
	return n
}

// sparse is the share of writes tested with -short: one in so many.
const sparse = 4

// Deaths are the writes of a life, counted from 1, at which its process is to be killed. That is
// each of them; with -short it is the first, the last and some between.
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
