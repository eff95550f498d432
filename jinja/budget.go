package jinja

import (
	"context"
	"fmt"
)

// The defaults of Limits. A step takes well under a microsecond, so the default number of steps
// ends within a second.
const (
	defaultSteps       = 1_000_000
	defaultOutputBytes = 1 << 20
	defaultDepth       = 100
	defaultMemoryBytes = 16 << 20
)

// contextInterval is how many steps pass between two checks of the context.
const contextInterval = 2048

// budget holds what remains of the limits during an evaluation.
type budget struct {
	ctx       context.Context
	stepsLeft int
	nextCheck int // check the context when stepsLeft falls to this
	bytesLeft int
	maxOutput int
	maxDepth  int
	limits    Limits
}

func newBudget(ctx context.Context, l Limits) *budget {
	if l.Steps <= 0 {
		l.Steps = defaultSteps
	}
	if l.OutputBytes <= 0 {
		l.OutputBytes = defaultOutputBytes
	}
	if l.Depth <= 0 {
		l.Depth = defaultDepth
	}
	if l.MemoryBytes <= 0 {
		l.MemoryBytes = defaultMemoryBytes
	}
	b := &budget{ctx: ctx, stepsLeft: l.Steps, bytesLeft: l.MemoryBytes, maxOutput: l.OutputBytes, maxDepth: l.Depth, limits: l}
	b.nextCheck = b.stepsLeft
	return b
}

// steps takes n steps off the budget.
func (b *budget) steps(n int) {
	b.stepsLeft -= n
	if b.stepsLeft < b.nextCheck {
		b.check()
	}
}

// step is steps(1), small enough to be inlined.
func (b *budget) step() {
	b.stepsLeft--
	if b.stepsLeft < b.nextCheck {
		b.check()
	}
}

func (b *budget) check() {
	if b.stepsLeft < 0 {
		fail(KindLimit, "the evaluation takes more than %d steps", b.limits.Steps)
	}
	if err := b.ctx.Err(); err != nil {
		panic(&Error{Kind: KindLimit, Message: fmt.Sprintf("the evaluation was stopped: %v", err), Err: err})
	}
	b.nextCheck = max(b.stepsLeft-contextInterval, 0)
}

// alloc takes bytes off the memory budget, before they are allocated.
func (b *budget) alloc(bytes int) {
	if bytes < 0 || bytes > b.bytesLeft {
		fail(KindLimit, "the evaluation takes more than %d bytes of memory", b.limits.MemoryBytes)
	}
	b.bytesLeft -= bytes
}

// bytesPerStep is how many bytes may be copied for one step.
const bytesPerStep = 32

// scan charges for reading n bytes character by character.
func (b *budget) scan(n int) { b.steps(n / 8) }

// text charges for a string of n bytes that is copied from others.
func (b *budget) text(n int) {
	b.alloc(n)
	b.steps(n / bytesPerStep)
}

// pad charges for n new units of size bytes, one step each.
func (b *budget) pad(n, size int) {
	if n <= 0 {
		return
	}
	if n > b.limits.MemoryBytes || n > b.limits.Steps {
		fail(KindLimit, "a value of %d characters or items is larger than an evaluation may make", n)
	}
	b.alloc(n * size)
	b.steps(n)
}

// anyBytes is the size of one item of a list.
const anyBytes = 16

// items charges for a list of n items.
func (b *budget) items(n int) {
	b.alloc(n * anyBytes)
	b.steps(n)
}

// checkDepth bounds the depth of nested values that are all visited.
func (b *budget) checkDepth(depth int) {
	b.step()
	if depth > b.maxDepth {
		fail(KindLimit, "values are nested more than %d levels deep", b.maxDepth)
	}
}
