package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestALoadFindsAByteThatHasChanged(t *testing.T) {
	volume, journal := t.TempDir(), filepath.Join(t.TempDir(), "journal")
	first := &load{volume: volume, name: "v", blocks: true, files: map[string]file{}}
	if err := first.open(journal); err != nil {
		t.Fatal(err)
	}
	for range 60 {
		if err := first.operate(); err != nil {
			t.Fatal(err)
		}
	}
	// What a kill leaves behind is of no use and no fault.
	first.generation++
	fmt.Fprintf(first.journal, "begin file-1 %d 5\nbegin block-", first.generation)
	second := &load{volume: volume, name: "v", blocks: true, files: map[string]file{}}
	if err := second.open(journal); err != nil {
		t.Fatal(err)
	}
	if err := second.operate(); err != nil {
		t.Fatal(err)
	}
	for name, f := range second.files {
		path, offset := second.at(name)
		if offset >= 0 || f.size == 0 {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)/2] ^= 1
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		break
	}
	third := &load{volume: volume, name: "v", blocks: true, files: map[string]file{}}
	if err := third.open(journal); err == nil {
		t.Error("a changed byte was not found")
	}
}

func TestALoadRejectsANewVolumeWithAFile(t *testing.T) {
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "left"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l := &load{volume: volume, name: "v", files: map[string]file{}}
	if err := l.open(filepath.Join(t.TempDir(), "journal")); err == nil {
		t.Error("the file was not found")
	}
}
