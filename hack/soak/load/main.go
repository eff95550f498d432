// Command load writes to a volume until it is told to end, and holds all of it against a journal
// outside of the volume. It runs in the pods of hack/soak, and must not know what serves the volume.
//
//	load VOLUME JOURNAL NAME [blocks] [faults] [recovers]
//
// Every byte follows from the name, so that a load which starts again on the same volume can check
// what the last one wrote. With "blocks" it also writes within a file and renames files. With
// "faults" an operation that fails is repeated, because the volume's server may be killed; without,
// it ends the load. With "recovers" the newest content of a file may be in NAME.recovered, as the
// provisioner's README says.
//
// A line of the journal is written before an operation and after it, when the volume has synced
// it. SIGTERM ends the load: it then checks everything and writes "verified" as the last line.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

const (
	// most is how many bytes of files a volume has at a time.
	most = 24 << 20
	// largest is the size of the largest file.
	largest = 2 << 20
	// block and blocks are the size of a write within the file "blocks", and their number in it.
	block, blocks = 64 << 10, 64
	// pause lies between two operations: the machine has other work.
	pause = 25 * time.Millisecond
	// patience is how long a volume may fail where faults are expected.
	patience = 4 * time.Minute
)

// file is what the volume has under a name. Its content follows from generation and size. A size
// of -1 stands for no file. The state is uncertain while an operation has begun and not ended.
type file struct {
	generation uint64
	size       int
	uncertain  bool
}

type load struct {
	volume, name string
	journal      *os.File
	files        map[string]file
	generation   uint64
	random       *rand.Rand
	failed       int // operations
	recovered    int // files

	blocks, faults, recovers bool
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: load VOLUME JOURNAL NAME [blocks] [faults]")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	has := func(flag string) bool { return slices.Contains(os.Args[4:], flag) }
	l := &load{volume: os.Args[1], name: os.Args[3], files: map[string]file{}, blocks: has("blocks"), faults: has("faults"), recovers: has("recovers")}
	if err := l.run(ctx, os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		if l.journal != nil {
			fmt.Fprintf(l.journal, "failed %q\n", err)
		}
		os.Exit(1)
	}
}

// open continues where the journal ends, after it has checked what was written so far.
func (l *load) open(journal string) error {
	if err := l.replay(journal); err != nil {
		return err
	}
	l.random = rand.New(rand.NewPCG(l.generation, uint64(len(l.files))))
	if err := l.verify(); err != nil {
		return err
	}
	return l.settle()
}

func (l *load) run(ctx context.Context, journal string) error {
	if err := l.open(journal); err != nil {
		return err
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			if err := l.verify(); err != nil {
				return err
			}
			_, err := fmt.Fprintf(l.journal, "verified %d failed %d recovered %d\n", len(l.files), l.failed, l.recovered)
			return err
		case <-tick.C:
			if err := l.operate(); err != nil {
				return err
			}
		}
	}
}

// replay reads the journal of earlier loads and opens it to continue.
func (l *load) replay(path string) error {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		var verb, name string
		var f file
		if n, _ := fmt.Sscan(lines.Text(), &verb, &name, &f.generation, &f.size); n < 4 {
			continue // a line that a kill has cut off, or no operation
		}
		l.generation = max(l.generation, f.generation)
		switch {
		case verb == "begin":
			old, known := l.files[name]
			if !known {
				old.size = -1
			}
			old.uncertain = true
			l.files[name] = old
		case verb == "end" && f.size < 0:
			delete(l.files, name)
		case verb == "end":
			l.files[name] = f
		}
	}
	if l.journal, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return err
	}
	if len(text) == 0 {
		return l.persist("reading the new volume", l.empty)
	}
	_, err = l.journal.WriteString("\n") // a kill may have cut the last line off
	return err
}

// empty fails if a new volume has a file: its last user has left it.
func (l *load) empty() error {
	return filepath.WalkDir(l.volume, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			err = fmt.Errorf("the new volume has the file %s", path)
		}
		return err
	})
}

// content is what a file of this name, generation and size contains.
func (l *load) content(name string, f file) []byte {
	data := make([]byte, f.size)
	_, _ = rand.NewChaCha8(sha256.Sum256(fmt.Appendf(nil, "%s %s %d", l.name, name, f.generation))).Read(data) // never fails
	return data
}

// at gives where a name lies: a block in the file of all blocks, or a file in a directory.
func (l *load) at(name string) (path string, offset int64) {
	var n int64
	if _, err := fmt.Sscanf(name, "block-%d", &n); err == nil {
		return filepath.Join(l.volume, "blocks"), n * block
	}
	return filepath.Join(l.volume, "files", name), -1
}

// verify reads everything whose state is certain.
func (l *load) verify() error {
	for name, f := range l.files {
		if f.uncertain {
			continue
		}
		if err := l.check(name, f); err != nil {
			return err
		}
	}
	return nil
}

