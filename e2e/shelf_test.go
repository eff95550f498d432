//go:build e2e

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// shelved gives the sections of a provisioner with real storage. Each volume is a directory on a
// shelf, itself a directory of the node, and is bind-mounted where it is staged. Tarn has to
// unmount it.
func shelved(shelf string) fields {
	return fields{
		"volumeCreation": script{hostDir: shelf,
			text: "set -e; mkdir /host/{{ defaultHandle|tobash }}; chmod 777 /host/{{ defaultHandle|tobash }}; echo {{ requestedMinCapacity }} > /pav/capacity",
		}.section(nil),
		"volumeDeletion": script{hostDir: shelf,
			text: "rm -r /host/{{ handle|tobash }}",
		}.section(nil),
		"volumeStaging": script{hostDir: shelf, privileged: true,
			text: "set -e; mkdir /pav/volume; mount --bind /host/{{ handle|tobash }} /pav/volume",
		}.section(nil),
		"volumeUnstaging": script{hostDir: shelf,
			text: "echo {{ handle|tobash }} on {{ node.metadata.name|tobash }} >> /host/unstaged",
		}.section(nil),
	}
}

// shelving begins a case whose provisioner has a shelf, and gives the shelf.
func shelving(t *testing.T, label string) (*scenario, string) {
	t.Helper()
	shelf := t.TempDir()
	s := begin(t, label)
	s.needsThisMachine()
	s.create(s.provisioner(shelved(shelf)))
	return s, shelf
}

// unstaged reads and removes the note that the unstaging pods have left on a shelf.
func unstaged(t *testing.T, shelf string) string {
	t.Helper()
	path := filepath.Join(shelf, "unstaged")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// readNote gives the file called note of the volume with a handle.
func readNote(t *testing.T, shelf, handle string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(shelf, handle, "note"))
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// entriesOf names the entries of a shelf, without the note of the unstaging pods.
func entriesOf(t *testing.T, shelf string) []string {
	t.Helper()
	unstaged(t, shelf)
	list, err := os.ReadDir(shelf)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range list {
		names = append(names, entry.Name())
	}
	return names
}
