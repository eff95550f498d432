package volume

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Rounding says how a quantity with a fraction of a byte becomes whole bytes.
type Rounding int

// The ways a capacity is rounded. The size of a volume is rounded up, like a request, so that a
// volume made with exactly the requested text fits its claim.
const (
	RoundDown Rounding = iota
	RoundUp
)

// ParseCapacity reads a size in bytes: a whole number or a Kubernetes quantity, with K accepted for
// k. The result is at least 1. Any other text is an error that says what to write.
func ParseCapacity(text string, r Rounding) (int64, error) {
	if !readable(text) {
		return 0, fmt.Errorf("capacity %.*q is not a valid size: write a number of bytes or a quantity like 10Gi", longestSize, text)
	}
	q, err := resource.ParseQuantity(canonicalSuffix(text))
	if err != nil {
		return 0, fmt.Errorf("capacity %q is not a size: write a number of bytes or a quantity like 10Gi", text)
	}
	exact, ok := new(big.Rat).SetString(q.AsDec().String())
	if !ok {
		return 0, fmt.Errorf("capacity %q is not a size: write a number of bytes or a quantity like 10Gi", text)
	}
	bytes := round(exact, r)
	if !bytes.IsInt64() {
		return 0, fmt.Errorf("capacity %q is too large: the limit is 9223372036854775807 bytes", text)
	}
	if bytes.Sign() <= 0 {
		return 0, fmt.Errorf("capacity %q must be positive", text)
	}
	return bytes.Int64(), nil
}

// Size words a number of bytes for users, such as 10Gi. It is exact: a number that is no multiple of
// 1024 is written out.
func Size(bytes int64) string { return resource.NewQuantity(bytes, resource.BinarySI).String() }

// canonicalSuffix turns the suffix K, which the original accepts, into k.
func canonicalSuffix(text string) string {
	if head, ok := strings.CutSuffix(text, "K"); ok {
		return head + "k"
	}
	return text
}

// Bytes is a quantity of the API in whole bytes. It rounds up like Quantity.Value, with which
// Kubernetes compares requests and volumes. A quantity beyond int64 gives the largest or smallest
// int64.
func Bytes(q resource.Quantity) int64 {
	if bytes, ok := q.AsInt64(); ok { // the fast path: nearly all do
		return bytes
	}
	if !tooLarge(q) { // else there is no room for its digits
		if exact, ok := new(big.Rat).SetString(q.AsDec().String()); ok {
			if bytes := round(exact, RoundUp); bytes.IsInt64() {
				return bytes.Int64()
			}
		}
	}
	if q.Sign() < 0 {
		return math.MinInt64
	}
	return math.MaxInt64
}

func round(x *big.Rat, r Rounding) *big.Int {
	floor, rest := new(big.Int).DivMod(x.Num(), x.Denom(), new(big.Int))
	if rest.Sign() == 0 || r == RoundDown {
		return floor
	}
	return floor.Add(floor, big.NewInt(1))
}

// The API server accepts any quantity, even 1e30000000. A comparison writes out all its digits,
// which takes seconds. No real storage comes near these bounds.
const (
	// mostDigits is how many decimal digits a size may have before its point.
	mostDigits = 40
	// mostBits is how many bits all digits of a size may take: those before the point and nine
	// after it.
	mostBits = 170
	// longestSize is how many characters the text of a size may have.
	longestSize = 64
)

// tooLarge says whether a quantity exceeds every real size, without writing it out.
func tooLarge(q resource.Quantity) bool {
	if _, small := q.AsInt64(); small {
		return false
	}
	dec := q.AsDec() // of our own copy of the quantity
	unscaled := dec.UnscaledBig()
	if unscaled.Sign() == 0 {
		return false
	}
	return unscaled.BitLen() > mostBits || len(new(big.Int).Abs(unscaled).String())-int(dec.Scale()) > mostDigits
}

// bounded is q. For a q that is too large, it is the power of ten given by its exponent, with the
// same sign.
func bounded(q resource.Quantity, exponent resource.Scale) resource.Quantity {
	if !tooLarge(q) {
		return q
	}
	return *resource.NewScaledQuantity(int64(q.Sign()), exponent)
}

// readable says whether a text can be parsed as a size without writing out a huge exponent.
func readable(text string) bool {
	if len(text) > longestSize {
		return false
	}
	at := strings.LastIndexAny(text, "eE")
	if at < 0 || at == len(text)-1 {
		return true
	}
	exponent, err := strconv.Atoi(text[at+1:])
	return err != nil || -mostDigits <= exponent && exponent <= mostDigits
}
