package jinja

// postfix parses attributes, subscripts and calls after x.
func (p *parser) postfix(x expr) expr {
	for {
		switch p.cur().kind {
		case tokDot, tokLBracket:
			x = p.subscript(x)
		case tokLParen:
			x = p.call(x)
		default:
			return x
		}
	}
}

// filterChain parses filters, tests and calls after x.
func (p *parser) filterChain(x expr) expr {
	for {
		switch t := p.cur(); {
		case t.kind == tokPipe:
			x = p.filters(x, false)
		case t.kind == tokName && t.text == "is":
			x = p.test(x)
		case t.kind == tokLParen:
			x = p.call(x)
		default:
			return x
		}
	}
}

func (p *parser) call(callee expr) expr {
	pos, height := p.cur().pos, p.height
	args := p.callArgs()
	if method, ok := callee.(*attrExpr); ok && method.name == "get" && len(args.pos) > 0 {
		p.narrow(method.object, args.pos[0])
	}
	p.grow(pos, max(height, p.height))
	return &callExpr{pos, callee, args}
}

func (p *parser) subscript(object expr) expr {
	height := p.height
	t := p.next()
	if t.kind == tokDot {
		attr := p.next()
		p.grow(t.pos, height)
		switch attr.kind {
		case tokName:
			if p.cur().kind != tokLParen { // a method is no key
				p.narrow(object, &constExpr{attr.text})
			}
			return &attrExpr{attr.pos, object, attr.text}
		case tokInteger:
			return &itemExpr{attr.pos, object, &constExpr{p.integer(attr)}}
		}
		p.failAt(attr.pos, "expected name or number")
	}
	p.enter(t.pos)
	var items []expr
	for p.cur().kind != tokRBracket {
		if len(items) > 0 {
			p.expect(tokComma)
		}
		items = append(items, p.subscribed())
		height = max(height, p.height)
	}
	p.expect(tokRBracket)
	p.leave()
	p.grow(t.pos, height)
	if len(items) == 1 {
		p.narrow(object, items[0])
		return &itemExpr{t.pos, object, items[0]}
	}
	for _, item := range items {
		if _, isSlice := item.(*sliceExpr); isSlice {
			p.failAt(t.pos, "a slice cannot stand among several subscripts")
		}
	}
	return &itemExpr{t.pos, object, &tupleExpr{items}}
}

// subscribed parses an index or a slice.
func (p *parser) subscribed() expr {
	s := &sliceExpr{}
	height := 0
	part := func() expr {
		switch p.cur().kind {
		case tokColon, tokRBracket, tokComma:
			return nil
		}
		x := p.expression()
		height = max(height, p.height)
		return x
	}
	if p.cur().kind != tokColon {
		s.start = p.expression()
		height = p.height
		if p.cur().kind != tokColon {
			return s.start
		}
	}
	pos := p.next().pos
	s.stop = part()
	if p.skip(tokColon) {
		s.step = part()
	}
	p.grow(pos, height)
	return s
}

var noArgs = &argExprs{}

func (p *parser) callArgs() *argExprs {
	open := p.expect(tokLParen)
	if p.skip(tokRParen) {
		p.height = 1
		return noArgs
	}
	p.enter(open.pos)
	a := &argExprs{}
	height := 0
	ensure := func(ok bool) {
		if !ok {
			p.failAt(open.pos, "invalid syntax for function call expression")
		}
	}
	for first := true; p.cur().kind != tokRParen; first = false {
		if !first {
			p.expect(tokComma)
			if p.cur().kind == tokRParen {
				break
			}
		}
		switch t := p.cur(); {
		case t.kind == tokMul:
			ensure(a.star == nil && a.starStar == nil)
			p.next()
			a.star = p.expression()
		case t.kind == tokPow:
			ensure(a.starStar == nil)
			p.next()
			a.starStar = p.expression()
		case t.kind == tokName && p.look().kind == tokAssign:
			ensure(a.starStar == nil)
			for _, name := range a.names {
				if name == t.text {
					p.failAt(t.pos, "keyword argument repeated: %s", name)
				}
			}
			p.next()
			p.next()
			a.names = append(a.names, t.text)
			a.values = append(a.values, p.expression())
		default:
			ensure(a.star == nil && a.starStar == nil && len(a.names) == 0)
			a.pos = append(a.pos, p.expression())
		}
		height = max(height, p.height)
	}
	p.expect(tokRParen)
	p.leave()
	p.height = height
	return a
}

// dottedName parses the name of a filter or test.
func (p *parser) dottedName() (string, int) {
	t := p.expect(tokName)
	name := t.text
	for p.skip(tokDot) {
		name += "." + p.expect(tokName).text
	}
	return name, t.pos
}

// filters parses a chain of filters; with inline, the first has no pipe before it.
func (p *parser) filters(x expr, inline bool) expr {
	for inline || p.cur().kind == tokPipe {
		height := p.height
		if !inline {
			p.next()
		}
		inline = false
		name, pos := p.dottedName()
		args := noArgs
		if p.cur().kind == tokLParen {
			args = p.callArgs()
			height = max(height, p.height)
		}
		def := filterTable[name]
		if def == nil {
			p.missing(pos, missingFilter(name))
		}
		p.grow(pos, height)
		x = &filterExpr{pos, x, name, def, args}
	}
	return x
}

// test parses "is [not] name [argument]".
func (p *parser) test(x expr) expr {
	height := p.height
	p.next()
	negate := p.skipName("not")
	name, pos := p.dottedName()
	args := noArgs
	t := p.cur()
	switch t.kind {
	case tokLParen:
		args = p.callArgs()
		height = max(height, p.height)
	case tokName, tokString, tokInteger, tokFloat, tokLBracket, tokLBrace:
		if t.kind == tokName && (t.text == "else" || t.text == "or" || t.text == "and") {
			break
		}
		if t.kind == tokName && t.text == "is" {
			p.failAt(t.pos, "You cannot chain multiple tests with is")
		}
		p.enter(t.pos)
		args = &argExprs{pos: []expr{p.postfix(p.primary())}}
		p.leave()
		height = max(height, p.height)
	}
	def := testTable[name]
	if def == nil {
		p.missing(pos, missingTest(name))
	}
	p.grow(pos, height)
	return &testExpr{pos, x, name, def, args, negate}
}

// missing notes a filter or test that does not exist. Inside an if that is an
// error only when it is reached, so that a template may ask first.
func (p *parser) missing(pos int, message string) {
	if !p.soft {
		p.unknown = append(p.unknown, token{tokError, pos, message})
	}
}

func missingFilter(name string) string {
	if reason, ok := absentFilters[name]; ok {
		return "The filter '" + name + "' is not available: " + reason + "."
	}
	return "No filter named '" + name + "'."
}

func missingTest(name string) string { return "No test named '" + name + "'." }