// check reads one file, and fails if it has another content.
func (l *load) check(name string, f file) error {
	path, offset := l.at(name)
	got, err := l.read(path, offset, f.size)
	if err != nil {
		return err
	}
	want := l.content(name, f)
	if bytes.Equal(got, want) {
		return nil
	}
	if last, err := os.ReadFile(path + ".recovered"); l.recovers && err == nil && bytes.Equal(last, want) {
		if err := os.Remove(path + ".recovered"); err != nil {
			return err
		}
		l.recovered++
		return l.write(name, f.size)
	}
	return fmt.Errorf("%s has sha256 %x and %d bytes, want %x and %d of generation %d", name, sha256.Sum256(got), len(got), sha256.Sum256(want), len(want), f.generation)
}

// read gives a whole file, or of one with blocks as many bytes as are asked for.
func (l *load) read(path string, offset int64, size int) (got []byte, err error) {
	err = l.persist("reading "+path, func() (err error) {
		if offset < 0 {
			got, err = os.ReadFile(path)
			return err
		}
		open, err := os.Open(path)
		if err != nil {
			return err
		}
		defer open.Close()
		got = make([]byte, size)
		_, err = open.ReadAt(got, offset)
		return err
	})
	return got, err
}

// settle removes files of an uncertain state, and writes such blocks anew.
func (l *load) settle() error {
	for name, f := range l.files {
		if !f.uncertain {
			continue
		}
		f.size = -1
		if _, offset := l.at(name); offset >= 0 {
			f.size = block
		}
		if err := l.write(name, f.size); err != nil {
			return err
		}
	}
	return l.persist("making the directory", l.directory)
}

// directory makes the directory of all files. One that a kill of gocryptfs has left half made cannot
// be used. One with files stays.
func (l *load) directory() error {
	dir := filepath.Join(l.volume, "files")
	_ = os.Remove(dir)
	return os.MkdirAll(dir, 0o777)
}

// operate does one operation at random.
func (l *load) operate() error {
	bytes, names := 0, []string{}
	for name, f := range l.files {
		if _, offset := l.at(name); offset < 0 {
			bytes, names = bytes+f.size, append(names, name)
		}
	}
	slices.Sort(names)
	one := func() string { return names[l.random.IntN(len(names))] }
	size := 1 << l.random.IntN(21)
	size = min(size+l.random.IntN(size), largest)
	choice := l.random.IntN(10)
	switch {
	case len(names) > 0 && bytes+size > most:
		return l.write(one(), -1)
	case l.blocks && choice < 4:
		return l.write(fmt.Sprintf("block-%d", l.random.IntN(blocks)), block)
	case choice < 7 || len(names) == 0:
		return l.write(fmt.Sprintf("file-%d", l.generation+1), size)
	case choice == 7: // another content under an old name
		return l.write(one(), size)
	default:
		name := one()
		return l.check(name, l.files[name])
	}
}

// write gives a name a new content, or none with a size of -1.
func (l *load) write(name string, size int) error {
	l.generation++
	f := file{generation: l.generation, size: size}
	if _, err := fmt.Fprintf(l.journal, "begin %s %d %d\n", name, f.generation, f.size); err != nil {
		return err
	}
	err := l.persist("writing "+name, func() error {
		path, offset := l.at(name)
		if size < 0 {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}
		how, into := os.O_CREATE|os.O_WRONLY, path
		switch {
		case offset < 0 && l.blocks: // a file system of its own renames
			how, into = how|os.O_TRUNC, path+".new"
		case offset < 0:
			how |= os.O_TRUNC
		}
		open, err := os.OpenFile(into, how, 0o666)
		if l.faults && errors.Is(err, fs.ErrNotExist) {
			return errors.Join(err, l.directory()) // a bucket forgets an empty one with its server
		}
		if err != nil {
			return err
		}
		_, err = open.WriteAt(l.content(name, f), max(offset, 0))
		if err = errors.Join(err, open.Sync(), open.Close()); err == nil && into != path {
			err = os.Rename(into, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	if l.files[name] = f; size < 0 {
		delete(l.files, name)
	}
	_, err = fmt.Fprintf(l.journal, "end %s %d %d\n", name, f.generation, f.size)
	return err
}

// persist repeats what fails, where faults are expected.
func (l *load) persist(what string, do func() error) error {
	err := do()
	if err == nil {
		return nil
	}
	over, again := time.NewTimer(patience), time.NewTicker(100*time.Millisecond)
	defer over.Stop()
	defer again.Stop()
	for l.faults {
		l.failed++
		select {
		case <-over.C:
			return fmt.Errorf("%s has failed for %s: %w", what, patience, err)
		case <-again.C:
		}
		if err = do(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}
