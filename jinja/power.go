package jinja

import (
	"math"
	"math/big"
)

const (
	// powSteps is what a power of floats costs.
	powSteps = 600
	// powBits is the precision powers are computed with: more than twice that of
	// a float, so that the rounded result is the nearest float, as it is in C.
	powBits = 128
	// maxPowExponent is the largest exponent for which powBits are enough.
	maxPowExponent = 1 << 40
)

// floatPow is x ** y. Go's math.Pow may be off in the last places, and
// the text would show it; Python shows the result of C's pow.
func floatPow(x, y float64) float64 {
	if x == 0 && y < 0 {
		fail(KindArithmetic, "0.0 cannot be raised to a negative power")
	}
	if x < 0 && y != math.Trunc(y) && !math.IsInf(x, 0) {
		fail(KindType, "a negative number to the power of a fraction is a complex number, which templates do not have")
	}
	r := math.Pow(x, y)
	if math.IsInf(r, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		fail(KindLimit, "Numerical result out of range")
	}
	if r == 0 || math.IsInf(r, 0) || math.IsNaN(r) || math.Abs(y) > maxPowExponent {
		return r
	}
	exact, _ := exactPow(math.Abs(x), math.Abs(y), y < 0).Float64()
	return math.Copysign(exact, r)
}

// exactPow multiplies the squares and the square roots of x that y is made of.
func exactPow(x, y float64, invert bool) *big.Float {
	whole, fraction := math.Modf(y)
	number := func(f float64) *big.Float { return new(big.Float).SetPrec(powBits).SetFloat64(f) }
	r, square := number(1), number(x)
	for n := uint64(whole); n > 0; n >>= 1 {
		if n&1 == 1 {
			r.Mul(r, square)
		}
		square.Mul(square, square)
	}
	root := number(x)
	for i := 0; fraction > 0 && i < powBits; i++ { // roots beyond that are 1 as far as powBits tell
		root.Sqrt(root)
		if fraction *= 2; fraction >= 1 {
			fraction--
			r.Mul(r, root)
		}
	}
	if invert {
		r.Quo(number(1), r)
	}
	return r
}
