package jinja

func (e *evaluator) exec(body []stmt) {
	for _, s := range body {
		e.step()
		s.exec(e)
	}
}

func (s *textStmt) exec(e *evaluator) {
	e.steps(len(s.text) / bytesPerStep)
	e.write(s.text)
}

func (s *outputStmt) exec(e *evaluator) {
	v := s.value.eval(e)
	e.at = s.pos
	e.finalize(v)
}

func (s *setStmt) exec(e *evaluator) {
	v := s.value.eval(e)
	e.at = s.pos
	e.assign(&s.target, v)
}

func (s *setBlockStmt) exec(e *evaluator) {
	outer := e.push()
	var v any = e.capture(s.body)
	if s.filter != nil {
		v = e.applyTo(s.filter, v)
	}
	e.scope = outer
	e.at = s.pos
	e.assign(&s.target, v)
}

// applyTo runs a filter chain that has no input of its own.
func (e *evaluator) applyTo(f *filterExpr, input any) any {
	saved := e.filterInput
	e.filterInput = input
	v := f.eval(e)
	e.filterInput = saved
	return v
}

// capture renders a body into a string.
func (e *evaluator) capture(body []stmt) string {
	saved := e.out
	e.out = output{}
	e.exec(body)
	text := string(e.out.text)
	e.out = saved
	e.text(2 * len(text))
	return text
}

// assign stores a value under a target in the current frame.
func (e *evaluator) assign(t *target, v any) {
	switch {
	case t.multi:
		e.unpack(t, v)
	case t.attr != "":
		e.step()
		ns, _ := e.lookup(t.name)
		n, ok := ns.(*namespace)
		if !ok {
			fail(KindRuntime, "cannot assign attribute on non-namespace object")
		}
		e.alloc(4 * anyBytes)
		n.vars.set(e, t.attr, v)
	default:
		e.step()
		e.scope.set(t.name, v)
		if t.name == "yaml" && e.scope == e.root {
			e.yaml = yamlFlag{set: true, value: v, pos: t.pos}
		}
	}
}

func (e *evaluator) unpack(t *target, v any) {
	for i, item := range e.unpackValues(t, v) {
		e.assign(&t.tuple[i], item)
	}
}

// unpackValues returns as many items as the target has parts.
func (e *evaluator) unpackValues(t *target, v any) []any {
	if _, ok := e.iterable(v); !ok {
		fail(KindType, "cannot unpack non-iterable %s object", typeName(v))
	}
	next := e.iterate(v)
	values := make([]any, 0, len(t.tuple))
	for item, ok := next(); ok; item, ok = next() {
		if len(values) == len(t.tuple) {
			fail(KindValue, "too many values to unpack (expected %d)", len(t.tuple))
		}
		values = append(values, item)
	}
	if len(values) < len(t.tuple) {
		fail(KindValue, "not enough values to unpack (expected %d, got %d)", len(t.tuple), len(values))
	}
	return values
}

func (s *ifStmt) exec(e *evaluator) {
	for i := range s.branches {
		e.step()
		if truth(s.branches[i].test.eval(e)) {
			e.exec(s.branches[i].body)
			return
		}
	}
	e.exec(s.orElse)
}

func (s *withStmt) exec(e *evaluator) {
	values := e.evalAll(s.values)
	outer := e.push()
	for i := range s.targets {
		e.at = s.pos
		e.assign(&s.targets[i], values[i])
	}
	e.exec(s.body)
	e.scope = outer
}

func (s *scopeStmt) exec(e *evaluator) {
	outer := e.push()
	e.exec(s.body)
	e.scope = outer
}

func (s *filterStmt) exec(e *evaluator) {
	outer := e.push()
	text := e.capture(s.body)
	v := e.applyTo(s.filter, text)
	e.scope = outer
	e.writeString(v, "a filter block")
}

// writeString adds a result that must be text.
func (e *evaluator) writeString(v any, what string) {
	s, ok := v.(string)
	if !ok {
		fail(KindType, "%s must give a string, not %s", what, typeName(v))
	}
	e.writeValue(s)
}

func (s *macroStmt) exec(e *evaluator) {
	e.step()
	e.alloc(8 * anyBytes)
	m := &macro{def: s.macro, scope: e.scope}
	e.share()
	e.at = s.macro.pos
	e.assign(&target{pos: s.macro.pos, name: s.macro.name}, m)
}

// share marks the open frames as captured, so that a loop makes new ones.
func (e *evaluator) share() {
	for s := e.scope; s != nil && !s.shared; s = s.parent {
		s.shared = true
	}
}

func (s *callStmt) exec(e *evaluator) {
	caller := &macro{def: s.caller, scope: e.scope}
	e.share()
	callee := s.call.callee.eval(e)
	a := e.args(s.call.args)
	with := &args{pos: a.pos, names: append(append([]string(nil), a.names...), "caller"), values: append(append([]any(nil), a.values...), caller)}
	e.at = s.call.pos
	v := e.call(callee, with)
	e.at = s.pos
	e.writeString(v, "a call block")
}

// exec renders a block where it stands: the variables of the template are
// visible in it, those of a loop or macro around it only when it is scoped.
func (s *blockStmt) exec(e *evaluator) {
	e.enterCall()
	outer := e.scope
	if !s.scoped {
		e.scope = e.root
	}
	e.push()
	e.exec(s.body)
	e.scope = outer
	e.leaveCall()
}

func (s *loaderStmt) exec(e *evaluator) {
	e.at = s.pos
	fail(KindType, "%s is not available: there is no loader for other templates", s.tag)
}

// enterCall counts a macro, a block or a recursive loop.
func (e *evaluator) enterCall() {
	e.calls++
	e.steps(4)
	if e.calls > e.maxDepth {
		fail(KindLimit, "macros, blocks and recursive loops call one another more than %d levels deep", e.maxDepth)
	}
}

func (e *evaluator) leaveCall() { e.calls-- }
