package jinja

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"strings"
)

const (
	// maxIntDigits is Python's limit for turning an integer into text and back.
	maxIntDigits = 4300
	// maxIntBits bounds integers altogether.
	maxIntBits = 1 << 17
)

// shrink returns an integer as an int if it fits, so that *big.Int always means "large".
func shrink(n *big.Int) any {
	if n.IsInt64() {
		return int(n.Int64())
	}
	return n
}

func numberFromJSON(n json.Number) any {
	s := string(n)
	if i, err := strconv.Atoi(s); err == nil {
		return i
	}
	if !strings.ContainsAny(s, ".eE") && len(s) <= maxIntDigits {
		if b, ok := new(big.Int).SetString(s, 10); ok {
			return shrink(b)
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && math.IsNaN(f) {
		fail(KindValue, "%q is not a number", s)
	}
	return f
}

// intFromFloat returns the integer a float is equal to, if there is one.
func intFromFloat(f float64) (any, bool) {
	if f != math.Trunc(f) || math.IsInf(f, 0) {
		return nil, false
	}
	if math.Abs(f) < 1<<62 {
		return int(f), true
	}
	n, _ := big.NewFloat(f).Int(nil)
	return shrink(n), true
}

// number classes, in the order Python widens them
type numberClass uint8

const (
	notNumber numberClass = iota
	smallInt
	bigInt
	floating
)

func classOf(v any) numberClass {
	switch v.(type) {
	case int, bool:
		return smallInt
	case float64:
		return floating
	case *big.Int:
		return bigInt
	}
	return notNumber
}

func isNumber(v any) bool { return classOf(v) != notNumber }

func toSmall(v any) int {
	switch v := v.(type) {
	case int:
		return v
	case bool:
		if v {
			return 1
		}
	}
	return 0
}

func toBig(v any) *big.Int {
	if b, ok := v.(*big.Int); ok {
		return b
	}
	return big.NewInt(int64(toSmall(v)))
}

// toFloat converts any number; an integer too large is an error, as in Python.
func toFloat(v any) float64 {
	switch v := v.(type) {
	case float64:
		return v
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		if math.IsInf(f, 0) {
			fail(KindLimit, "int too large to convert to float")
		}
		return f
	}
	return float64(toSmall(v))
}

var opNames = map[tokenKind]string{
	tokAdd: "+", tokSub: "-", tokMul: "*", tokDiv: "/", tokFloorDiv: "//", tokMod: "%", tokPow: "** or pow()",
}

func failOperands(op tokenKind, a, b any) {
	fail(KindType, "unsupported operand type(s) for %s: '%s' and '%s'", opNames[op], typeName(a), typeName(b))
}

// arith does arithmetic on two numbers.
func (e *evaluator) arith(op tokenKind, a, b any) any {
	ca, cb := classOf(a), classOf(b)
	if ca == floating || cb == floating {
		if op == tokPow {
			e.steps(powSteps)
		}
		return floatArith(op, toFloat(a), toFloat(b))
	}
	if ca == smallInt && cb == smallInt {
		if r, ok := smallArith(op, toSmall(a), toSmall(b)); ok {
			return r
		}
	}
	return e.bigArith(op, toBig(a), toBig(b))
}

func smallArith(op tokenKind, x, y int) (any, bool) {
	switch op {
	case tokAdd:
		r := x + y
		return r, (r > x) == (y > 0)
	case tokSub:
		r := x - y
		return r, (r < x) == (y > 0)
	case tokMul:
		const half = 1 << 31
		if x > -half && x < half && y > -half && y < half {
			return x * y, true
		}
	case tokDiv:
		const exact = 1 << 53
		if y != 0 && x > -exact && x < exact && y > -exact && y < exact {
			return float64(x) / float64(y), true
		}
	case tokFloorDiv, tokMod:
		if y == 0 || x == math.MinInt {
			return nil, false
		}
		q, r := x/y, x%y
		if r != 0 && (r < 0) != (y < 0) {
			q--
			r += y
		}
		if op == tokMod {
			return r, true
		}
		return q, true
	}
	return nil, false
}

func (e *evaluator) bigArith(op tokenKind, x, y *big.Int) any {
	bits := max(x.BitLen(), y.BitLen())
	e.steps(bits / 64)
	r := new(big.Int)
	switch op {
	case tokAdd:
		r.Add(x, y)
	case tokSub:
		r.Sub(x, y)
	case tokMul:
		e.needBits(x.BitLen() + y.BitLen())
		e.steps(x.BitLen() / 64 * (y.BitLen() / 64) / 64)
		r.Mul(x, y)
	case tokPow:
		return e.intPow(x, y)
	case tokDiv:
		return bigTrueDiv(x, y)
	default:
		if y.Sign() == 0 {
			fail(KindArithmetic, "integer division or modulo by zero")
		}
		e.steps(x.BitLen() / 64 * (y.BitLen() / 64) / 16)
		m := new(big.Int)
		r.DivMod(x, y, m)
		// DivMod is Euclidean: its remainder is never negative. Python's has the divisor's sign.
		if m.Sign() != 0 && y.Sign() < 0 {
			m.Add(m, y)
			r.Sub(r, big.NewInt(1))
		}
		if op == tokMod {
			return shrink(m)
		}
	}
	e.alloc(r.BitLen() / 8)
	return shrink(r)
}

func (e *evaluator) needBits(bits int) {
	if bits > maxIntBits {
		fail(KindLimit, "an integer of more than %d bits is too large", maxIntBits)
	}
}

func bigTrueDiv(x, y *big.Int) any {
	if y.Sign() == 0 {
		fail(KindArithmetic, "division by zero")
	}
	f, _ := new(big.Rat).SetFrac(x, y).Float64()
	if math.IsInf(f, 0) {
		fail(KindLimit, "integer division result too large for a float")
	}
	return f
}

func (e *evaluator) intPow(x, y *big.Int) any {
	if y.Sign() < 0 {
		return floatArith(tokPow, toFloat(shrink(x)), toFloat(shrink(y)))
	}
	if x.IsInt64() && (x.Int64() == 0 || x.Int64() == 1 || x.Int64() == -1) {
		switch {
		case y.Sign() == 0 || x.Int64() == 1 || x.Int64() == -1 && y.Bit(0) == 0:
			return 1
		default:
			return int(x.Int64())
		}
	}
	if !y.IsInt64() || y.Int64() > maxIntBits {
		e.needBits(maxIntBits + 1)
	}
	bits := (x.BitLen()-1)*int(y.Int64()) + 1
	e.needBits(bits)
	e.steps(bits/64 + (bits/64)*(bits/64)/256)
	e.alloc(bits / 4)
	return shrink(new(big.Int).Exp(x, y, nil))
}

func floatArith(op tokenKind, x, y float64) any {
	switch op {
	case tokAdd:
		return x + y
	case tokSub:
		return x - y
	case tokMul:
		return x * y
	case tokDiv:
		if y == 0 {
			fail(KindArithmetic, "float division by zero")
		}
		return x / y
	case tokPow:
		return floatPow(x, y)
	}
	if y == 0 {
		if op == tokMod {
			fail(KindArithmetic, "float modulo")
		}
		fail(KindArithmetic, "float floor division by zero")
	}
	q, m := floatDivMod(x, y)
	if op == tokMod {
		return m
	}
	return q
}

// floatDivMod floors the quotient and gives the remainder the divisor's sign.
func floatDivMod(x, y float64) (quotient, remainder float64) {
	m := math.Mod(x, y)
	div := (x - m) / y
	if m != 0 {
		if (y < 0) != (m < 0) {
			m += y
			div--
		}
	} else {
		m = math.Copysign(0, y)
	}
	if div == 0 {
		return math.Copysign(0, x/y), m
	}
	floor := math.Floor(div)
	if div-floor > 0.5 {
		floor++
	}
	return floor, m
}

// negate is unary minus, and unary plus when plus is true.
func (e *evaluator) negate(v any, plus bool) any {
	switch v := v.(type) {
	case int, bool:
		n := toSmall(v)
		if plus {
			return n
		}
		if n == math.MinInt {
			return new(big.Int).Neg(toBig(n))
		}
		return -n
	case *big.Int:
		if plus {
			return v
		}
		e.steps(v.BitLen() / 64)
		return shrink(new(big.Int).Neg(v))
	case float64:
		if plus {
			return v
		}
		return -v
	}
	mustDefined(v)
	sign := "-"
	if plus {
		sign = "+"
	}
	fail(KindType, "bad operand type for unary %s: '%s'", sign, typeName(v))
	return nil
}

// formatFloat writes a float as Python's repr does.
func formatFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	at := strings.IndexByte(s, 'e')
	exp, _ := strconv.Atoi(s[at+1:])
	if exp >= -4 && exp < 16 {
		s = strconv.FormatFloat(f, 'f', -1, 64)
		if !strings.ContainsRune(s, '.') {
			s += ".0"
		}
	}
	return s
}

// formatBig writes a large integer, within Python's limit of digits.
func (e *evaluator) formatBig(n *big.Int) string {
	if n.BitLen() > maxIntDigits*10/3 {
		fail(KindValue, "Exceeds the limit (%d digits) for integer string conversion", maxIntDigits)
	}
	s := n.String()
	if len(strings.TrimPrefix(s, "-")) > maxIntDigits {
		fail(KindValue, "Exceeds the limit (%d digits) for integer string conversion", maxIntDigits)
	}
	e.steps(len(s))
	return s
}
