package keymutex

import (
	"sync"
	"testing"
)

func TestCallsForOneKeyFollowEachOtherAndOthersDoNotWait(t *testing.T) {
	var m Mutex
	unlock := m.Lock("a")
	if _, ok := m.TryLock("a"); ok {
		t.Error("a key was locked twice")
	}
	m.Lock("b")() // does not wait for a
	unlock()
	other, ok := m.TryLock("a")
	if !ok {
		t.Fatal("a key stays locked")
	}
	other()
	count := 0
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() {
			defer m.Lock("a")()
			count++
		})
	}
	group.Wait()
	if count != 100 {
		t.Errorf("counted %d of 100", count)
	}
	if len(m.locks) != 0 {
		t.Errorf("%d locks are kept though nobody wants them", len(m.locks))
	}
}

func TestAKeyIsHeldUntilItsLastHolderReleasesIt(t *testing.T) {
	var c Counter
	first, second := c.Hold("a"), c.Hold("a")
	first()
	if !c.Held("a") || c.Held("b") {
		t.Error("want a held, b not")
	}
	second()
	if c.Held("a") || len(c.counts) != 0 {
		t.Error("a is still held")
	}
}
