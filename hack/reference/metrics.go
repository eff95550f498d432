package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

type metric struct {
	name, kind, help string
	labels           []string
}

// metricsPage describes the metrics that the code registers.
func metricsPage(code []*source) (string, error) {
	var all []metric
	var wrong error
	for _, s := range code {
		for _, file := range s.files {
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					m, err := s.metric(call)
					wrong = errors.Join(wrong, err)
					if m.name != "" {
						all = append(all, m)
					}
				}
				return true
			})
		}
	}
	slices.SortFunc(all, func(a, b metric) int { return cmp.Compare(a.name, b.name) })
	var rows strings.Builder
	for _, m := range all {
		fmt.Fprintf(&rows, "| %s`%s` | %s | %s | %s |\n", anchor(m.name), m.name, m.kind, spans(m.labels), cell(sentence(m.help)))
	}
	return header("Metrics", "This page lists the metrics that `tarn controller` and `tarn api` serve for Prometheus, at `/metrics`. It is for administrators who monitor a cluster.") +
		"\n| metric | kind | labels | meaning |\n|---|---|---|---|\n" + rows.String(), wrong
}

// metric reads a call such as prometheus.NewCounterVec(prometheus.CounterOpts{...}, []string{...}).
func (s *source) metric(call *ast.CallExpr) (metric, error) {
	made, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return metric{}, nil
	}
	options, ok := call.Args[0].(*ast.CompositeLit)
	if !ok {
		return metric{}, nil
	}
	of, ok := options.Type.(*ast.SelectorExpr)
	if !ok || !strings.HasSuffix(of.Sel.Name, "Opts") || !strings.HasPrefix(made.Sel.Name, "New") {
		return metric{}, nil
	}
	m := metric{kind: strings.ToLower(strings.TrimSuffix(of.Sel.Name, "Opts"))}
	for _, element := range options.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		switch key := pair.Key.(*ast.Ident); key.Name {
		case "Name":
			m.name = s.text(pair.Value)
		case "Help":
			m.help = s.text(pair.Value)
		}
	}
	if m.name == "" || m.help == "" {
		return m, fmt.Errorf("%s: a metric %q has no name or no help that is a plain text", s.directory, m.name)
	}
	if len(call.Args) > 1 {
		if labels, ok := call.Args[1].(*ast.CompositeLit); ok {
			for _, label := range labels.Elts {
				m.labels = append(m.labels, s.text(label))
			}
		}
	}
	return m, nil
}
