package jinja

import (
	"bytes"
	"math/big"
	"strconv"
	"strings"
)

// evaluator holds the state of one run of one template.
type evaluator struct {
	*budget
	tmpl  *Template
	vars  map[string]any
	at    int    // byte offset of the operation under way, for errors
	scope *scope // the innermost variables
	root  *scope
	out   output // what the template, macro or block being rendered has written
	calls int    // macros, blocks and recursive loops within one another

	filterInput any // the text that a filter block or a set block passes to its filter
	yaml        yamlFlag
}

// scope holds the variables of one frame. It has few names, so a linear
// search is faster than a map.
type scope struct {
	names  []string
	values []any
	parent *scope
	shared bool // a macro has captured it: it must not be used again
}

func (s *scope) set(name string, value any) {
	for i, n := range s.names {
		if n == name {
			s.values[i] = value
			return
		}
	}
	s.names = append(s.names, name)
	s.values = append(s.values, value)
}

// push opens a frame inside the current one and returns the one to go back to.
func (e *evaluator) push() *scope {
	outer := e.scope
	e.scope = &scope{parent: outer}
	return outer
}

// lookup finds a variable, a var or a global function.
func (e *evaluator) lookup(name string) (any, bool) {
	for s := e.scope; s != nil; s = s.parent {
		for i, n := range s.names {
			if n == name {
				return s.values[i], true
			}
		}
	}
	if v, ok := e.vars[name]; ok {
		switch fn := v.(type) {
		case Func:
			return &hostFunc{name, Function{Call: fn}}, true
		case Function:
			return &hostFunc{name, fn}, true
		}
		return norm(v), true
	}
	if g, ok := globalTable[name]; ok {
		return g, true
	}
	if name == "self" {
		return blockSet{}, true
	}
	return nil, false
}

func (x *constExpr) eval(e *evaluator) any { return x.value }

func (x *nameExpr) eval(e *evaluator) any {
	e.step()
	if v, ok := e.lookup(x.name); ok {
		return v
	}
	message := reprString(x.name) + " is undefined"
	if reason, ok := absentGlobals[x.name]; ok {
		message = reprString(x.name) + " is not available: " + reason
	}
	return &undefined{message: message}
}

func (e *evaluator) evalAll(items []expr) []any {
	e.items(len(items))
	out := make([]any, len(items))
	for i, x := range items {
		out[i] = x.eval(e)
	}
	return out
}

func (x *listExpr) eval(e *evaluator) any  { return e.evalAll(x.items) }
func (x *tupleExpr) eval(e *evaluator) any { return tuple(e.evalAll(x.items)) }

func (x *dictExpr) eval(e *evaluator) any {
	e.items(4 * len(x.keys))
	d := newDict(len(x.keys))
	for i, k := range x.keys {
		key := k.eval(e)
		value := x.values[i].eval(e)
		e.at = x.pos
		d.set(e, key, value)
	}
	return d
}

func (x *attrExpr) eval(e *evaluator) any {
	object := x.object.eval(e)
	e.at = x.pos
	e.step()
	return e.attr(object, x.name)
}

func (x *itemExpr) eval(e *evaluator) any {
	object := x.object.eval(e)
	index := x.index.eval(e)
	e.at = x.pos
	e.step()
	return e.item(object, index)
}

func (x *sliceExpr) eval(e *evaluator) any {
	part := func(p expr) any {
		if p == nil {
			return nil
		}
		return p.eval(e)
	}
	return &sliceValue{part(x.start), part(x.stop), part(x.step)}
}

func (x *unaryExpr) eval(e *evaluator) any {
	v := x.operand.eval(e)
	e.at = x.pos
	e.step()
	return e.negate(v, x.op == tokAdd)
}

func (x *binaryExpr) eval(e *evaluator) any {
	left := x.left.eval(e)
	right := x.right.eval(e)
	e.at = x.pos
	e.step()
	return e.binary(x.op, left, right)
}

// binary applies an arithmetic operator to any two values.
func (e *evaluator) binary(op tokenKind, a, b any) any {
	if isNumber(a) && isNumber(b) {
		return e.arith(op, a, b)
	}
	if op == tokMod {
		if s, ok := a.(string); ok {
			return e.percent(s, b)
		}
	}
	mustDefined(a)
	mustDefined(b)
	switch op {
	case tokAdd:
		return e.add(a, b)
	case tokMul:
		if r, ok := e.repeat(a, b); ok {
			return r
		}
		if r, ok := e.repeat(b, a); ok {
			return r
		}
	}
	failOperands(op, a, b)
	return nil
}

// add concatenates sequences.
func (e *evaluator) add(a, b any) any {
	switch x := a.(type) {
	case string:
		if y, ok := b.(string); ok {
			e.text(len(x) + len(y))
			return x + y
		}
		fail(KindType, "can only concatenate str (not \"%s\") to str", typeName(b))
	case textBytes:
		if y, ok := b.(textBytes); ok {
			e.text(len(x) + len(y))
			return x + y
		}
	case []any:
		if y, ok := b.([]any); ok {
			return e.join2(x, y)
		}
		fail(KindType, "can only concatenate list (not \"%s\") to list", typeName(b))
	case tuple, *group:
		if typeName(b) == "tuple" {
			s, _ := sequence(a)
			t, _ := sequence(b)
			return tuple(e.join2(s, t))
		}
		fail(KindType, "can only concatenate tuple (not \"%s\") to tuple", typeName(b))
	}
	failOperands(tokAdd, a, b)
	return nil
}

