package jinja

import (
	"math/big"
	"strconv"
)

// tupleOptions steers where a list of expressions without brackets may stand and end.
type tupleOptions struct {
	simple   bool // only names and literals: assignment targets
	cond     bool // an inline if may follow
	explicit bool // inside parentheses: may be empty
}

func (p *parser) tuple(o tupleOptions) expr {
	var items []expr
	isTuple := false
	tallest := 0
	pos := p.cur().pos
	for {
		if len(items) > 0 {
			p.expect(tokComma)
		}
		t := p.cur()
		if t.kind == tokVariableEnd || t.kind == tokBlockEnd || t.kind == tokRParen {
			break
		}
		switch {
		case o.simple:
			items = append(items, p.primary())
		case o.cond || o.explicit:
			items = append(items, p.expression())
		default:
			items = append(items, p.or())
		}
		tallest = max(tallest, p.height)
		if p.cur().kind != tokComma {
			break
		}
		isTuple = true
	}
	if !isTuple {
		if len(items) > 0 {
			return items[0]
		}
		if !o.explicit {
			p.failAt(p.cur().pos, "Expected an expression, got %s", reprString(p.cur().describe()))
		}
	}
	p.grow(pos, tallest)
	return &tupleExpr{items}
}

// expression parses an expression with an optional inline if.
func (p *parser) expression() expr {
	pos := p.cur().pos
	p.enter(pos)
	defer p.leave()
	unknown := len(p.unknown)
	x := p.or()
	if !p.isName("if") {
		return x
	}
	// What the parts of an inline if name may be missing: an error only when it is reached.
	p.unknown = p.unknown[:unknown]
	soft := p.soft
	p.soft = true
	height := p.height
	for p.skipName("if") {
		test := p.or()
		height = max(height, p.height)
		var no expr
		if p.skipName("else") {
			no = p.expression()
			height = max(height, p.height)
		}
		x = &condExpr{pos, test, x, no}
		p.grow(pos, height)
		height = p.height
	}
	p.soft = soft
	return x
}

func (p *parser) or() expr {
	x := p.and()
	for p.isName("or") {
		height, pos := p.height, p.next().pos
		x = &logicOr{x, p.and()}
		p.grow(pos, max(height, p.height))
	}
	return x
}

func (p *parser) and() expr {
	x := p.not()
	for p.isName("and") {
		height, pos := p.height, p.next().pos
		x = &logicAnd{x, p.not()}
		p.grow(pos, max(height, p.height))
	}
	return x
}

func (p *parser) not() expr {
	if p.isName("not") {
		pos := p.next().pos
		p.enter(pos)
		x := p.not()
		p.leave()
		p.grow(pos, p.height)
		return &notExpr{x}
	}
	return p.compare()
}

var comparisons = [...]comparison{tokEq: cmpEq, tokNe: cmpNe, tokGt: cmpGt, tokGtEq: cmpGe, tokLt: cmpLt, tokLtEq: cmpLe}

func (p *parser) compare() expr {
	x := p.sum()
	height, pos := p.height, p.cur().pos
	var ops []compareOp
	for {
		t := p.cur()
		var op comparison
		switch {
		case t.kind >= tokEq && t.kind <= tokLtEq:
			op = comparisons[t.kind]
		case p.isName("in"):
			op = cmpIn
		case p.isName("not") && p.look().kind == tokName && p.look().text == "in":
			p.next()
			op = cmpNotIn
		default:
			if ops == nil {
				return x
			}
			p.grow(pos, height)
			if first := ops[0]; len(ops) == 1 && (first.op == cmpIn || first.op == cmpNotIn) {
				p.narrow(first.right, x)
			}
			return &compareExpr{pos, x, ops}
		}
		p.next()
		ops = append(ops, compareOp{op, p.sum()})
		height = max(height, p.height)
	}
}

func (p *parser) binary(next func() expr, ops ...tokenKind) expr {
	x := next()
	for {
		kind := p.cur().kind
		found := false
		for _, op := range ops {
			found = found || kind == op
		}
		if !found {
			return x
		}
		height, pos := p.height, p.next().pos
		x = &binaryExpr{pos, kind, x, next()}
		p.grow(pos, max(height, p.height))
	}
}

