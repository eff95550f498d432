package jinja_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"tarn.dev/tarn/jinja"
)

func Example() {
	template, err := jinja.Parse("{% for user in users if user.admin %}{{ user.name | title }} has {{ '%.1f' % user.quota }} GB\n{% endfor %}")
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := template.Execute(context.Background(), map[string]any{"users": []any{
		map[string]any{"name": "ann", "admin": true, "quota": 2.5},
		map[string]any{"name": "bob", "admin": false, "quota": 1},
	}}, jinja.Limits{})
	fmt.Print(result.Text, err)
	// Output:
	// Ann has 2.5 GB
	// <nil>
}

// Each string of an object is a template. One that sets yaml becomes the value of its text.
func ExampleEvaluate() {
	object := map[string]any{
		"name":  "{{ app }}-{{ 7 // 2 }}",
		"ports": "{% set yaml = true %}[{{ port }}, {{ port + 1 }}]",
	}
	value, err := jinja.Evaluate(context.Background(), object, map[string]any{"app": "web", "port": 80}, jinja.Limits{})
	fmt.Println(value, err)
	// Output: map[name:web-3 ports:[80 81]] <nil>
}

// An error has a kind, the path of the field, and the line and column in its template.
func ExampleError() {
	object := map[string]any{"args": []any{"-v", "first line\n{{ params.sise }}"}}
	vars := map[string]any{"params": map[string]any{"size": 10}}
	_, err := jinja.Evaluate(context.Background(), object, vars, jinja.Limits{})
	var e *jinja.Error
	if errors.As(err, &e) {
		fmt.Println(e.Kind, e.Path, e.Line, e.Column)
		fmt.Println(e.Detail())
	}
	// Output:
	// undefined args[1] 2 4
	// args[1]: line 2, column 4: undefined error: an expression must not evaluate to undefined: 'dict object' has no attribute 'sise'
	//   {{ params.sise }}
	//      ^
}

// Limits stop a template whatever it does, and so does the context.
func ExampleLimits() {
	template, _ := jinja.Parse("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
	_, err := template.Execute(context.Background(), nil, jinja.Limits{Steps: 10_000})
	fmt.Println(err)
	_, err = jinja.Evaluate(context.Background(), "{{ 'x' * 2000000000 }}", nil, jinja.Limits{})
	fmt.Println(err)
	// Output:
	// line 1, column 31: limit error: the evaluation takes more than 10000 steps
	// line 1, column 8: limit error: a value of 2000000000 characters or items is larger than an evaluation may make
}

// A variable may be a function. Templates give its arguments by position or by name.
func ExampleFunction() {
	users := map[string]any{"ann": map[string]any{"mail": "ann@example.org"}}
	find := func(_ context.Context, args []any) (any, error) {
		if user, ok := users[args[0].(string)]; ok {
			return user, nil
		}
		if len(args) > 1 {
			return args[1], nil
		}
		return nil, fmt.Errorf("no user %q", args[0])
	}
	vars := map[string]any{
		"user":  jinja.Function{Params: []string{"name", "default"}, Required: 1, Strings: 1, Call: find},
		"shout": jinja.Func(func(_ context.Context, args []any) (any, error) { return strings.ToUpper(fmt.Sprint(args...)), nil }),
	}
	for _, source := range []string{"{{ shout(user('ann').mail) }}", "{{ user(name='eve', default='nobody') }}", "{{ user('eve') }}"} {
		value, err := jinja.Evaluate(context.Background(), source, vars, jinja.Limits{})
		fmt.Println(value, err)
	}
	// Output:
	// ANN@EXAMPLE.ORG <nil>
	// nobody <nil>
	// <nil> line 1, column 8: lookup error: user: no user "eve"
}
