package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// valueFilters are the filters over single values, mostly numbers.
func valueFilters() []*filterDef {
	return []*filterDef{
		{name: "default", sig: named(0, "default_value", "boolean"), bound: filterDefault},
		{name: "abs", bound: filterAbs},
		{name: "int", sig: named(0, "default", "base"), bound: filterInt},
		{name: "float", sig: named(0, "default"), bound: filterFloat},
		{name: "round", sig: named(0, "precision", "method"), bound: filterRound},
		{name: "tobytes", bound: filterToBytes},
		{name: "attr", sig: named(1, "name"), bound: filterAttr},
	}
}

func filterDefault(e *evaluator, v any, a []any) any {
	_, missing := v.(*undefined)
	if missing || flag(a[1]) && !truth(v) {
		return orElse(a[0], "")
	}
	return v
}

func filterAbs(e *evaluator, v any, _ []any) any {
	switch n := norm(v).(type) {
	case int, bool, *big.Int:
		if toBig(n).Sign() < 0 {
			return e.negate(n, false)
		}
		return e.negate(n, true)
	case float64:
		return math.Abs(n)
	}
	fail(KindType, "bad operand type for abs(): '%s'", typeName(norm(v)))
	return nil
}

// filterAttr looks at attributes only, never at the keys of a mapping.
func filterAttr(e *evaluator, v any, a []any) any {
	name := needStr(a[0], "the name of an attribute")
	v = mustDefined(norm(v))
	if _, isMap := asMapping(v); isMap {
		if isUnsafe(v, name) {
			return e.methodOrUndefined(v, name)
		}
		if def := dictMethods[name]; def != nil {
			return &method{v, name, def}
		}
		return &undefined{of: v, name: name}
	}
	return e.attr(v, name)
}

// parseInt is int(text, base).
func parseInt(s string, base int) (any, bool) {
	s = strings.TrimFunc(s, isPythonSpace)
	negative := strings.HasPrefix(s, "-")
	if negative || strings.HasPrefix(s, "+") {
		s = s[1:]
	}
	s = plainDigits(s)
	if len(s) > 1 && s[0] == '0' {
		prefix := map[byte]int{'x': 16, 'o': 8, 'b': 2}[s[1]|0x20]
		if prefix != 0 && (prefix == base || base == 0) {
			s, base = strings.TrimPrefix(s[2:], "_"), prefix
		} else if base == 0 && strings.Trim(s, "0_") != "" {
			return nil, false
		}
	}
	if base == 0 {
		base = 10
	}
	if s == "" || s[0] == '_' || s[len(s)-1] == '_' || strings.Contains(s, "__") || s[0] == '+' || s[0] == '-' {
		return nil, false
	}
	s = strings.ReplaceAll(s, "_", "")
	if len(s) > maxIntDigits && base&(base-1) != 0 || len(s) > maxIntBits/2 {
		return nil, false
	}
	n, ok := new(big.Int).SetString(s, base)
	if !ok {
		return nil, false
	}
	if negative {
		n.Neg(n)
	}
	return shrink(n), true
}

// plainDigits turns decimal digits of any script into ASCII ones.
func plainDigits(s string) string {
	if isASCII(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if d := digitValue(r); d >= 0 {
			return rune('0' + d)
		}
		return r
	}, s)
}

