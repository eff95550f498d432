package main

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestControllersAreSelectedByName(t *testing.T) {
	every := controllerNames()
	without := func(names ...string) []string {
		return slices.DeleteFunc(slices.Clone(every), func(s string) bool { return slices.Contains(names, s) })
	}
	for _, c := range []struct {
		name  string
		words []string
		want  []string
	}{
		{"the default leaves out what Kubernetes does", defaultControllers, without("bind", "protect")},
		{"a star takes all", []string{"*"}, every},
		{"names alone take those", []string{"stage", "accept"}, []string{"accept", "stage"}},
		{"a minus leaves one out", []string{"*", "-stage"}, without("stage")},
		{"a former name is read as that of today", []string{"provision", "reclaim", "stage"}, []string{"pavvolume", "stage"}},
		{"and leaves that one out", []string{"*", "-provision", "-reclaim"}, without("pavvolume")},
		{"a minus wins wherever it stands", []string{"-stage", "stage", "accept"}, []string{"accept"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := selectControllers(c.words)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("selectControllers(%q) = %q, %v, want %q", c.words, got, err, c.want)
			}
		})
	}
}

func TestControllersThatDoNotExistAreRefused(t *testing.T) {
	for _, c := range []struct {
		words []string
		want  string
	}{
		{[]string{"*", "binder"}, `no controller "binder"`},
		{[]string{"*", "-stages"}, `no controller "stages"`},
		{[]string{""}, `no controller ""`},
		{[]string{"stage", "-stage"}, "leaves nothing to run"},
		{[]string{"*", "-reclaim"}, "write -pavvolume instead"},
		{[]string{"provision", "stage"}, "write pavvolume instead"},
	} {
		if got, err := selectControllers(c.words); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("selectControllers(%q) = %q, %v, want an error with %q", c.words, got, err, c.want)
		}
	}
}

func TestTheChartTakesTheControllersThereAreAndNoOthers(t *testing.T) {
	text, err := os.ReadFile("../../charts/tarn/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Controller struct {
				Properties struct {
					Controllers struct{ Items struct{ Pattern string } }
				}
			}
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	pattern := regexp.MustCompile(schema.Properties.Controller.Properties.Controllers.Items.Pattern)
	for _, name := range append(controllerNames(), slices.Collect(maps.Keys(formerNames))...) {
		if !pattern.MatchString(name) || !pattern.MatchString("-"+name) {
			t.Errorf("the schema of the chart refuses controller %s", name)
		}
	}
	for word, want := range map[string]bool{"*": true, "-*": false, "": false, "nonsense": false, "binder": false} {
		if pattern.MatchString(word) != want {
			t.Errorf("the schema of the chart takes %q as a controller: %t, want %t", word, !want, want)
		}
	}
}
