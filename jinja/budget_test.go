package jinja

import (
	"context"
	"errors"
	"runtime"
	"runtime/metrics"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The bounds every bomb must stay within.
const (
	bombTime   = time.Second
	bombMemory = 100 << 20
)

// peakHeap runs f and gives how far the heap, garbage included, grew at its highest.
func peakHeap(f func()) int {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	heap := func() int {
		metrics.Read(sample)
		return int(sample[0].Value.Uint64())
	}
	runtime.GC()
	before := heap()
	peak := before
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for ticker := time.NewTicker(time.Millisecond); ; {
			select {
			case <-stop:
				ticker.Stop()
				return
			case <-ticker.C:
				peak = max(peak, heap())
			}
		}
	}()
	f()
	close(stop)
	<-done
	return max(peak, heap()) - before
}

var bombs = map[string]string{
	"loops of loops":                    `{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}x{% endfor %}{% endfor %}{% endfor %}`,
	"loops of loops without output":     `{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}`,
	"a string times two billion":        `{{ 'a' * 2000000000 }}`,
	"two billion times a string":        `{{ 2000000000 * 'a' }}`,
	"a list times two billion":          `{{ [1] * 2000000000 }}`,
	"a string times a huge integer":     `{{ 'a' * 10 ** 30 }}`,
	"doubling by tilde":                 `{% set ns = namespace(s='a') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}`,
	"doubling by plus":                  `{% set ns = namespace(s='a') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}`,
	"doubling a list":                   `{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}`,
	"doubling a nested list":            `{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s ~ '' }}`,
	"doubling, then comparing":          `{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}`,
	"doubling, then ordering":           `{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s < ns.t }}`,
	"doubling, then tojson":             `{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson }}`,
	"doubling, then a key":              `{% set ns = namespace(s=(1,)) %}{% for i in range(60) %}{% set ns.s = (ns.s, ns.s) %}{% endfor %}{{ {ns.s: 1} }}`,
	"doubling, then unique":             `{% set ns = namespace(s=(1,)) %}{% for i in range(60) %}{% set ns.s = (ns.s, ns.s) %}{% endfor %}{{ [ns.s] | unique | list }}`,
	"doubling, then pprint":             `{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | pprint }}`,
	"center":                            `{{ 'a'.center(2000000000) }}`,
	"the filter center":                 `{{ 'a' | center(2000000000) }}`,
	"ljust and rjust":                   `{{ 'a'.ljust(2000000000).rjust(2000000000) }}`,
	"zfill":                             `{{ '1'.zfill(2000000000) }}`,
	"a width of percent":                `{{ '%2000000000d' % 1 }}`,
	"a width of percent as argument":    `{{ '%*d' % (2000000000, 1) }}`,
	"a precision of percent":            `{{ '%.2000000000d' % 1 }}`,
	"a precision of a float":            `{{ '%.2000000000f' % 1.5 }}`,
	"a width of format":                 `{{ '{:2000000000}'.format(1) }}`,
	"a precision of format":             `{{ '{:.2000000000f}'.format(1.5) }}`,
	"a width with zeros and commas":     `{{ '{:02000000000,}'.format(1) }}`,
	"format fields in format fields":    `{{ ('{:{}}' * 10000).format(*range(20000)) }}`,
	"expandtabs":                        `{{ '\t'.expandtabs(2000000000) }}`,
	"indent":                            `{{ 'a\nb' | indent(2000000000) }}`,
	"indent with a wide text":           `{{ ('a\n' * 100000) | indent('x' * 100000) }}`,
	"indent of tojson":                  `{{ [1] | tojson(indent=2000000000) }}`,
	"deep indent of tojson":             `{% set ns = namespace(s=[1]) %}{% for i in range(90) %}{% set ns.s = [ns.s] * 3 %}{% endfor %}{{ ns.s | tojson(indent=100000) }}`,
	"batch with a fill":                 `{{ [1] | batch(2000000000, 'x') | list }}`,
	"slice":                             `{{ [1] | slice(2000000000) | list }}`,
	"wordwrap with a wide newline":      `{{ ('a ' * 100000) | wordwrap(1, wrapstring='x' * 100000) }}`,
	"join with a wide separator":        `{{ range(100000) | join('x' * 100000) }}`,
	"str.join with a wide separator":    `{{ ('x' * 100000).join(['a'] * 100000) }}`,
	"replace of nothing":                `{{ ('a' * 100000).replace('', 'x' * 100000) }}`,
	"replace of everything":             `{{ ('a' * 100000) | replace('a', 'x' * 100000) }}`,
	"translate":                         `{{ ('a' * 100000).translate({97: 'x' * 100000}) }}`,
	"quoting for bash":                  `{% set ns = namespace(s="'") %}{% for i in range(22) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% for i in range(100) %}{{ (ns.s | tobash) == 1 }}{% endfor %}`,
	"many lines":                        `{% set ns = namespace(s="\n") %}{% for i in range(23) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s.splitlines() | length }}{{ ns.s.split() }}{{ ns.s | tobash }}`,
	"many words":                        `{% set ns = namespace(s="a ") %}{% for i in range(23) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s.split() | length }}`,
	"many letters":                      `{% set ns = namespace(s="a") %}{% for i in range(23) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s | list | length }}`,
	"a macro that calls itself":         `{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}`,
	"a macro that calls itself twice":   `{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}`,
	"macros that call each other":       `{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}`,
	"a call block that calls itself":    `{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{% call m() %}x{% endcall %}`,
	"a macro as its own argument":       `{% macro m(f) %}{{ f(f) }}{% endmacro %}{{ m(m) }}`,
	"a deep expression in a macro":      `{% macro m() %}{{ ` + strings.Repeat("[", 40) + strings.Repeat("1 + ", 300) + `m()` + strings.Repeat("]", 40) + ` }}{% endmacro %}{{ m() }}`,
	"a recursive loop for ever":         `{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}`,
	"a block that contains itself":      `{% block b %}{{ self.b() }}{% endblock %}`,
	"a megabyte of parentheses":         `{{ ` + strings.Repeat("(", 1<<20),
	"a megabyte of brackets":            `{{ ` + strings.Repeat("[", 1<<20),
	"a megabyte of braces":              `{{ ` + strings.Repeat("{1:", 1<<18),
	"a megabyte of minus":               `{{ ` + strings.Repeat("-", 1<<20) + `1 }}`,
	"a megabyte of not":                 `{{ ` + strings.Repeat("not ", 1<<18) + `1 }}`,
	"a megabyte of plus":                `{{ 1` + strings.Repeat("+1", 1<<19) + ` }}`,
	"a megabyte of filters":             `{{ 1` + strings.Repeat("|e", 1<<19) + ` }}`,
	"a megabyte of attributes":          `{{ a` + strings.Repeat(".a", 1<<19) + ` }}`,
	"a megabyte of calls":               `{{ a` + strings.Repeat("()", 1<<19) + ` }}`,
	"a megabyte of subscripts":          `{{ a` + strings.Repeat("[0]", 1<<18) + ` }}`,
	"a megabyte of inline ifs":          `{{ 1` + strings.Repeat(" if 1", 1<<18) + ` }}`,
	"a megabyte of inline elses":        `{{ 1` + strings.Repeat(" if 1 else 1", 1<<17) + ` }}`,
	"a megabyte of tests":               `{{ 1` + strings.Repeat(" is odd", 1<<17) + ` }}`,
	"a megabyte of blocks":              strings.Repeat("{% if 1 %}", 1<<17),
	"a megabyte of loops":               strings.Repeat("{% for a in b %}", 1<<16),
	"a megabyte of unclosed raw":        strings.Repeat("{% raw %}{% endraw ", 1<<16),
	"a megabyte of open braces":         strings.Repeat("{", 1<<20),
	"a range of a billion":              `{{ range(10 ** 9) | list }}`,
	"a range that overflows":            `{{ range(-(2 ** 63), 2 ** 63 - 1) | length }}`,
	"a power":                           `{{ 10 ** (10 ** 10) }}`,
	"powers of floats":                  `{% for i in range(100000) %}{% set x = 1.5 ** 0.3333333333333333 %}{% endfor %}{{ 1 / 0 }}`,
	"tiny powers of floats":             `{% for i in range(100000) %}{% set x = 1.5 ** 5e-324 %}{% endfor %}{{ 1 / 0 }}`,
	"powers of powers":                  `{% set ns = namespace(n=2) %}{% for i in range(1000) %}{% set ns.n = ns.n ** 3 %}{% endfor %}{{ ns.n }}`,
	"products of large integers":        `{% set n = 3 ** 60000 %}{% for i in range(100000) %}{% set x = n * n % (n - 1) %}{% endfor %}{{ n }}`,
	"the text of large integers":        `{% set n = 10 ** 4000 %}{% for i in range(100000) %}{% set x = n ~ '' %}{% endfor %}{{ 1 / 0 }}`,
	"reading large integers":            `{% set n = '9' * 4000 %}{% for i in range(100000) %}{% set x = n | int %}{% endfor %}{{ 1 / 0 }}`,
	"rounding large integers":           `{% set n = 10 ** 4000 %}{% for i in range(100000) %}{% set x = n | round(-3999) %}{% endfor %}{{ 1 / 0 }}`,
	"bits of large integers":            `{% set n = 2 ** 100000 - 1 %}{% for i in range(100000) %}{% set x = n.bit_count() %}{% endfor %}{{ 1 / 0 }}`,
	"dividing large integers":           `{% set n = 2 ** 100000 %}{% set m = 3 ** 60000 %}{% for i in range(100000) %}{% set x = n / m %}{% endfor %}{{ 1 / 0 }}`,
	"comparing large integers":          `{% set n = 2 ** 100000 %}{% set m = 2 ** 100000 %}{% for i in range(100000) %}{% if n == m and n > 1.5 %}{% endif %}{% endfor %}{{ 1 / 0 }}`,
	"large integers as keys":            `{% set n = 2 ** 100000 %}{% for i in range(100000) %}{% set x = {n: 1} %}{% endfor %}{{ 1 / 0 }}`,
	"searching a long text":             `{% set s = 'a' * 100000 %}{% for i in range(100000) %}{% if 'b' in s or s.find('b') > 0 or s.count('a') == 1 %}{% endif %}{% endfor %}{{ 1 / 0 }}`,
	"searching a hard text":             `{% set s = 'a' * 200000 %}{% set t = 'a' * 100000 ~ 'b' %}{% for i in range(100000) %}{% if t in s or s.rfind(t) > 0 %}{% endif %}{% endfor %}{{ 1 / 0 }}`,
	"comparing long texts":              `{% set s = 'a' * 100000 %}{% set t = s ~ 'b' %}{% set u = s ~ 'b' %}{% for i in range(100000) %}{% if t == u or t < u %}{% endif %}{% endfor %}{{ 1 / 0 }}`,
	"changing the case of a long text":  `{% set s = 'až' * 50000 %}{% for i in range(100000) %}{% set x = s.upper().lower().title().swapcase().casefold().capitalize() %}{% endfor %}{{ 1 / 0 }}`,
	"asking about a long text":          `{% set s = 'a' * 200000 %}{% for i in range(100000) %}{% if s is lower and s.isalpha() and s.istitle() %}{% endif %}{{ s | wordcount }}{% endfor %}{{ 1 / 0 }}`,
	"the length of a long text":         `{% set s = 'ž' * 200000 %}{% for i in range(100000) %}{{ s | length }}{{ s[100000] }}{{ s[1:2] }}{% endfor %}{{ 1 / 0 }}`,
	"stripping a long text":             `{% set s = ' ' * 200000 %}{% for i in range(100000) %}{{ s.strip() }}{{ s | trim }}{{ s.strip('ab ') }}{% endfor %}{{ 1 / 0 }}`,
	"stripping a long set":              `{% set s = 'a' * 100000 %}{% set t = 'b' * 100000 ~ 'a' %}{% for i in range(100000) %}{{ s.strip(t) }}{% endfor %}{{ 1 / 0 }}`,
	"splitting a long text":             `{% set s = 'a,' * 100000 %}{% for i in range(100000) %}{% set x = s.split(',') %}{% set y = s.rsplit(',', 5) %}{% endfor %}{{ 1 / 0 }}`,
	"striptags":                         `{% set s = '<' * 200000 %}{% for i in range(100000) %}{% set x = s | striptags %}{% endfor %}{{ 1 / 0 }}`,
	"striptags of many comments":        `{% set s = '<!--' * 50000 %}{% for i in range(100000) %}{% set x = s | striptags %}{% endfor %}{{ 1 / 0 }}`,
	"sorting often":                     `{% set l = range(10000) | list %}{% for i in range(100000) %}{% set x = l | sort(reverse=true) %}{% endfor %}{{ 1 / 0 }}`,
	"unique often":                      `{% set l = range(10000) | list %}{% for i in range(100000) %}{{ l | unique | list | length }}{% endfor %}{{ 1 / 0 }}`,
	"searching a list":                  `{% set l = range(10000) | list %}{% for i in range(100000) %}{{ -1 in l }}{{ l.count(1) }}{{ l | sum }}{{ l | max }}{% endfor %}{{ 1 / 0 }}`,
	"copying a list":                    `{% set l = range(10000) | list %}{% for i in range(100000) %}{% set x = (l + l)[1:] %}{% set y = l | list %}{% set z = l | reverse | list %}{% endfor %}{{ 1 / 0 }}`,
	"a lazy sequence of lazy sequences": `{% set ns = namespace(s=[1]) %}{% for i in range(100000) %}{% set ns.s = ns.s | map('string') %}{% endfor %}{{ ns.s | list }}`,
	"a large dictionary":                `{% set ns = namespace(d={}) %}{% for i in range(100000) %}{% set ns.d = dict(ns.d, **{i ~ '': 1}) %}{% endfor %}{{ 1 / 0 }}`,
	"a large keyword argument list":     `{% macro m() %}{{ kwargs | length }}{% endmacro %}{% set d = dict.fromkeys %}{% for i in range(100000) %}{{ m(**{}.fromkeys(range(10000) | map('string'))) }}{% endfor %}`,
	"the path of an attribute":          `{% set p = 'a.' * 100000 %}{% for i in range(100000) %}{% set x = [1] | map(attribute=p, default={}) | list %}{% endfor %}{{ 1 / 0 }}`,
	"a namespace within itself":         `{% set ns = namespace() %}{% set ns.me = ns %}{{ ns ~ '' }}`,
	"a namespace within itself, twice":  `{% set ns = namespace() %}{% set ns.a = [ns, ns] %}{{ ns ~ '' }}`,
	"much output":                       `{% for i in range(100000) %}{{ 'x' * 100 }}{% endfor %}`,
	"much output in a macro":            `{% macro m() %}{% for i in range(100000) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}{% endmacro %}{% for i in range(100) %}{{ m() | length }}{% endfor %}`,
	"deep YAML":                         `{% set yaml = true %}{{ '[' * 100000 }}`,
	"deep YAML in blocks":               `{% set yaml = true %}{{ '- ' * 100000 }}`,
	"deep YAML of keys":                 `{% set yaml = true %}{{ '? ' * 100000 }}`,
	"deep YAML of maps":                 `{% set yaml = true %}{{ '{a: ' * 100000 }}`,
	"deep YAML within the library's":    `{% set yaml = true %}{{ '[' * 5000 }}{{ ']' * 5000 }}`,
	"an alias bomb in YAML":             "{% set yaml = true %}a: &a [x,x,x,x,x,x,x,x,x]\n{% for i in range(20) %}b{{ i }}: &b{{ i }} [{{ ('*' ~ ('a' if i == 0 else 'b' ~ (i - 1)) ~ ',') * 9 }}]\n{% endfor %}",
	"a merge bomb in YAML":              "{% set yaml = true %}a: &a {x: 1, y: 2}\n{% for i in range(60) %}b{{ i }}: &b{{ i }} {<<: [{{ ('*' ~ ('a' if i == 0 else 'b' ~ (i - 1)) ~ ',') * 3 }}]}\n{% endfor %}",
	"an alias to itself in YAML":        `{% set yaml = true %}&a [*a]`,
	"a merge of itself in YAML":         `{% set yaml = true %}&a {<<: *a}`,
	"many anchors in YAML":              "{% set yaml = true %}{% for i in range(50000) %}- &a{{ i }} x\n{% endfor %}{{ '*' }}",
	"many documents in YAML":            `{% set yaml = true %}{{ "---\n" * 100000 }}`,
	"many quotes in YAML":               `{% set yaml = true %}{{ '"' * 500001 }}`,
	"a long plain text in YAML":         `{% set yaml = true %}{{ 'a ' * 300000 }}: {{ ': ' * 10000 }}`,
	"many flow keys in YAML":            `{% set yaml = true %}[{{ 'a, ' * 200000 }}`,
	"a long integer in YAML":            `{% set yaml = true %}{{ '9' * 500000 }}`,
	"a long sexagesimal in YAML":        `{% set yaml = true %}1{{ ':59' * 100000 }}`,
	"comments in YAML":                  `{% set yaml = true %}{{ "#\n" * 200000 }}[`,
}