// parseFloat is float(text).
func parseFloat(s string) (float64, bool) {
	s = plainDigits(strings.TrimFunc(s, isPythonSpace))
	body := strings.ToLower(strings.TrimLeft(s, "+-"))
	if len(s)-len(body) > 1 {
		return 0, false
	}
	switch body {
	case "inf", "infinity", "nan":
		f, err := strconv.ParseFloat(s, 64)
		return f, err == nil
	}
	for i := range len(body) {
		switch c := body[i]; {
		case isDecimal(c), c == '.', c == 'e', (c == '+' || c == '-') && i > 0:
		case c == '_' && i > 0 && i+1 < len(body) && isDecimal(body[i-1]) && isDecimal(body[i+1]):
		default:
			return 0, false
		}
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}

func filterInt(e *evaluator, v any, a []any) any {
	def := orElse(a[0], 0)
	v = norm(v)
	switch n := v.(type) {
	case string:
		e.steps(len(n))
		base := intArg(a[1], 10, "base")
		if base == 0 || base >= 2 && base <= 36 {
			if i, ok := parseInt(n, base); ok {
				return i
			}
		}
		f, ok := parseFloat(n)
		if !ok || math.IsNaN(f) {
			return def
		}
		return intOfFloat(f)
	case float64:
		if math.IsNaN(n) {
			return def
		}
		return intOfFloat(n)
	case int, bool, *big.Int:
		return e.negate(n, true)
	}
	mustDefined(v)
	return def
}

func filterFloat(e *evaluator, v any, a []any) any {
	v = norm(v)
	if s, ok := v.(string); ok {
		e.steps(len(s))
		if f, ok := parseFloat(s); ok {
			return f
		}
	} else if isNumber(v) {
		return toFloat(v)
	}
	mustDefined(v)
	return orElse(a[0], 0.0)
}

// filterToBytes reads a size as Kubernetes writes it and returns whole bytes, rounded up as
// Kubernetes does.
func filterToBytes(e *evaluator, v any, _ []any) any {
	var size string
	switch v := mustDefined(norm(v)).(type) {
	case string:
		size = v
	case int, float64, *big.Int:
		size = e.str(v)
	default:
		fail(KindType, "the filter tobytes takes a string or a number, not %s", typeName(v))
	}
	e.steps(len(size))
	bytes, err := parseSize(size)
	if err != nil {
		fail(KindValue, "the filter tobytes: %v", err)
	}
	return bytes
}

func filterRound(e *evaluator, v any, a []any) any {
	v = norm(v)
	method := orElse(a[1], "common")
	switch method {
	case "common", "ceil", "floor":
	default:
		fail(KindRuntime, "method must be common, ceil or floor")
	}
	if !isNumber(v) {
		if method != "common" {
			mustDefined(v)
		}
		fail(KindType, "type %s doesn't define __round__ method", typeName(v))
	}
	if method == "common" && a[0] == nil {
		if f, ok := v.(float64); ok {
			return intOfFloat(math.RoundToEven(f))
		}
		return e.negate(v, true)
	}
	digits := intArg(a[0], 0, "precision")
	if method == "common" {
		if f, ok := v.(float64); ok {
			return roundFloat(f, digits)
		}
		return e.roundInt(v, digits)
	}
	scale := e.binary(tokPow, 10, orElse(a[0], 0))
	scaled := e.binary(tokMul, v, scale)
	if f, ok := scaled.(float64); ok {
		if method == "ceil" {
			f = math.Ceil(f)
		} else {
			f = math.Floor(f)
		}
		scaled = intOfFloat(f)
	}
	return e.binary(tokDiv, scaled, scale)
}

// roundFloat rounds the exact value of f to a number of decimals, halves to even.
func roundFloat(f float64, digits int) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) || digits > 323 {
		return f
	}
	if digits >= 0 {
		r, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
		return r
	}
	if digits < -308 {
		return math.Copysign(0, f)
	}
	n, _ := new(big.Float).SetFloat64(f).Int(nil)
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-digits)), nil)
	exact := new(big.Rat).SetFloat64(f)
	q := new(big.Int).Div(n, scale) // floor for a positive scale, up to the cut fraction
	low := new(big.Rat).SetInt(new(big.Int).Mul(q, scale))
	diff := exact.Sub(exact, low)
	half := new(big.Rat).SetFrac(scale, big.NewInt(2))
	if c := diff.Cmp(half); c > 0 || c == 0 && q.Bit(0) == 1 {
		q.Add(q, big.NewInt(1))
	}
	r, _ := new(big.Float).SetInt(q.Mul(q, scale)).Float64()
	if r == 0 {
		return math.Copysign(0, f)
	}
	if math.IsInf(r, 0) {
		fail(KindLimit, "rounded value too large to represent")
	}
	return r
}

// roundInt rounds an integer to tens, hundreds and so on, halves to even.
func (e *evaluator) roundInt(v any, digits int) any {
	n := toBig(v)
	if digits >= 0 {
		return e.negate(v, true)
	}
	if -digits > len(n.Text(10))+1 {
		return 0
	}
	e.steps(n.BitLen())
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-digits)), nil)
	q, r := new(big.Int).DivMod(n, scale, new(big.Int))
	if c := r.Lsh(r, 1).Cmp(scale); c > 0 || c == 0 && q.Bit(0) == 1 {
		q.Add(q, big.NewInt(1))
	}
	return shrink(q.Mul(q, scale))
}
