package patience

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// long is longer than any case waits for what is to happen at once.
const long = time.Minute

func none(int, error) {}

func TestWhatIsAnsweredInTimeIsReturned(t *testing.T) {
	var a Asker
	broken := errors.New("broken")
	late := func(int, error) { t.Error("the answer is late") }
	if got, err := Ask(&a, "key", long, func() (int, error) { return 7, nil }, late); got != 7 || err != nil {
		t.Errorf("got %d, %v, want 7", got, err)
	}
	if _, err := Ask(&a, "key", long, func() (int, error) { return 0, broken }, late); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if len(a.asked) > 0 {
		t.Errorf("remembered are %v", a.asked)
	}
}

func TestWhatHangsIsAskedOnceAndKeepsNobody(t *testing.T) {
	var a Asker
	var asked atomic.Int32
	hang := make(chan struct{})
	lates := make(chan int, 1)
	ask := func() (int, error) { asked.Add(1); <-hang; return 7, nil }
	if _, err := Ask(&a, "key", time.Millisecond, ask, func(n int, _ error) { lates <- n }); !errors.Is(err, ErrNoAnswer) {
		t.Fatalf("got %v, want %v", err, ErrNoAnswer)
	}
	begun := time.Now()
	for range 5 {
		if _, err := Ask(&a, "key", long, ask, none); !errors.Is(err, ErrNoAnswer) {
			t.Fatalf("got %v, want %v", err, ErrNoAnswer)
		}
	}
	if took := time.Since(begun); took > long/2 {
		t.Errorf("it took %v to say again that there is no answer", took)
	}
	if got, err := Ask(&a, "other", long, func() (int, error) { return 8, nil }, none); got != 8 || err != nil {
		t.Errorf("of another key got %d, %v, want 8", got, err)
	}
	if got := asked.Load(); got != 1 || !a.Overdue("key") || a.Overdue("other") {
		t.Errorf("asked %d times, overdue %v and %v, want once, and that one", got, a.Overdue("key"), a.Overdue("other"))
	}
	close(hang)
	if got := <-lates; got != 7 {
		t.Errorf("the late answer is %d, want 7", got)
	}
	if !a.Slow("key") || a.Slow("other") {
		t.Errorf("slow are %v and %v, want the one that was late", a.Slow("key"), a.Slow("other"))
	}
	if got, err := Ask(&a, "key", long, ask, none); got != 7 || err != nil || a.Slow("key") {
		t.Errorf("then got %d, %v, slow %v, want 7 in time", got, err, a.Slow("key"))
	}
}

func TestQuestionsOfOneKeyFollowEachOther(t *testing.T) {
	var a Asker
	var beside atomic.Int32
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			_, err := Ask(&a, "key", long, func() (int, error) {
				defer beside.Add(-1)
				if n := beside.Add(1); n != 1 {
					t.Errorf("%d questions at a time", n)
				}
				return 0, nil
			}, none)
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
