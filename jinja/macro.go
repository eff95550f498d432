package jinja

// macro is a macro or the body of a call block, with the variables it was defined among.
type macro struct {
	def   *macroDef
	scope *scope
}

func (m *macro) title() string {
	if m.def.name == "" {
		return "None"
	}
	return reprString(m.def.name)
}

// call renders the macro with the arguments given.
func (m *macro) call(e *evaluator, a *args) any {
	e.enterCall()
	outer, out := e.scope, e.out
	frame := &scope{parent: m.scope}
	e.scope, e.out = frame, output{}
	m.bind(e, frame, a)
	e.exec(m.def.body)
	text := string(e.out.text)
	e.scope, e.out = outer, out
	e.text(2 * len(text))
	e.leaveCall()
	return text
}

// bind sets the parameters and the special variables caller, kwargs and varargs.
func (m *macro) bind(e *evaluator, frame *scope, a *args) {
	def := m.def
	used := make([]bool, len(a.names))
	take := func(name string) (any, bool) {
		for i, n := range a.names {
			if n == name && !used[i] {
				used[i] = true
				return a.values[i], true
			}
		}
		return nil, false
	}
	explicitCaller := false
	var missing []int
	e.steps(len(def.params) * (1 + len(a.names)))
	for i, name := range def.params {
		explicitCaller = explicitCaller || name == "caller"
		if i < len(a.pos) {
			frame.set(name, a.pos[i])
		} else if v, ok := take(name); ok {
			frame.set(name, v)
		} else {
			missing = append(missing, i)
		}
	}
	if def.usesCaller && !explicitCaller {
		v, ok := take("caller")
		if !ok || v == nil {
			v = &undefined{message: "No caller defined"}
		}
		frame.set("caller", v)
	}
	m.bindRest(e, frame, a, used)
	for _, i := range missing {
		if d := i - (len(def.params) - len(def.defaults)); d >= 0 {
			frame.set(def.params[i], def.defaults[d].eval(e))
		} else {
			frame.set(def.params[i], &undefined{message: "parameter " + reprString(def.params[i]) + " was not provided"})
		}
	}
}

func (m *macro) bindRest(e *evaluator, frame *scope, a *args, used []bool) {
	def := m.def
	rest := newDict(0)
	for i, name := range a.names {
		if used[i] {
			continue
		}
		if !def.usesKwargs {
			if name == "caller" {
				fail(KindType, "macro %s was invoked with two values for the special caller argument. This is most likely a bug.", m.title())
			}
			fail(KindType, "macro %s takes no keyword argument %s", m.title(), reprString(name))
		}
		rest.set(e, name, a.values[i])
	}
	if def.usesKwargs {
		frame.set("kwargs", rest)
	}
	var extra []any
	if len(a.pos) > len(def.params) {
		extra = a.pos[len(def.params):]
	}
	if def.usesVar {
		frame.set("varargs", tuple(extra))
	} else if len(extra) > 0 {
		fail(KindType, "macro %s takes not more than %d argument(s)", m.title(), len(def.params))
	}
}

// attr returns what a template may read of a macro.
func (m *macro) attr(e *evaluator, name string) (any, bool) {
	switch name {
	case "name":
		if m.def.name == "" {
			return nil, true
		}
		return m.def.name, true
	case "arguments":
		names := make(tuple, len(m.def.params))
		for i, p := range m.def.params {
			names[i] = p
		}
		return names, true
	case "catch_kwargs":
		return m.def.usesKwargs, true
	case "catch_varargs":
		return m.def.usesVar, true
	case "caller":
		return m.def.usesCaller, true
	}
	return nil, false
}
