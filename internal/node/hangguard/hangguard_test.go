package hangguard

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// long is longer than any test waits for an immediate event.
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

// A caller that first waits for an earlier question has little time left for its own. A missing
// answer then proves nothing about the server.
func TestTheWaitForAnothersQuestionIsNotThatForOnesOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a Asker
		const limit = 10 * time.Second
		take := func(d time.Duration) func() (int, error) {
			return func() (int, error) { time.Sleep(d); return 7, nil }
		}
		go func() {
			if _, err := Ask(&a, "key", limit, take(9*time.Second), none); err != nil {
				t.Errorf("the first question: %v", err)
			}
		}()
		synctest.Wait()
		begun := time.Now()
		if _, err := Ask(&a, "key", limit, take(3*time.Second), none); !errors.Is(err, ErrNoAnswer) || time.Since(begun) != limit {
			t.Errorf("after %s got %v, want after %s that there is no answer", time.Since(begun), err, limit)
		}
		if a.Overdue("key") {
			t.Error("a question is overdue after a second")
		}
		if got, err := Ask(&a, "key", limit, take(0), none); got != 7 || err != nil {
			t.Errorf("then got %d, %v, want 7", got, err)
		}
		if a.Slow("key") {
			t.Error("an answer after three seconds is slow")
		}
		time.Sleep(limit) // all that was begun has ended
	})
}

func TestWhoWaitsLongEnoughForAnothersQuestionFindsItOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a Asker
		const limit = 10 * time.Second
		hang := make(chan struct{})
		hanging := func() (int, error) { <-hang; return 0, nil }
		go func() {
			_, _ = Ask(&a, "key", limit, func() (int, error) { time.Sleep(9 * time.Second); return 0, nil }, none)
		}()
		synctest.Wait()
		// Its own question begins a second before the end.
		if _, err := Ask(&a, "key", limit, hanging, none); !errors.Is(err, ErrNoAnswer) || a.Overdue("key") {
			t.Errorf("got %v, overdue %t", err, a.Overdue("key"))
		}
		if _, err := Ask(&a, "key", limit, hanging, none); !errors.Is(err, ErrNoAnswer) || !a.Overdue("key") {
			t.Errorf("after all the time it has got %v, overdue %t", err, a.Overdue("key"))
		}
		begun := time.Now()
		if _, err := Ask(&a, "key", limit, hanging, none); !errors.Is(err, ErrNoAnswer) || time.Since(begun) > 0 {
			t.Errorf("then got %v after %s, want it at once", err, time.Since(begun))
		}
		close(hang)
		synctest.Wait()
	})
}

func TestAnAnswerThatComesWhenItIsForgottenIsNotRemembered(t *testing.T) {
	var a Asker
	hang, late := make(chan struct{}), make(chan struct{})
	if _, err := Ask(&a, "key", time.Millisecond, func() (int, error) { <-hang; return 0, nil }, func(int, error) { close(late) }); !errors.Is(err, ErrNoAnswer) {
		t.Fatal(err)
	}
	a.Forget("key")
	close(hang)
	<-late
	if a.Slow("key") {
		t.Error("it is remembered as slow")
	}
}
