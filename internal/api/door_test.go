package api

import "testing"

func TestAStrangerHasOneNeighbourhood(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7:4711":            "192.0.2.7",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::/64",
		"[2001:db8:1:2::9]:80":      "2001:db8:1:2::/64",
		"[::ffff:192.0.2.7]:80":     "::ffff:192.0.2.7",
		"[fe80::1%eth0]:80":         "fe80::/64",
		"a pipe":                    "a pipe",
	} {
		if got := neighbourhood(address); got != want {
			t.Errorf("neighbourhood(%s) = %s, want %s", address, got, want)
		}
	}
}