func (e *evaluator) join2(a, b []any) []any {
	e.items(len(a) + len(b))
	out := make([]any, 0, len(a)+len(b))
	return append(append(out, a...), b...)
}

// repeat is a sequence times an integer.
func (e *evaluator) repeat(v, times any) (any, bool) {
	items, isSeq := sequence(v)
	s, isString := v.(string)
	if !isSeq && !isString {
		return nil, false
	}
	var n int
	switch classOf(times) {
	case smallInt:
		n = max(toSmall(times), 0)
	case bigInt:
		n = max(0, toBig(times).Sign()*maxRepeat)
	default:
		fail(KindType, "can't multiply sequence by non-int of type '%s'", typeName(times))
	}
	if n = min(n, maxRepeat); isString {
		return e.repeatString(s, n), true
	}
	e.pad(n*len(items), anyBytes)
	out := make([]any, 0, n*len(items))
	for range n {
		if len(items) == 0 {
			break
		}
		out = append(out, items...)
	}
	if _, isList := v.([]any); isList {
		return out, true
	}
	return tuple(out), true
}

// maxRepeat is more than any budget allows and too little to overflow.
const maxRepeat = 1 << 31

func (e *evaluator) repeatString(s string, n int) string {
	if s == "" || n <= 0 {
		return ""
	}
	e.pad(n*len(s), 1)
	b := make([]byte, 0, n*len(s))
	for range n {
		b = append(b, s...)
	}
	return string(b)
}

func (x *concatExpr) eval(e *evaluator) any {
	size := 0
	parts := make([]string, len(x.parts))
	for i, p := range x.parts {
		parts[i] = e.str(p.eval(e))
		size += len(parts[i])
	}
	e.at = x.pos
	e.steps(len(parts))
	e.text(size)
	b := make([]byte, 0, size)
	for _, s := range parts {
		b = append(b, s...)
	}
	return string(b)
}

func (x *compareExpr) eval(e *evaluator) any {
	left := x.first.eval(e)
	for _, op := range x.ops {
		right := op.right.eval(e)
		e.at = x.pos
		e.step()
		if !e.compare(op.op, left, right) {
			return false
		}
		left = right
	}
	return true
}

func (x *notExpr) eval(e *evaluator) any { return !truth(x.operand.eval(e)) }

func (x *logicOr) eval(e *evaluator) any {
	if v := x.left.eval(e); truth(v) {
		return v
	}
	return x.right.eval(e)
}

func (x *logicAnd) eval(e *evaluator) any {
	if v := x.left.eval(e); !truth(v) {
		return v
	}
	return x.right.eval(e)
}

func (x *condExpr) eval(e *evaluator) any {
	e.step()
	if truth(x.test.eval(e)) {
		return x.yes.eval(e)
	}
	if x.no != nil {
		return x.no.eval(e)
	}
	e.at = x.pos
	return &undefined{message: "the inline if-expression evaluated to false and no else section was defined"}
}

func (x *filterExpr) eval(e *evaluator) any {
	input := e.filterInput
	if x.input != nil {
		input = x.input.eval(e)
	}
	a := e.args(x.args)
	e.at = x.pos
	e.step()
	if x.filter == nil {
		fail(KindRuntime, "%s", missingFilter(x.name))
	}
	return x.filter.apply(e, input, a)
}

func (x *testExpr) eval(e *evaluator) any {
	input := x.input.eval(e)
	a := e.args(x.args)
	e.at = x.pos
	e.step()
	if x.test == nil {
		fail(KindRuntime, "%s", missingTest(x.name))
	}
	return x.test.apply(e, input, a) != x.negate
}

// write adds text to the output.
func (e *evaluator) write(s string) {
	if len(e.out.text)+len(s) > e.maxOutput {
		fail(KindLimit, "the output is larger than %d bytes", e.maxOutput)
	}
	e.out.text = append(e.out.text, s...)
}

// output is text, with marks for EvaluateMarked.
type output struct {
	text  []byte
	marks Marks
}

// writeValue writes text that is not the template's own.
func (e *evaluator) writeValue(s string) {
	marks := e.out.marks
	if marks.Dollar == "" {
		e.write(s)
		return
	}
	if bytes.HasSuffix(e.out.text, []byte("$")) {
		e.write(marks.Edge)
	}
	e.write(strings.ReplaceAll(s, "$", marks.Dollar))
}

// finalize prints the value of {{ }}: a string, a number or a boolean, nothing else.
func (e *evaluator) finalize(v any) {
	switch v := v.(type) {
	case string:
		e.steps(len(v) / bytesPerStep)
		e.writeValue(v)
	case int:
		var digits [20]byte
		e.write(string(strconv.AppendInt(digits[:0], int64(v), 10)))
	case bool:
		e.write(boolName(v))
	case float64:
		e.write(formatFloat(v))
	case *big.Int:
		e.write(e.formatBig(v))
	case *undefined:
		fail(KindUndefined, "an expression must not evaluate to undefined: %s", v.text())
	default:
		fail(KindType, "an expression must evaluate to a string, a number or a boolean, not to %s; %s", typeName(v), finalizeAdvice(v))
	}
}

func finalizeAdvice(v any) string {
	switch v.(type) {
	case nil:
		return "give a default with: or ''"
	case *method, *builtin, *hostFunc, *macro:
		return "call it with ()"
	}
	return "use the filter tojson or join"
}
