// Package plugintest holds the suite that every in-process plugin must pass, and a fake plugin that
// passes it. The fake is for tests of code that calls plugins. The package must not know any real
// plugin.
package plugintest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"tarn.dev/tarn/internal/plugin"
)

// Fake keeps its volumes in memory. Like storage, it outlives controllers that a test kills and
// starts again.
type Fake struct {
	mu      sync.Mutex
	volumes map[string]map[string]bool // volume -> files
	made    map[string]int
	deleted map[string]int
	broken  map[Call]error
	place   string
}

// Call is one of the calls of a plugin.
type Call string

// The calls that can be broken.
const (
	Create  Call = "Create"
	Delete  Call = "Delete"
	Recycle Call = "Recycle"
)

// NewFake gives a plugin of a name and a node, with its storage.
func NewFake(name, node string) (*Fake, plugin.Plugin) {
	return newFake(name, node, "fake-1")
}

// NewFakeElsewhere gives the same with another storage at the same address, like a machine whose
// disk is not mounted.
func NewFakeElsewhere(name, node string) (*Fake, plugin.Plugin) {
	return newFake(name, node, "fake-2")
}

func newFake(name, node, place string) (*Fake, plugin.Plugin) {
	f := &Fake{volumes: map[string]map[string]bool{}, made: map[string]int{}, deleted: map[string]int{}, broken: map[Call]error{}, place: place}
	return f, plugin.Plugin{Name: name, Node: node, Place: place, Creator: f, Deleter: f, Recycler: f}
}

// Break makes a call fail from now on, after it has done its work; nil repairs it.
func (f *Fake) Break(c Call, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken[c] = err
}

// Names are the present volumes.
func (f *Fake) Names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.volumes))
}

// Ever are all volumes that were ever made.
func (f *Fake) Ever() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.made))
}

// Made counts the creations of a volume, without calls that found it existing.
func (f *Fake) Made(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made[name]
}

// Deleted counts the deletions of a volume.
func (f *Fake) Deleted(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.deleted[name]
}

// Write creates a file in a volume.
func (f *Fake) Write(name, file string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.volumes[name][file] = true
}

// Files lists the files of a volume.
func (f *Fake) Files(name string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.volumes[name]))
}

// Check implements plugin.Creator.
func (f *Fake) Check(r plugin.Request) error {
	if r.Mode != corev1.PersistentVolumeFilesystem {
		return fmt.Errorf("volumeMode %s: the fake has files alone", r.Mode)
	}
	for name := range r.Parameters {
		return fmt.Errorf("parameter %s: the fake has none", name)
	}
	return nil
}

// Create implements plugin.Creator.
func (f *Fake) Create(_ context.Context, r plugin.Request) (plugin.Asset, error) {
	if err := f.Check(r); err != nil {
		return plugin.Asset{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.volumes[r.Name] == nil {
		f.volumes[r.Name] = map[string]bool{}
		f.made[r.Name]++
	}
	return plugin.Asset{Source: f.source(r.Name)}, f.broken[Create]
}

func (f *Fake) source(name string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/fake/" + name}}
}

// Delete implements plugin.Deleter.
func (f *Fake) Delete(ctx context.Context, v plugin.Volume) error {
	if err := f.mine(ctx, v); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.volumes[v.Name] != nil {
		delete(f.volumes, v.Name)
		f.deleted[v.Name]++
	}
	return f.broken[Delete]
}

// Recycle implements plugin.Recycler.
func (f *Fake) Recycle(ctx context.Context, v plugin.Volume) error {
	if err := f.mine(ctx, v); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.volumes[v.Name] = map[string]bool{}
	return f.broken[Recycle]
}

// Misses implements plugin.Creator.
func (f *Fake) Misses(v plugin.Volume) error {
	if v.Place == "" || v.Place == f.place || v.Source != nil && (v.Source.Local == nil || v.Source.Local.Path != f.source(v.Name).Local.Path) {
		return nil
	}
	return fmt.Errorf("volume %s lies in %s, and here is %s", v.Name, v.Place, f.place)
}

func (f *Fake) mine(ctx context.Context, v plugin.Volume) error {
	if want := f.source(v.Name).Local.Path; v.Source != nil && (v.Source.Local == nil || v.Source.Local.Path != want) {
		return fmt.Errorf("volume %s does not lie at %s", v.Name, want)
	}
	return errors.Join(f.Misses(v), ctx.Err())
}
