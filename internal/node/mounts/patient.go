package mounts

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tarn.dev/tarn/internal/node/hangguard"
)

// Patient is Kernel with a time limit for unmounts. A server that does not answer must not block
// the caller, be it the server of the unmounted file system or of one above it. After the limit the
// error is hangguard.ErrNoAnswer, until the kernel is done.
//
// Until then List still shows the mount, although no path leads there any more. Data that the
// kernel has not written yet would be lost if the storage were removed earlier.
type Patient struct {
	Kernel
	limit time.Duration
	asks  hangguard.Asker // by point

	mu     sync.Mutex
	ending map[string]Mount // by point, what the kernel is asked to unmount
}

var _ Mounter = (*Patient)(nil)

// NewPatient returns a Patient that waits at most limit for an unmount.
func NewPatient(limit time.Duration) *Patient {
	return &Patient{limit: limit, ending: map[string]Mount{}}
}

// Unmount implements Mounter.
func (p *Patient) Unmount(point string) error { return p.unmount("unmount", point, 0) }

// Detach implements Mounter.
func (p *Patient) Detach(point string) error { return p.unmount("detach", point, unix.MNT_DETACH) }

// List implements Mounter.
func (p *Patient) List() ([]Mount, error) {
	p.mu.Lock()
	defer p.mu.Unlock() // held during the query: a mount that ends meanwhile is in one of the two
	table, err := p.Kernel.List()
	if err != nil {
		return nil, err
	}
	for point, m := range p.ending {
		if !slices.ContainsFunc(table, func(now Mount) bool { return now.ID == m.ID && now.Point == point }) {
			table = append(table, m)
		}
	}
	return table, nil
}

// call is one attempt to unmount.
type call struct{ left bool }

func (p *Patient) unmount(op, point string, flags int) error {
	c := &call{}
	_, err := hangguard.Ask(&p.asks, point, p.limit, func() (struct{}, error) {
		parent, err := openParent(op, point)
		if err != nil {
			return struct{}{}, err
		}
		defer func() { _ = parent.Close() }()
		if err := p.begin(c, op, point); err != nil {
			return struct{}{}, err
		}
		defer p.end(point)
		return struct{}{}, unmountIn(parent, op, point, flags)
	}, func(struct{}, error) {})
	if errors.Is(err, hangguard.ErrNoAnswer) {
		p.leave(c)
		p.asks.Forget(point) // its duration does not matter
		err = fmt.Errorf("not finished after %s; a server does not answer, or much data must be written: %w", p.limit, err)
		return &os.PathError{Op: op, Path: point, Err: err}
	}
	return err
}

// begin records the mount that is being unmounted. A call whose caller has given up ends here: by
// now something else may be mounted at the point.
func (p *Patient) begin(c *call, op, point string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.left {
		return hangguard.ErrNoAnswer
	}
	table, err := p.Kernel.List()
	if err != nil {
		return err
	}
	for _, m := range table {
		if m.Point == point {
			p.ending[point] = m // the last one is the uppermost
		}
	}
	if _, there := p.ending[point]; !there {
		return &os.PathError{Op: op, Path: point, Err: unix.EINVAL} // as the kernel says
	}
	return nil
}

func (p *Patient) leave(c *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.left = true
}

func (p *Patient) end(point string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ending, point)
}
