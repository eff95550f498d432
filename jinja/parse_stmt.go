package jinja

import "strings"

// statement parses one tag; the current token is the tag's name.
func (p *parser) statement() []stmt {
	t := p.cur()
	if t.kind != tokName {
		p.failAt(t.pos, "tag name expected")
	}
	parse := p.tagParser(t.text)
	if parse == nil {
		p.failUnclosed(t.pos, t.text)
	}
	p.tagStack = append(p.tagStack, t.text)
	s := parse()
	p.tagStack = p.tagStack[:len(p.tagStack)-1]
	return s
}

func (p *parser) tagParser(name string) func() []stmt {
	switch name {
	case "set":
		return p.setTag
	case "if":
		return p.ifTag
	case "for":
		return p.forTag
	case "with":
		return p.withTag
	case "macro":
		return p.macroTag
	case "call":
		return p.callTag
	case "filter":
		return p.filterTag
	case "print":
		return p.printTag
	case "block":
		return p.blockTag
	case "autoescape":
		return p.autoescapeTag
	case "include", "import", "from", "extends":
		return p.loaderTag
	}
	return nil
}

func (p *parser) setTag() []stmt {
	pos := p.next().pos
	to := p.assignTarget(tupleOptions{}, true)
	if p.skip(tokAssign) {
		return []stmt{&setStmt{pos, to, p.tuple(tupleOptions{cond: true})}}
	}
	var filter *filterExpr
	if f := p.filters(nil, false); f != nil {
		filter = f.(*filterExpr)
	}
	body := p.innerStatements("endset")
	p.next()
	return []stmt{&setBlockStmt{pos, to, filter, body}}
}

func (p *parser) ifTag() []stmt {
	s := &ifStmt{}
	soft := p.soft
	p.soft = true
	p.next()
	for {
		test := p.tuple(tupleOptions{})
		s.branches = append(s.branches, ifBranch{test, p.statements("elif", "else", "endif")})
		t := p.next()
		if t.text == "elif" {
			continue
		}
		if t.text == "else" {
			s.orElse = p.statements("endif")
			p.next()
		}
		p.soft = soft
		return []stmt{s}
	}
}

func (p *parser) forTag() []stmt {
	s := &forStmt{pos: p.next().pos}
	s.target = p.assignTarget(tupleOptions{}, false)
	p.rejectLoopTarget(s.target)
	p.expectName("in")
	s.iter = p.tuple(tupleOptions{})
	soft := p.soft
	p.soft = false
	if p.skipName("if") {
		s.test = p.expression()
	}
	s.recursive = p.skipName("recursive")
	p.loops++
	s.body = p.statements("endfor", "else")
	if p.next().text == "else" {
		s.orElse = p.statements("endfor")
		p.next()
	}
	p.loops--
	p.soft = soft
	return []stmt{s}
}

// rejectLoopTarget refuses assignments to the variable loop where it is special.
func (p *parser) rejectLoopTarget(t target) {
	if t.name == "loop" && t.attr == "" {
		p.failAt(t.pos, "Can't assign to special loop variable in for-loop target")
	}
	for _, part := range t.tuple {
		p.rejectLoopTarget(part)
	}
}

func (p *parser) withTag() []stmt {
	s := &withStmt{pos: p.next().pos}
	for p.cur().kind != tokBlockEnd {
		if len(s.targets) > 0 {
			p.expect(tokComma)
		}
		loops := p.loops
		p.loops = 0 // a name of its own may be called loop
		s.targets = append(s.targets, p.assignTarget(tupleOptions{}, false))
		p.loops = loops
		p.expect(tokAssign)
		s.values = append(s.values, p.expression())
	}
	s.body = p.innerStatements("endwith")
	p.next()
	return []stmt{s}
}

// signature parses the parameters of a macro or a call block.
func (p *parser) signature(m *macroDef) {
	p.expect(tokLParen)
	for p.cur().kind != tokRParen {
		if len(m.params) > 0 {
			p.expect(tokComma)
		}
		arg := p.nameTarget()
		for _, other := range m.params {
			if other == arg.name {
				p.failAt(arg.pos, "duplicate argument '%s' in macro definition", arg.name)
			}
		}
		if p.skip(tokAssign) {
			m.defaults = append(m.defaults, p.expression())
		} else if len(m.defaults) > 0 {
			p.failAt(p.cur().pos, "non-default argument follows default argument")
		}
		m.params = append(m.params, arg.name)
	}
	p.expect(tokRParen)
}

// macroBody parses a body and notes which special variables it uses.
func (p *parser) macroBody(m *macroDef, end string) {
	p.macros = append(p.macros, m)
	m.body = p.innerStatements(end)
	p.next()
	p.macros = p.macros[:len(p.macros)-1]
	for i, name := range m.params {
		switch name {
		case "kwargs":
			m.usesKwargs = false
		case "varargs":
			m.usesVar = false
		case "caller":
			if m.usesCaller && i < len(m.params)-len(m.defaults) {
				p.failAt(m.pos, "When defining macros or call blocks the special \"caller\" argument must be omitted or be given a default.")
			}
		}
	}
}

func (p *parser) macroTag() []stmt {
	m := &macroDef{pos: p.next().pos}
	m.name = p.nameTarget().name
	p.signature(m)
	p.macroBody(m, "endmacro")
	return []stmt{&macroStmt{m}}
}

