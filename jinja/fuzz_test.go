package jinja

import (
	"context"
	"encoding/json"
	"errors"
	goflag "flag"
	"slices"
	"strings"
	"testing"
	"time"
)

// fuzzTime is how long one input may take; far more than the budgets allow.
const fuzzTime = 3 * time.Second

// seeds adds the templates of all tests. With -fuzz there are only those of testdata/fuzz, because
// Go runs all of them before it begins to fuzz, which takes minutes.
func seeds(f *testing.F) {
	if goflag.Lookup("test.fuzz").Value.String() != "" {
		return
	}
	for _, file := range readCases(f) {
		for _, c := range file.Cases {
			if source, ok := c.Template.(string); ok {
				f.Add(source)
			}
		}
	}
	for _, source := range bombs {
		if len(source) < 4096 {
			f.Add(source)
		}
	}
}

// checkFuzzError checks that an error is an *Error, on one line, and points into the source.
func checkFuzzError(t *testing.T, source string, err error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%T is no *Error: %v", err, err)
	}
	if strings.Contains(e.Message, "internal error") {
		t.Fatalf("%q: %v", source, e)
	}
	if strings.Contains(e.Error(), "\n") {
		t.Fatalf("%q: the error has several lines: %v", source, e)
	}
	if lines := strings.Count(normalise(source), "\n") + 1; e.Line > lines || e.Line < 1 || e.Column < 1 {
		t.Fatalf("%q: line %d of %d: %v", source, e.Line, lines, e)
	}
	if e.Detail() == "" {
		t.Fatal("no detail")
	}
}

func FuzzParse(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, source string) {
		start := time.Now()
		tmpl, err := Parse(source)
		if err != nil {
			checkFuzzError(t, source, err)
		} else {
			tmpl.Globals()
		}
		if took := time.Since(start); took > fuzzTime {
			t.Fatalf("took %v", took)
		}
	})
}

// Check must report errors when Parse does, the one of Parse among them, in the order of the text
// and none twice.
func FuzzCheck(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, source string) {
		start := time.Now()
		_, err := Parse(source)
		errs := Check(source)
		if took := time.Since(start); took > fuzzTime {
			t.Fatalf("took %v", took)
		}
		if (err == nil) != (errs == nil) || len(errs) > maxSyntaxErrors {
			t.Fatalf("%q: %d errors where Parse says %v", source, len(errs), err)
		}
		for i, e := range errs {
			checkFuzzError(t, source, e)
			if i > 0 && (e.Line < errs[i-1].Line || e.Line == errs[i-1].Line && e.Column < errs[i-1].Column || *e == *errs[i-1]) {
				t.Fatalf("%q: %v after %v", source, e, errs[i-1])
			}
		}
		named := func(e *Error) bool { return strings.TrimSuffix(e.Error(), "; there may be more") == err.Error() }
		if err != nil && len(errs) < maxSyntaxErrors && !slices.ContainsFunc(errs, named) {
			t.Fatalf("%q: Parse says %v, and it is not among %v", source, err, errs)
		}
	})
}

func FuzzExecute(f *testing.F) {
	seeds(f)
	shared := readCases(f)[0].Shared
	before, err := json.Marshal(shared)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, source string) {
		start := time.Now()
		value, err := Evaluate(context.Background(), source, shared, Limits{Steps: 200_000, MemoryBytes: 8 << 20})
		if err != nil {
			checkFuzzError(t, source, err)
		} else if _, err := json.Marshal(value); err != nil {
			t.Fatalf("%q: the result is not JSON: %v", source, err)
		}
		if took := time.Since(start); took > fuzzTime {
			t.Fatalf("took %v", took)
		}
		if after, _ := json.Marshal(shared); string(after) != string(before) {
			t.Fatalf("%q changed its variables", source)
		}
	})
}
