package main

import "testing"

func TestAGoalThatIsNotReachedIsToldAtTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		of   result
		want bool
	}{
		"reached":                    {result{Subject: "tarn", Claims: 1000, Pods: 50, Lists: mostLists, Seconds: mostSeconds}, false},
		"too many lists":             {result{Subject: "tarn", Claims: 1000, Pods: 50, Lists: mostLists + 1}, true},
		"too slow":                   {result{Subject: "tarn", Claims: 1000, Pods: 50, Seconds: mostSeconds + 0.1}, true},
		"too slow, and not of Tarn":  {result{Subject: "default", Claims: 1000, Pods: 50, Seconds: 60}, false},
		"too slow, of another count": {result{Subject: "tarn", Claims: 5000, Pods: 50, Seconds: 60}, false},
	} {
		if got := (report{Results: []result{c.of}}).print(); got != c.want {
			t.Errorf("%s: a goal is missed: %t, want %t", name, got, c.want)
		}
	}
}
