package jinja

import (
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The patterns of YAML 1.1 for plain scalars, as PyYAML has them: a float needs
// a dot, an exponent a sign, integers may be octal or of base 60.
var (
	yamlBoolPattern  = regexp.MustCompile(`^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$`)
	yamlIntPattern   = regexp.MustCompile(`^(?:[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+|[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+)$`)
	yamlFloatPattern = regexp.MustCompile(`^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$`)
	yamlDatePattern  = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}$`)
	yamlTimePattern  = regexp.MustCompile(`^[0-9]{4}-[0-9][0-9]?-[0-9][0-9]?(?:[Tt]|[ \t]+)[0-9][0-9]?:[0-9]{2}:[0-9]{2}(?:\.[0-9]*)?(?:[ \t]*(?:Z|[-+][0-9][0-9]?(?::[0-9]{2})?))?$`)
	yamlDateParts    = regexp.MustCompile(`^([0-9]{4})-([0-9][0-9]?)-([0-9][0-9]?)(?:(?:[Tt]|[ \t]+)([0-9][0-9]?):([0-9]{2}):([0-9]{2}))?`)
)

// resolveYAML returns the tag of a plain scalar.
func resolveYAML(s string) string {
	if s == "" {
		return "!!null"
	}
	switch c := s[0]; {
	case c == '~' || c == 'n' || c == 'N':
		switch s {
		case "~", "null", "Null", "NULL":
			return "!!null"
		}
		if yamlBoolPattern.MatchString(s) {
			return "!!bool"
		}
	case strings.IndexByte("yYtTfFoO", c) >= 0:
		if yamlBoolPattern.MatchString(s) {
			return "!!bool"
		}
	case c == '=' && s == "=":
		return "!!value"
	case c == '<' && s == "<<":
		return "!!merge"
	case isDecimal(c) || c == '-' || c == '+' || c == '.':
		switch {
		case yamlFloatPattern.MatchString(s):
			return "!!float"
		case yamlIntPattern.MatchString(s):
			return "!!int"
		case yamlDatePattern.MatchString(s), yamlTimePattern.MatchString(s):
			return "!!timestamp"
		}
	}
	return "!!str"
}

func signOf(s string) (negative bool, rest string) {
	s = strings.ReplaceAll(s, "_", "")
	if s != "" && (s[0] == '-' || s[0] == '+') {
		return s[0] == '-', s[1:]
	}
	return false, s
}

func yamlInt(s string) (*big.Int, bool) {
	if len(s) > maxIntDigits {
		return nil, false
	}
	negative, s := signOf(s)
	n := new(big.Int)
	ok := true
	switch {
	case strings.HasPrefix(s, "0b"):
		_, ok = n.SetString(s[2:], 2)
	case strings.HasPrefix(s, "0x"):
		_, ok = n.SetString(s[2:], 16)
	case len(s) > 1 && s[0] == '0':
		_, ok = n.SetString(s, 8)
	case strings.Contains(s, ":"):
		for _, part := range strings.Split(s, ":") {
			digit, good := new(big.Int).SetString(part, 10)
			if ok = ok && good; !ok {
				break
			}
			n.Mul(n, big.NewInt(60)).Add(n, digit)
		}
	default:
		_, ok = n.SetString(s, 10)
	}
	if negative {
		n.Neg(n)
	}
	return n, ok
}

func yamlFloat(s string) (float64, bool) {
	negative, s := signOf(strings.ToLower(s))
	v := 0.0
	ok := true
	switch {
	case s == ".inf":
		v = math.Inf(1)
	case s == ".nan":
		v = math.NaN()
	case strings.Contains(s, ":"):
		for _, part := range strings.Split(s, ":") {
			digit, err := strconv.ParseFloat(part, 64)
			ok = ok && err == nil
			v = v*60 + digit
		}
	default:
		v, ok = parseFloat(s)
	}
	if negative {
		v = -v
	}
	return v, ok
}

// validDate reports whether what looks like a date is one.
func validDate(s string) bool {
	m := yamlDateParts.FindStringSubmatch(s)
	if m == nil {
		return false
	}
	n := make([]int, len(m))
	for i := 1; i < len(m); i++ {
		n[i], _ = strconv.Atoi(m[i])
	}
	t := time.Date(n[1], time.Month(n[2]), n[3], 0, 0, 0, 0, time.UTC)
	return n[1] > 0 && t.Year() == n[1] && int(t.Month()) == n[2] && t.Day() == n[3] && n[4] < 24 && n[5] < 60 && n[6] < 60
}
