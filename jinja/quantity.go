package jinja

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// sizePattern matches a Kubernetes quantity: a decimal number, and a suffix or an exponent.
var sizePattern = regexp.MustCompile(`^([+-]?[0-9]*\.?[0-9]*)([KMGTPE]i|[numkKMGTPE]?|[eE][+-]?[0-9]+)$`)

const (
	longestSize     = 64 // characters that a size may have
	largestExponent = 40 // of a size; larger ones would only cost time
)

// parseSize reads a Kubernetes quantity as whole bytes and rounds up. K is accepted for k.
func parseSize(text string) (int, error) {
	match := sizePattern.FindStringSubmatch(text)
	if match == nil || len(text) > longestSize || !strings.ContainsAny(match[1], "0123456789") {
		return 0, fmt.Errorf("%.*q is not a size; write a number of bytes or a quantity such as 10Gi", longestSize, text)
	}
	size, _ := new(big.Rat).SetString(match[1])
	base, exponent := int64(10), 0
	switch suffix := match[2]; {
	case suffix == "":
	case strings.HasSuffix(suffix, "i"):
		base, exponent = 1024, 1+strings.Index("KMGTPE", suffix[:1])
	case len(suffix) > 1:
		exponent, _ = strconv.Atoi(suffix[1:]) // out of range is the largest int, also too large
	default:
		exponent = 3 * (strings.Index("num kMGTPE", strings.Replace(suffix, "K", "k", 1)) - 3)
	}
	if exponent > largestExponent || exponent < -largestExponent {
		return 0, fmt.Errorf("%q is not a size; its exponent is too large", text)
	}
	factor := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(base), big.NewInt(int64(max(exponent, -exponent))), nil))
	if exponent < 0 {
		factor.Inv(factor)
	}
	size.Mul(size, factor)
	bytes, rest := new(big.Int).DivMod(size.Num(), size.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		bytes.Add(bytes, big.NewInt(1))
	}
	switch {
	case bytes.Sign() <= 0:
		return 0, fmt.Errorf("size %q must be positive", text)
	case !bytes.IsInt64():
		return 0, fmt.Errorf("size %q is too large; the most is 9223372036854775807 bytes", text)
	}
	return int(bytes.Int64()), nil
}
