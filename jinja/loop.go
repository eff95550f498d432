package jinja

// loopState is the variable loop, and the iteration itself. The next item is
// fetched no earlier than Python fetches it, because a loop's test may depend
// on what the body did.
type loopState struct {
	e       *evaluator
	source  func() (any, bool)
	sized   int // number of items, -1 while unknown
	index0  int
	current any
	before  any
	after   any
	peeked  bool // after holds the next item
	ended   bool // the source has no more
	depth0  int
	recurse func(items any) string
	changed any
}

func (e *evaluator) newLoop(s *forStmt, items any, depth0 int) *loopState {
	l := &loopState{e: e, sized: -1, index0: -1, depth0: depth0, changed: &undefined{}}
	if _, ok := e.iterable(items); !ok {
		fail(KindType, "'%s' object is not iterable", typeName(norm(items)))
	}
	l.source = e.iterate(items)
	if s.test != nil {
		l.source = e.filtered(s, l.source)
		return l
	}
	switch v := norm(items).(type) {
	case *generator, *loopState:
	default:
		l.sized = e.length(v)
	}
	return l
}

// filtered drops the items for which the test of the for statement is false.
func (e *evaluator) filtered(s *forStmt, source func() (any, bool)) func() (any, bool) {
	parent := e.scope
	return func() (any, bool) {
		outer := e.scope
		defer func() { e.scope = outer }()
		for {
			item, ok := source()
			if !ok {
				return nil, false
			}
			e.scope = &scope{parent: parent}
			e.at = s.pos
			e.assign(&s.target, item)
			if truth(s.test.eval(e)) {
				return item, true
			}
		}
	}
}

func (l *loopState) fetch() (any, bool) {
	if l.ended {
		return nil, false
	}
	v, ok := l.source()
	l.ended = !ok
	return v, ok
}

// peek looks at the next item.
func (l *loopState) peek() (any, bool) {
	if !l.peeked {
		l.after, l.peeked = l.fetch()
	}
	return l.after, l.peeked
}

func (l *loopState) next() (any, bool) {
	v, ok := l.after, l.peeked
	if ok {
		l.after, l.peeked = nil, false
	} else if v, ok = l.fetch(); !ok {
		return nil, false
	}
	l.index0++
	l.before, l.current = l.current, v
	return v, true
}

// length reads the rest of the items if it must.
func (l *loopState) length() int {
	if l.sized < 0 {
		var rest []any
		for v, ok := l.fetch(); ok; v, ok = l.fetch() {
			l.e.alloc(anyBytes)
			rest = append(rest, v)
		}
		l.sized = len(rest) + l.index0 + 1
		if l.peeked {
			l.sized++
		}
		i := 0
		l.ended = false
		l.source = func() (any, bool) {
			if i >= len(rest) {
				return nil, false
			}
			i++
			return rest[i-1], true
		}
	}
	return l.sized
}

// attr returns the attributes of loop.
func (l *loopState) attr(name string) (any, bool) {
	switch name {
	case "index":
		return l.index0 + 1, true
	case "index0":
		return l.index0, true
	case "revindex":
		return l.length() - l.index0, true
	case "revindex0":
		return l.length() - l.index0 - 1, true
	case "first":
		return l.index0 == 0, true
	case "last":
		_, more := l.peek()
		return !more, true
	case "length":
		return l.length(), true
	case "depth":
		return l.depth0 + 1, true
	case "depth0":
		return l.depth0, true
	case "previtem":
		if l.index0 == 0 {
			return &undefined{message: "there is no previous item"}, true
		}
		return l.before, true
	case "nextitem":
		if v, ok := l.peek(); ok {
			return v, true
		}
		return &undefined{message: "there is no next item"}, true
	}
	return nil, false
}

func (s *forStmt) exec(e *evaluator) {
	items := s.iter.eval(e)
	e.at = s.pos
	if !s.recursive {
		e.runLoop(s, e.newLoop(s, items, 0))
		return
	}
	home := e.scope
	e.share()
	e.writeValue(e.recurse(s, home, items, 0))
}

// recurse renders a recursive loop, and is what loop(...) calls.
func (e *evaluator) recurse(s *forStmt, home *scope, items any, depth0 int) string {
	e.enterCall()
	outer, out := e.scope, e.out
	e.scope, e.out = home, output{}
	l := e.newLoop(s, items, depth0)
	l.recurse = func(inner any) string { return e.recurse(s, home, inner, depth0+1) }
	e.runLoop(s, l)
	text := string(e.out.text)
	e.scope, e.out = outer, out
	e.text(2 * len(text))
	e.leaveCall()
	return text
}

func (e *evaluator) runLoop(s *forStmt, l *loopState) {
	outer := e.scope
	frame := &scope{parent: outer}
	ran := false
	for {
		e.at = s.pos
		item, ok := l.next()
		if !ok {
			break
		}
		e.step()
		ran = true
		if frame.shared {
			frame = &scope{parent: outer}
		}
		frame.names, frame.values = frame.names[:0], frame.values[:0]
		e.scope = frame
		e.at = s.pos
		if s.target.multi {
			e.unpack(&s.target, item)
		} else {
			frame.names = append(frame.names, s.target.name)
			frame.values = append(frame.values, item)
		}
		frame.set("loop", l)
		e.exec(s.body)
		e.scope = outer
	}
	if !ran && s.orElse != nil {
		e.push()
		e.exec(s.orElse)
		e.scope = outer
	}
}

// makeLoopMethods makes the functions of loop.
func makeLoopMethods() map[string]*methodDef {
	return table(
		&methodDef{name: "cycle", variadic: true, call: func(e *evaluator, recv any, a *args) any {
			if len(a.pos) == 0 {
				fail(KindType, "no items for cycling given")
			}
			return a.pos[recv.(*loopState).index0%len(a.pos)]
		}},
		&methodDef{name: "changed", variadic: true, call: func(e *evaluator, recv any, a *args) any {
			l := recv.(*loopState)
			now := tuple(a.pos)
			if e.equal(l.changed, now, 0) {
				return false
			}
			l.changed = now
			return true
		}},
	)
}
