package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// elect gives the flags as a command line sets them.
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
	// Each of two looks at the lease comes up to 2.2 retries after the one before: one
	// that sees the last renewal, and one that sees it expired.
	if worst := f.duration + time.Duration(2*2.2*float64(f.retry)); worst >= 5*time.Second {
		t.Errorf("a standby may take %s", worst)
	}
}

func TestTimesWithWhichNoneOrTwoWouldLeadAreRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--leader-elect-lease-duration=2500ms"}, "take 3s"},
		{[]string{"--leader-elect-lease-duration=0s"}, "whole seconds"},
		{[]string{"--leader-elect-renew-deadline=4s"}, "--leader-elect-renew-deadline=4s"},
		{[]string{"--leader-elect-retry-period=2600ms"}, "less than 2.5s"},
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
