package stages

import (
	"reflect"
	"testing"

	"tarn.dev/tarn/internal/node/podend"
)

func TestTheRunsOfAPodAreToldTogetherUntilItsLastEnds(t *testing.T) {
	f := newFirsts()
	first, second := podend.Run{ID: "first", Exited: true, ExitCode: 1}, podend.Run{ID: "second", Exited: true}
	for _, id := range []string{first.ID, second.ID} {
		if !f.begin("pod", id) {
			t.Errorf("%s is held already", id)
		}
		if f.begin("pod", id) {
			t.Errorf("%s is held twice", id)
		}
	}
	if got := f.end("pod", first); !reflect.DeepEqual(got, []podend.Run{first}) {
		t.Errorf("told of %+v, want the first", got)
	}
	if got := f.end("pod", second); !reflect.DeepEqual(got, []podend.Run{first, second}) {
		t.Errorf("told of %+v, want both", got)
	}
	if len(f.held) != 0 {
		t.Errorf("held is %+v of a pod that has ended", f.held)
	}
	if !f.begin("pod", first.ID) {
		t.Error("what has ended is held")
	}
}

func TestPodsAreLookedForTogetherAndOnce(t *testing.T) {
	f := newFirsts()
	f.want("one")
	f.want("two")
	if <-f.asked; len(f.asked) != 0 {
		t.Error("asked for twice")
	}
	if got := f.take(); len(got) != 2 {
		t.Errorf("took %v, want both", got)
	}
	if got := f.take(); len(got) != 0 {
		t.Errorf("took %v again", got)
	}
}