// cpuTime is what the process has used of the processors. On a busy machine it
// tells what a bomb costs where the clock on the wall does not.
func cpuTime(t *testing.T) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func TestEveryBombEndsInASecondAndAHundredMegabytes(t *testing.T) {
	for name, source := range bombs {
		t.Run(name, func(t *testing.T) {
			var value any
			var err error
			var took time.Duration
			peak := peakHeap(func() {
				start, used := time.Now(), cpuTime(t)
				value, err = Evaluate(context.Background(), source, nil, Limits{})
				took = min(time.Since(start), cpuTime(t)-used)
			})
			if err == nil {
				s, _ := value.(string)
				t.Fatalf("no error, but a value of %d bytes", len(s))
			}
			if kind := ownError(err).Kind; kind != KindLimit && kind != KindSyntax && kind != KindYAML && kind != KindValue {
				t.Errorf("ended by another error than a limit: %.200v", err)
			}
			if strings.Contains(err.Error(), "internal error") {
				t.Errorf("%v", err)
			}
			if took > bombTime {
				t.Errorf("took %v", took)
			}
			if peak > bombMemory {
				t.Errorf("the heap grew by %d MiB", peak>>20)
			}
			if testing.Verbose() {
				t.Logf("%v, %d MiB: %.120v", took.Round(time.Millisecond), peak>>20, err)
			}
		})
	}
}

