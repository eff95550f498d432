package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"

	kjson "sigs.k8s.io/json"

	appplan "tarn.dev/tarn/internal/app/plan"
)

// only reads a body that is one JSON object with one key.
func only(body []byte, key, example string) (json.RawMessage, error) {
	bad := func(format string, args ...any) error {
		return appplan.Errorf(appplan.Invalid, "%s: send %s", fmt.Sprintf(format, args...), example)
	}
	if len(body) == 0 {
		return nil, bad("the body is empty")
	}
	if !utf8.Valid(body) {
		return nil, bad("the body is not UTF-8 text")
	}
	values := map[string]json.RawMessage{}
	twice, err := kjson.UnmarshalStrict(body, &values)
	if err != nil {
		return nil, bad("the body is not a JSON object (%v)", err)
	}
	if len(twice) > 0 {
		return nil, bad("the body is ambiguous (%v)", twice[0])
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if name != key {
			return nil, bad("key %q is unknown", name)
		}
	}
	value, there := values[key]
	if !there || string(value) == "null" {
		return nil, bad("key %q is missing", key)
	}
	return value, nil
}

// text reads a body whose only key is a string.
func text(body []byte, key, example string) (string, error) {
	raw, err := only(body, key, example)
	if err != nil {
		return "", err
	}
	var value string
	if json.Unmarshal(raw, &value) != nil {
		return "", appplan.Errorf(appplan.Invalid, "%s must be a string: send %s", key, example)
	}
	return value, nil
}

// whole reads a body whose only key is a whole number.
func whole(body []byte, key, example string) (int64, error) {
	raw, err := only(body, key, example)
	if err != nil {
		return 0, err
	}
	var number json.Number
	if raw[0] == '"' || json.Unmarshal(raw, &number) != nil {
		return 0, appplan.Errorf(appplan.Invalid, "%s must be a whole number: send %s", key, example)
	}
	if value, err := number.Int64(); err == nil {
		return value, nil
	}
	value, _ := number.Float64() // a value too large for a float is infinite
	switch {
	case value >= math.MaxInt64: // out of any bounds, and rejected as such
		return math.MaxInt64, nil
	case value <= math.MinInt64:
		return math.MinInt64, nil
	case value != math.Trunc(value):
		return 0, appplan.Errorf(appplan.Invalid, "%s must be a whole number: send %s", key, example)
	}
	return int64(value), nil
}

// clamped converts a number to int32. A number out of range stays out of bounds.
func clamped(n int64) int32 { return int32(min(max(n, math.MinInt32), math.MaxInt32)) }
