package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// elect returns the flags of a command line.
func elect(t *testing.T, args ...string) electionFlags {
	t.Helper()
	var f electionFlags
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.register(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestADeadLeaderIsFollowedWithinFiveSecondsByDefault(t *testing.T) {
	f := elect(t)
	if err := f.check(); err != nil {
		t.Fatal(err)
	}
	// Two reads of the lease come up to 2.2 retries late: the one that sees the last renewal, and
	// the one that sees the lease expired.
	if worst := f.duration + time.Duration(2*2.2*float64(f.retry)); worst >= 5*time.Second {
		t.Errorf("a standby may take %s", worst)
	}
}

func TestTimesWithWhichNoneOrTwoWouldLeadAreRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--leader-elect-lease-duration=2500ms"}, "use 3s"},
		{[]string{"--leader-elect-lease-duration=0s"}, "whole seconds"},
		{[]string{"--leader-elect-renew-deadline=3s"}, "--leader-elect-renew-deadline=3s: the leader could still run after another has acquired its lease of 4s: use 2.8s or less"},
		{[]string{"--leader-elect-lease-duration=9s", "--leader-elect-retry-period=2600ms"}, "less than 2.083"},
		{[]string{"--leader-elect-retry-period=0s"}, "more than 0"},
	} {
		f := elect(t, c.args...)
		if err := f.check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want an error with %q", c.args, err, c.want)
		}
		f.on = false
		if err := f.check(); err != nil {
			t.Errorf("%q without an election: %v", c.args, err)
		}
	}
}

// A ready standby must be able to lead, so it must watch all that its controllers watch.
func TestAStandbyWatchesAllThatItsControllersWill(t *testing.T) {
	watch := regexp.MustCompile(`\b(?:For|Owns|Watches)\(&\w+\.(\w+)\{\}`)
	directories := map[string]string{"accept": "provisioner", "inprocess": "plugin", "trash": "retention"}
	for name := range controllers {
		known := map[string]bool{}
		for _, kind := range append(watched[name], everyKind...) {
			typed := strings.Split(fmt.Sprintf("%T", kind), ".")
			known[typed[len(typed)-1]] = true
			known[kind.GetObjectKind().GroupVersionKind().Kind] = true // of metadata
		}
		source, err := os.ReadFile(filepath.Join("../../internal/controller", cmp.Or(directories[name], name), "controller.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := watch.FindAllStringSubmatch(string(source), -1)
		if len(found) == 0 && name != "bind" { // which finds out for itself
			t.Errorf("no kind that controller %s watches was found in its controller.go", name)
		}
		for _, match := range found {
			if !known[match[1]] {
				t.Errorf("controller %s watches %s, which a standby does not: add it to watched", name, match[1])
			}
		}
	}
}