func (p *parser) sum() expr     { return p.binary(p.concat, tokAdd, tokSub) }
func (p *parser) product() expr { return p.binary(p.power, tokMul, tokDiv, tokFloorDiv, tokMod) }
func (p *parser) power() expr   { return p.binary(p.unaryFiltered, tokPow) }

func (p *parser) concat() expr {
	x := p.product()
	if p.cur().kind != tokTilde {
		return x
	}
	height, pos := p.height, p.cur().pos
	parts := []expr{x}
	for p.skip(tokTilde) {
		parts = append(parts, p.product())
		height = max(height, p.height)
	}
	p.grow(pos, height)
	return &concatExpr{pos, parts}
}

func (p *parser) unaryFiltered() expr { return p.unary(true) }

func (p *parser) unary(filtered bool) expr {
	var x expr
	switch t := p.cur(); t.kind {
	case tokSub, tokAdd:
		pos, kind := t.pos, t.kind
		p.next()
		p.enter(pos)
		x = &unaryExpr{pos, kind, p.unary(false)}
		p.leave()
		p.grow(pos, p.height)
	default:
		x = p.primary()
	}
	x = p.postfix(x)
	if filtered {
		x = p.filterChain(x)
	}
	return x
}

func (p *parser) primary() expr {
	t := p.cur()
	p.height = 1
	switch t.kind {
	case tokName:
		p.next()
		return p.name(t)
	case tokString:
		p.next()
		text := t.text
		for p.cur().kind == tokString {
			text += p.next().text
		}
		return &constExpr{text}
	case tokInteger:
		p.next()
		return &constExpr{p.integer(t)}
	case tokFloat:
		p.next()
		f, _ := strconv.ParseFloat(t.text, 64)
		return &constExpr{f}
	case tokLParen:
		p.next()
		p.enter(t.pos)
		x := p.tuple(tupleOptions{explicit: true, cond: true})
		p.leave()
		p.expect(tokRParen)
		return x
	case tokLBracket:
		return p.list()
	case tokLBrace:
		return p.dict()
	}
	p.failAt(t.pos, "unexpected %s", reprString(t.describe()))
	return nil
}

func (p *parser) name(t token) expr {
	switch t.text {
	case "true", "True":
		return &constExpr{true}
	case "false", "False":
		return &constExpr{false}
	case "none", "None":
		return &constExpr{nil}
	case "caller", "kwargs", "varargs":
		for _, m := range p.macros {
			m.usesCaller = m.usesCaller || t.text == "caller"
			m.usesKwargs = m.usesKwargs || t.text == "kwargs"
			m.usesVar = m.usesVar || t.text == "varargs"
		}
	}
	p.read = append(p.read, t.text)
	p.paths[t.text]++
	return &nameExpr{t.pos, t.text}
}

func (p *parser) integer(t token) any {
	if len(t.text) < 19 {
		if n, err := strconv.ParseInt(t.text, 0, 64); err == nil {
			return int(n)
		}
	}
	if len(t.text) > maxIntDigits {
		p.failAt(t.pos, "an integer literal has more than %d digits", maxIntDigits)
	}
	n, ok := new(big.Int).SetString(t.text, 0)
	if !ok {
		p.failAt(t.pos, "%s is not an integer", t.text)
	}
	return shrink(n)
}

func (p *parser) list() expr {
	pos := p.expect(tokLBracket).pos
	p.enter(pos)
	var items []expr
	height := 0
	for p.cur().kind != tokRBracket {
		if len(items) > 0 {
			p.expect(tokComma)
		}
		if p.cur().kind == tokRBracket {
			break
		}
		items = append(items, p.expression())
		height = max(height, p.height)
	}
	p.expect(tokRBracket)
	p.leave()
	p.grow(pos, height)
	return &listExpr{items}
}

func (p *parser) dict() expr {
	d := &dictExpr{pos: p.expect(tokLBrace).pos}
	p.enter(d.pos)
	height := 0
	for p.cur().kind != tokRBrace {
		if len(d.keys) > 0 {
			p.expect(tokComma)
		}
		if p.cur().kind == tokRBrace {
			break
		}
		d.keys = append(d.keys, p.expression())
		height = max(height, p.height)
		p.expect(tokColon)
		d.values = append(d.values, p.expression())
		height = max(height, p.height)
	}
	p.expect(tokRBrace)
	p.leave()
	p.grow(d.pos, height)
	return d
}