func TestACancelledContextEndsTheEvaluation(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	loop := `{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}`
	start, used := time.Now(), cpuTime(t)
	_, err := Evaluate(ctx, loop, nil, Limits{Steps: 1 << 40, MemoryBytes: 1 << 40})
	var e *Error
	if !errors.As(err, &e) || e.Kind != KindLimit || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a limit error from the deadline", err)
	}
	if took := min(time.Since(start), cpuTime(t)-used); took > time.Second {
		t.Errorf("took %v after a deadline of 20ms", took)
	}
}

func TestLimitsCanBeSet(t *testing.T) {
	for name, test := range map[string]struct {
		source string
		limits Limits
	}{
		"steps":  {`{% for i in range(100) %}{% endfor %}`, Limits{Steps: 50}},
		"output": {`aaaaaaaaaaa`, Limits{OutputBytes: 10}},
		"depth":  {`{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(10) }}`, Limits{Depth: 5}},
		"memory": {`{{ ('x' * 2000) | length }}`, Limits{MemoryBytes: 1000}},
	} {
		_, err := Evaluate(context.Background(), test.source, nil, test.limits)
		if err == nil || ownError(err).Kind != KindLimit {
			t.Errorf("%s: got %v, want a limit error", name, err)
		}
		if _, err := Evaluate(context.Background(), test.source, nil, Limits{}); err != nil {
			t.Errorf("%s: with the defaults: %v", name, err)
		}
	}
}

func TestTheBudgetIsSharedByTheFieldsOfAnObject(t *testing.T) {
	field := `{% for i in range(1000) %}{% endfor %}`
	object := map[string]any{}
	for _, key := range strings.Split("abcdefghij", "") {
		object[key] = field
	}
	if _, err := Evaluate(context.Background(), field, nil, Limits{Steps: 5000}); err != nil {
		t.Errorf("one field: %v", err)
	}
	_, err := Evaluate(context.Background(), object, nil, Limits{Steps: 5000})
	if err == nil || ownError(err).Kind != KindLimit || ownError(err).Path == "" {
		t.Errorf("ten fields: got %v, want a limit error with a path", err)
	}
}
