package main

import (
	"reflect"
	"testing"
	"time"
)

func TestAScheduleFollowsFromItsSeedAndEndsWhatItBegins(t *testing.T) {
	events := schedule(51, time.Hour, 3)
	if !reflect.DeepEqual(events, schedule(51, time.Hour, 3)) || reflect.DeepEqual(events, schedule(52, time.Hour, 3)) {
		t.Error("the schedule does not follow from the seed")
	}
	live, done := map[int]bool{}, map[deed]int{}
	for _, e := range events {
		done[e.do]++
		if _, fails := undone[e.do]; fails != (e.lasts > 0) || fails && e.slot == firstNode {
			t.Errorf("%s of slot %d lasts %s", e.do, e.slot, e.lasts)
		}
		if e.slot >= slots {
			continue
		}
		if live[e.slot] == (e.do == begin) {
			t.Errorf("at %s slot %d is live: %t, and its deed is %s", e.at, e.slot, live[e.slot], e.do)
		}
		live[e.slot] = e.do != end
	}
	for slot, is := range live {
		if is {
			t.Errorf("slot %d does not end", slot)
		}
	}
	if len(done) != 15 {
		t.Errorf("an hour has only %v", done)
	}
}
