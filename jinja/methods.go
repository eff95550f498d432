package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// methodDef is a method of one of Python's types. Without a signature the
// arguments come as they are (variadic).
type methodDef struct {
	name     string
	sig      signature
	variadic bool
	call     func(e *evaluator, recv any, a *args) any // variadic
	bound    func(e *evaluator, recv any, a []any) any // by signature; absent where not given
	str      func(e *evaluator, s string, a []any) any // the same for strings
}

func (m *methodDef) apply(e *evaluator, recv any, a *args) any {
	if m.variadic {
		return m.call(e, recv, a)
	}
	values := m.sig.bind(m.name, a)
	if m.str != nil {
		s := recv.(string)
		e.scan(len(s))
		return m.str(e, s, values)
	}
	return m.bound(e, recv, values)
}

func table(defs ...*methodDef) map[string]*methodDef {
	t := make(map[string]*methodDef, len(defs))
	for _, d := range defs {
		t[d.name] = d
	}
	return t
}

// takes makes a signature whose parameters are by position only.
func takes(required int, params ...string) signature {
	return signature{params: params, required: required, posOnly: true}
}

// named makes a signature whose parameters may be given by name.
func named(required int, params ...string) signature {
	return signature{params: params, required: required}
}

func makeDictMethods() map[string]*methodDef {
	return table(
		&methodDef{name: "get", sig: takes(1, "key", "default"), bound: dictGet},
		&methodDef{name: "keys", bound: func(e *evaluator, v any, _ []any) any { return view(v, "keys") }},
		&methodDef{name: "values", bound: func(e *evaluator, v any, _ []any) any { return view(v, "values") }},
		&methodDef{name: "items", bound: func(e *evaluator, v any, _ []any) any { return view(v, "items") }},
		&methodDef{name: "copy", bound: func(e *evaluator, v any, _ []any) any { return v }},
		&methodDef{name: "fromkeys", sig: takes(1, "iterable", "value"), bound: dictFromKeys},
	)
}

func view(v any, kind string) any {
	m, _ := asMapping(v)
	return &mapView{kind, m}
}

func dictGet(e *evaluator, v any, a []any) any {
	m, _ := asMapping(v)
	if found, ok := m.get(e, a[0]); ok {
		return found
	}
	if a[1] == absent {
		return nil
	}
	return a[1]
}

func dictFromKeys(e *evaluator, _ any, a []any) any {
	value := a[1]
	if value == absent {
		value = nil
	}
	d := newDict(0)
	next := e.iterate(a[0])
	for k, ok := next(); ok; k, ok = next() {
		e.items(4)
		d.set(e, k, value)
	}
	return d
}

func makeListMethods() map[string]*methodDef {
	return table(
		&methodDef{name: "count", sig: takes(1, "value"), bound: func(e *evaluator, v any, a []any) any {
			n := 0
			for _, item := range e.collect(v) {
				if e.equal(item, a[0], 0) {
					n++
				}
			}
			return n
		}},
		&methodDef{name: "index", sig: takes(1, "value", "start", "stop"), bound: listIndex},
		&methodDef{name: "copy", bound: func(e *evaluator, v any, _ []any) any { return v }},
	)
}

func listIndex(e *evaluator, v any, a []any) any {
	if _, isRange := v.(rangeValue); isRange && (a[1] != absent || a[2] != absent) {
		fail(KindType, "range.index() takes exactly one argument")
	}
	items := e.collect(v)
	s := &sliceValue{}
	if a[1] != absent {
		s.start = toIndex(a[1], "index")
	}
	if a[2] != absent {
		s.stop = toIndex(a[2], "index")
	}
	start, _, n, _ := s.bounds(len(items))
	for i := start; i < start+n; i++ {
		if e.equal(items[i], a[0], 0) {
			return i
		}
	}
	fail(KindValue, "%s is not in %s", shortRepr(a[0]), typeName(v))
	return nil
}

func makeIntMethods() map[string]*methodDef {
	return table(
		&methodDef{name: "bit_length", bound: func(e *evaluator, v any, _ []any) any { return toBig(v).BitLen() }},
		&methodDef{name: "bit_count", bound: func(e *evaluator, v any, _ []any) any {
			n := 0
			for b := new(big.Int).Abs(toBig(v)); b.Sign() > 0; b.Rsh(b, 1) {
				e.steps(1 + b.BitLen()/64)
				n += int(b.Bit(0))
			}
			return n
		}},
		&methodDef{name: "conjugate", bound: func(e *evaluator, v any, _ []any) any { return e.negate(v, true) }},
		&methodDef{name: "as_integer_ratio", bound: func(e *evaluator, v any, _ []any) any {
			return tuple{e.negate(v, true), 1}
		}},
	)
}

func makeFloatMethods() map[string]*methodDef {
	return table(
		&methodDef{name: "is_integer", bound: func(e *evaluator, v any, _ []any) any {
			f := v.(float64)
			return f == math.Trunc(f) && !math.IsInf(f, 0)
		}},
		&methodDef{name: "conjugate", bound: func(e *evaluator, v any, _ []any) any { return v }},
		&methodDef{name: "as_integer_ratio", bound: func(e *evaluator, v any, _ []any) any {
			r := new(big.Rat).SetFloat64(v.(float64))
			if r == nil {
				fail(KindLimit, "cannot convert %s to integer ratio", formatFloat(v.(float64)))
			}
			return tuple{shrink(new(big.Int).Set(r.Num())), shrink(new(big.Int).Set(r.Denom()))}
		}},
		&methodDef{name: "hex", bound: func(e *evaluator, v any, _ []any) any { return floatHex(v.(float64)) }},
	)
}

// floatHex is float.hex: 0x1.8000000000000p+1.
func floatHex(f float64) string {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return formatFloat(f)
	}
	if f == 0 {
		return strings.TrimSuffix(formatFloat(f), "0.0") + "0x0.0p+0"
	}
	s := strconv.FormatFloat(f, 'x', 13, 64)
	at := strings.LastIndexByte(s, 'p')
	exp, _ := strconv.Atoi(s[at+1:])
	if exp >= 0 {
		return s[:at] + "p+" + strconv.Itoa(exp)
	}
	return s[:at] + "p" + strconv.Itoa(exp)
}

func makeBytesMethods() map[string]*methodDef {
	return table(
		&methodDef{name: "decode", sig: named(0, "encoding", "errors"), bound: func(e *evaluator, v any, _ []any) any {
			return string(v.(textBytes))
		}},
		&methodDef{name: "hex", bound: func(e *evaluator, v any, _ []any) any {
			b := v.(textBytes)
			e.text(2 * len(b))
			const digits = "0123456789abcdef"
			out := make([]byte, 0, 2*len(b))
			for i := range len(b) {
				out = append(out, digits[b[i]>>4], digits[b[i]&15])
			}
			return string(out)
		}},
	)
}

func makeCyclerMethods() map[string]*methodDef {
	return table(
		&methodDef{name: "next", bound: func(e *evaluator, v any, _ []any) any {
			c := v.(*cycler)
			now := c.items[c.at]
			c.at = (c.at + 1) % len(c.items)
			return now
		}},
		&methodDef{name: "reset", bound: func(e *evaluator, v any, _ []any) any {
			v.(*cycler).at = 0
			return nil
		}},
	)
}
