package volume

import (
	"math/big"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

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