func (p *parser) callTag() []stmt {
	pos := p.next().pos
	m := &macroDef{pos: pos}
	if p.cur().kind == tokLParen {
		p.signature(m)
	}
	call, ok := p.expression().(*callExpr)
	if !ok {
		p.failAt(pos, "expected call")
	}
	p.macroBody(m, "endcall")
	return []stmt{&callStmt{pos, call, m}}
}

func (p *parser) filterTag() []stmt {
	p.next()
	soft := p.soft
	p.soft = false
	f := p.filters(nil, true).(*filterExpr)
	p.soft = soft
	body := p.innerStatements("endfilter")
	p.next()
	return []stmt{&filterStmt{f, body}}
}

func (p *parser) printTag() []stmt {
	p.next()
	var out []stmt
	for p.cur().kind != tokBlockEnd {
		if len(out) > 0 {
			p.expect(tokComma)
		}
		pos := p.cur().pos
		out = append(out, &outputStmt{pos, p.expression()})
	}
	return out
}

func (p *parser) blockTag() []stmt {
	p.next()
	name := p.expect(tokName)
	s := &blockStmt{name: name.text}
	s.scoped = p.skipName("scoped")
	required := p.skipName("required")
	if p.cur().kind == tokSub {
		p.failAt(p.cur().pos, "Block names in Jinja have to be valid Python identifiers and may not contain hyphens, use an underscore instead.")
	}
	if p.blocks[s.name] != nil {
		p.repeated = append(p.repeated, token{tokError, name.pos, "block '" + s.name + "' defined twice"})
	}
	if p.blocks == nil {
		p.blocks = map[string]*blockStmt{}
	}
	p.blocks[s.name] = s
	s.body = p.innerStatements("endblock")
	p.next()
	if required {
		p.failAt(name.pos, "a required block is for templates that extend another, and extends is not available")
	}
	p.skipName(s.name)
	return []stmt{s}
}

// autoescapeTag accepts {% autoescape false %}, which changes nothing here.
func (p *parser) autoescapeTag() []stmt {
	pos := p.next().pos
	if c, ok := p.expression().(*constExpr); !ok || c.value != false {
		p.failAt(pos, "autoescape is not available: the output is never HTML; use the filter escape where it is")
	}
	body := p.innerStatements("endautoescape")
	p.next()
	return []stmt{&scopeStmt{body}}
}

// loaderTag parses the tags that need other templates; they fail when reached.
func (p *parser) loaderTag() []stmt {
	tag := p.next()
	p.expression()
	switch tag.text {
	case "include":
		if p.isName("ignore") && p.look().kind == tokName && p.look().text == "missing" {
			p.next()
			p.next()
		}
	case "import":
		p.expectName("as")
		p.nameTarget()
	case "from":
		p.expectName("import")
		for first := true; ; first = false {
			if !first {
				p.expect(tokComma)
			}
			if p.contextWords() {
				return []stmt{&loaderStmt{tag.pos, tag.text}}
			}
			if name := p.nameTarget(); strings.HasPrefix(name.name, "_") {
				p.failAt(name.pos, "names starting with an underline can not be imported")
			}
			if p.skipName("as") {
				p.nameTarget()
			}
			if p.contextWords() || p.cur().kind != tokComma {
				return []stmt{&loaderStmt{tag.pos, tag.text}}
			}
		}
	}
	if tag.text != "extends" {
		p.contextWords()
	}
	return []stmt{&loaderStmt{tag.pos, tag.text}}
}

func (p *parser) contextWords() bool {
	if (p.isName("with") || p.isName("without")) && p.look().kind == tokName && p.look().text == "context" {
		p.next()
		p.next()
		return true
	}
	return false
}

// nameTarget parses a single name that may be assigned to.
func (p *parser) nameTarget() target {
	t := p.expect(tokName)
	if isConstName(t.text) {
		p.failAt(t.pos, "can't assign to 'const'")
	}
	p.written = append(p.written, t.text)
	return target{pos: t.pos, name: t.text}
}

func isConstName(name string) bool {
	switch name {
	case "true", "false", "none", "True", "False", "None":
		return true
	}
	return false
}

// assignTarget parses what stands left of an equals sign or between for and in.
func (p *parser) assignTarget(o tupleOptions, namespace bool) target {
	if namespace && p.look().kind == tokDot {
		t := p.expect(tokName)
		p.next()
		p.read = append(p.read, t.text)
		p.paths[t.text]++
		return target{pos: t.pos, name: t.text, attr: p.expect(tokName).text}
	}
	o.simple = true
	pos := p.cur().pos
	t := p.toTarget(p.tuple(o), pos)
	if p.loops > 0 {
		p.rejectLoopTarget(t)
	}
	return t
}

func (p *parser) toTarget(x expr, pos int) target {
	switch x := x.(type) {
	case *nameExpr:
		p.written = append(p.written, x.name)
		return target{pos: x.pos, name: x.name}
	case *tupleExpr:
		t := target{pos: pos, multi: true}
		for _, item := range x.items {
			t.tuple = append(t.tuple, p.toTarget(item, pos))
		}
		return t
	}
	p.failAt(pos, "can't assign to '%s'", exprName(x))
	return target{}
}

func exprName(x expr) string {
	switch x.(type) {
	case *constExpr:
		return "const"
	case *listExpr:
		return "list"
	case *dictExpr:
		return "dict"
	case *callExpr:
		return "call"
	case *attrExpr:
		return "getattr"
	case *itemExpr:
		return "getitem"
	case *filterExpr:
		return "filter"
	}
	return "expression"
}
