// Package keymutex has a lock for each key: calls for one target or one stage run one after
// another, others concurrently. It does not know what the keys mean.
package keymutex

import "sync"

// Mutex is a set of locks, one per key. A lock exists only while a caller holds it or waits for it.
// The zero value is ready for use.
type Mutex struct {
	mu    sync.Mutex
	locks map[string]*entry
}

type entry struct {
	mu    sync.Mutex
	users int
}

// Lock waits for the key's lock and returns what releases it.
func (m *Mutex) Lock(key string) (unlock func()) {
	e := m.take(key)
	e.mu.Lock()
	return func() { m.release(key, e) }
}

// TryLock takes the key's lock if it is free.
func (m *Mutex) TryLock(key string) (unlock func(), ok bool) {
	e := m.take(key)
	if !e.mu.TryLock() {
		m.drop(key, e)
		return nil, false
	}
	return func() { m.release(key, e) }, true
}

func (m *Mutex) take(key string) *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks == nil {
		m.locks = map[string]*entry{}
	}
	e := m.locks[key]
	if e == nil {
		e = &entry{}
		m.locks[key] = e
	}
	e.users++
	return e
}

func (m *Mutex) release(key string, e *entry) {
	e.mu.Unlock()
	m.drop(key, e)
}

func (m *Mutex) drop(key string, e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.users--
	if e.users == 0 {
		delete(m.locks, key)
	}
}

// Counter counts holders of each key. The zero value is ready for use.
type Counter struct {
	mu     sync.Mutex
	counts map[string]int
}

// Hold adds a holder of the key, and returns the function that removes it.
func (c *Counter) Hold(key string) (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[key]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.counts[key]--
		if c.counts[key] == 0 {
			delete(c.counts, key)
		}
	}
}

// Held says whether the key has a holder.
func (c *Counter) Held(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[key] > 0
}
