package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	// redrawn is the interval at which the line on a terminal is redrawn.
	redrawn = 500 * time.Millisecond
	// repeated is the interval at which a line is printed elsewhere.
	repeated = 15 * time.Second
	// settled is how long a build must run before its speed allows an estimate.
	settled = 10 * time.Second
)

// pkg is a package of a program.
type pkg struct {
	// key identifies the package in all programs that share its compiled form.
	key string
	// stale says that it was not compiled yet when it was listed.
	stale bool
}

// progress counts packages. It counts a package as compiled once its compilation starts.
type progress struct {
	// started has, for each program, the packages that are compiled.
	started []map[string]bool
	// packages has, for each program, all its packages; nil until they are listed.
	packages []map[string]pkg
	current  int
	complete bool
}

func newProgress(programs int) *progress {
	return &progress{started: make([]map[string]bool, programs), packages: make([]map[string]pkg, programs)}
}

// counts gives how many packages are compiled, how many are not, and whether the current program has any of them.
func (p *progress) counts() (done, left int, compiling bool) {
	seen := make(map[string]bool)
	for i, paths := range p.started {
		done += len(paths)
		for path := range paths {
			seen[p.packages[i][path].key] = true
		}
	}
	for i := p.current; i < len(p.packages); i++ {
		for path, of := range p.packages[i] {
			if of.stale && !p.started[i][path] && !seen[of.key] {
				seen[of.key] = true
				left++
				compiling = compiling || i == p.current
			}
		}
	}
	return done, left, compiling
}

// line describes the progress of a program's build after a time.
func (p *progress) line(program string, elapsed time.Duration) string {
	done, left, compiling := p.counts()
	if !p.complete {
		return fmt.Sprintf("%s: %d packages compiled, still counting the others", program, done)
	}
	text := fmt.Sprintf("%s: %d of %d packages compiled", program, done, done+left)
	if !compiling {
		text = fmt.Sprintf("%s: linking; %d of %d packages compiled", program, done, done+left)
	}
	if left == 0 || elapsed < settled {
		return text
	}
	return fmt.Sprintf("%s, about %s left", text, rough(elapsed*time.Duration(left)/time.Duration(done)))
}

// rough formats a time no more exactly than an estimate is.
func rough(d time.Duration) string {
	if d < 100*time.Second {
		return fmt.Sprintf("%d s", max(5, int(d.Round(5*time.Second).Seconds())))
	}
	return fmt.Sprintf("%.0f minutes", d.Minutes())
}

// view shows progress: on a terminal in one line that changes, elsewhere in a line at intervals.
type view struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	programs []program
	progress *progress
	// began is when the first package was compiled; zero before that.
	began     time.Time
	processor time.Duration
	stop      chan struct{}
}

func newView(out io.Writer, programs []program) *view {
	return &view{out: out, terminal: isTerminal(out), programs: programs, progress: newProgress(len(programs)), stop: make(chan struct{})}
}

func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// at begins the program of the given number.
func (v *view) at(program int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.progress.current = program
	v.progress.started[program] = make(map[string]bool)
}

// started records a compiled package of the current program. It reports whether it is the first of
// all.
func (v *view) started(path string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.progress.started[v.progress.current][path] = true
	if !v.began.IsZero() {
		return false
	}
	v.began = time.Now()
	go v.show()
	return true
}

func (v *view) counted(program int, packages map[string]pkg) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.progress.packages[program] = packages
}

func (v *view) countedAll() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.progress.complete = true
}

// used adds the processor time of a program's build.
func (v *view) used(processor time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.processor += processor
}

// say prints the other output of go.
func (v *view) say(line string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clear()
	fmt.Fprintln(v.out, line)
}

func (v *view) show() {
	every := repeated
	if v.terminal {
		every = redrawn
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-v.stop:
			return
		case <-tick.C:
			v.mu.Lock()
			v.clear()
			fmt.Fprint(v.out, "   ", v.progress.line(v.programs[v.progress.current].name, time.Since(v.began)))
			if !v.terminal {
				fmt.Fprintln(v.out)
			}
			v.mu.Unlock()
		}
	}
}

// clear removes the last line on a terminal, before the next replaces it.
func (v *view) clear() {
	if v.terminal {
		fmt.Fprint(v.out, "\r\x1b[K")
	}
}

// end sums up, if anything was compiled.
func (v *view) end() {
	close(v.stop)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.began.IsZero() {
		return
	}
	v.clear()
	done, _, _ := v.progress.counts()
	fmt.Fprintf(v.out, "   %d packages compiled in %.0f s, with %.0f s of processor time\n", done, time.Since(v.began).Seconds(), v.processor.Seconds())
}
