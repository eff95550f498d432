package plugintest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"tarn.dev/tarn/internal/plugin"
)

// World is a plugin, with access to its storage that bypasses the plugin.
type World struct {
	Plugin plugin.Plugin
	// Another is the place of another storage at the same address. It is empty if the plugin
	// accepts any place.
	Another string
	// Request is a request the plugin can serve. The suite sets its name.
	Request plugin.Request
	// Unserved are requests that the plugin must reject, by what is wrong with them.
	Unserved map[string]plugin.Request
	// Foreign are sources that Create does not give for a volume of this name: of other kinds,
	// outside the plugin's storage, or of another volume.
	Foreign func(name string) map[string]corev1.PersistentVolumeSource
	// Write creates a file in a volume, and Files lists the files of a volume.
	Write func(t *testing.T, name, file string)
	Files func(t *testing.T, name string) []string
	// Names are all volumes in the storage, parts of them included.
	Names func(t *testing.T) []string
}

// Conform runs the suite. Each case gets its own World.
func Conform(t *testing.T, world func(t *testing.T) World) {
	for name, check := range map[string]func(*testing.T, World){
		"a volume is made once, whatever is asked":                      madeOnce,
		"what it cannot serve it rejects, and makes nothing":            refuses,
		"a volume that is made again keeps its data":                    keepsData,
		"deletion takes one volume, and all of it":                      deletesOne,
		"what is gone, or never was, is deleted without an error":       deletesTwice,
		"what was made is deleted by its name alone":                    deletesByName,
		"a deleted volume is made again, empty":                         makesAgain,
		"a volume that is not its own is neither deleted nor scrubbed":  sparesForeign,
		"a volume of another place is missed, and spared":               sparesMissing,
		"a scrubbed volume is empty and itself":                         scrubs,
		"what was stopped continues at the next call":                   stops,
		"volumes come and go beside each other":                         sideBySide,
		"a request that names what exists does not change its contents": remakesQuietly,
	} {
		t.Run(name, func(t *testing.T) { check(t, world(t)) })
	}
}

// request is a good request for a name.
func (w World) request(name string) plugin.Request {
	r := w.Request
	r.Name = name
	return r
}

func (w World) make(t *testing.T, name string) plugin.Volume {
	t.Helper()
	if err := w.Plugin.Creator.Check(w.request(name)); err != nil {
		t.Fatalf("Check rejects the suite's own request: %v", err)
	}
	asset, err := w.Plugin.Creator.Create(t.Context(), w.request(name))
	if err != nil {
		t.Fatalf("making volume %s: %v", name, err)
	}
	if asset.Bytes != 0 && asset.Bytes < w.Request.Bytes {
		t.Errorf("volume %s holds %d bytes, want %d at least", name, asset.Bytes, w.Request.Bytes)
	}
	return plugin.Volume{Name: name, Source: &asset.Source, Place: w.Plugin.Place}
}

func (w World) has(t *testing.T, want ...string) {
	t.Helper()
	if got := w.Names(t); !slices.Equal(got, want) {
		t.Errorf("the storage has %q, want %q", got, want)
	}
}

func (w World) holds(t *testing.T, name string, want ...string) {
	t.Helper()
	if got := w.Files(t, name); !slices.Equal(got, want) {
		t.Errorf("volume %s holds %q, want %q", name, got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func madeOnce(t *testing.T, w World) {
	first, second := w.make(t, "a"), w.make(t, "a")
	if first.Source.String() != second.Source.String() {
		t.Errorf("the source was %v at first and then %v", first.Source, second.Source)
	}
	w.has(t, "a")
}

func refuses(t *testing.T, w World) {
	if len(w.Unserved) == 0 {
		t.Fatal("the world names no request the plugin must reject")
	}
	for what, r := range w.Unserved {
		r.Name = "a"
		if w.Plugin.Creator.Check(r) == nil {
			t.Errorf("%s: Check lets it pass", what)
		}
		if _, err := w.Plugin.Creator.Create(t.Context(), r); err == nil {
			t.Errorf("%s: Create made it", what)
		}
	}
	w.has(t)
}

func keepsData(t *testing.T, w World) {
	w.make(t, "a")
	w.Write(t, "a", "note")
	w.make(t, "a")
	w.holds(t, "a", "note")
}

func remakesQuietly(t *testing.T, w World) {
	w.make(t, "a")
	w.Write(t, "a", "note")
	larger := w.request("a")
	larger.Bytes *= 2
	_, err := w.Plugin.Creator.Create(t.Context(), larger)
	must(t, err)
	w.holds(t, "a", "note")
	w.has(t, "a")
}

func deletesOne(t *testing.T, w World) {
	first, second := w.make(t, "a"), w.make(t, "a-b")
	w.Write(t, "a", "note")
	w.Write(t, "a-b", "note")
	must(t, w.Plugin.Deleter.Delete(t.Context(), first))
	w.has(t, "a-b")
	w.holds(t, "a-b", "note")
	must(t, w.Plugin.Deleter.Delete(t.Context(), second))
	w.has(t)
}

func deletesTwice(t *testing.T, w World) {
	v := w.make(t, "a")
	must(t, w.Plugin.Deleter.Delete(t.Context(), v))
	must(t, w.Plugin.Deleter.Delete(t.Context(), v))
	must(t, w.Plugin.Deleter.Delete(t.Context(), plugin.Volume{Name: "never"}))
}

func deletesByName(t *testing.T, w World) {
	w.make(t, "a")
	w.Write(t, "a", "note")
	must(t, w.Plugin.Deleter.Delete(t.Context(), plugin.Volume{Name: "a"}))
	w.has(t)
}

func makesAgain(t *testing.T, w World) {
	v := w.make(t, "a")
	w.Write(t, "a", "note")
	must(t, w.Plugin.Deleter.Delete(t.Context(), v))
	w.make(t, "a")
	w.holds(t, "a")
}

func sparesForeign(t *testing.T, w World) {
	w.make(t, "a")
	w.make(t, "b")
	w.Write(t, "b", "note")
	foreign := w.Foreign("a")
	if len(foreign) == 0 {
		t.Fatal("the world names no foreign source")
	}
	for what, source := range foreign {
		v := plugin.Volume{Name: "a", Source: &source}
		if w.Plugin.Deleter.Delete(t.Context(), v) == nil {
			t.Errorf("%s: deleted without an error", what)
		}
		if w.Plugin.Recycler != nil && w.Plugin.Recycler.Recycle(t.Context(), v) == nil {
			t.Errorf("%s: scrubbed without an error", what)
		}
	}
	w.has(t, "a", "b")
	w.holds(t, "b", "note")
}

func sparesMissing(t *testing.T, w World) {
	if w.Plugin.Place == "" {
		t.Skip("the plugin has one place alone")
	}
	v := w.make(t, "a")
	w.Write(t, "a", "note")
	if err := w.Plugin.Creator.Misses(v); err != nil {
		t.Errorf("its own volume is missed: %v", err)
	}
	for what, source := range w.Foreign("a") {
		if err := w.Plugin.Creator.Misses(plugin.Volume{Name: "a", Source: &source, Place: cmp.Or(w.Another, "another")}); err != nil {
			t.Errorf("%s, which never lay here, is missed: %v", what, err)
		}
	}
	for what, source := range map[string]*corev1.PersistentVolumeSource{"by its source": v.Source, "by its name": nil} {
		missing := plugin.Volume{Name: "a", Source: source, Place: cmp.Or(w.Another, "another")}
		if w.Plugin.Creator.Misses(missing) == nil {
			t.Errorf("a volume of another place is not missed %s", what)
		}
		if w.Plugin.Deleter.Delete(t.Context(), missing) == nil {
			t.Errorf("a volume of another place was deleted %s", what)
		}
		if w.Plugin.Recycler != nil && w.Plugin.Recycler.Recycle(t.Context(), missing) == nil {
			t.Errorf("a volume of another place was scrubbed %s", what)
		}
	}
	w.holds(t, "a", "note")
}

func scrubs(t *testing.T, w World) {
	if w.Plugin.Recycler == nil {
		t.Skip("the plugin has no Recycler")
	}
	v, other := w.make(t, "a"), w.make(t, "b")
	w.Write(t, "a", "note")
	w.Write(t, "b", "note")
	for range 2 { // the second finds nothing to do
		must(t, w.Plugin.Recycler.Recycle(t.Context(), v))
		w.has(t, "a", "b")
		w.holds(t, "a")
	}
	w.Write(t, "a", "next")
	w.holds(t, "a", "next")
	w.holds(t, other.Name, "note")
}

func stops(t *testing.T, w World) {
	v := w.make(t, "a")
	w.Write(t, "a", "note")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Plugin.Deleter.Delete(ended, v); !errors.Is(err, context.Canceled) {
		t.Errorf("a deletion whose context has ended gives %v, want the context's error", err)
	}
	must(t, w.Plugin.Deleter.Delete(t.Context(), v))
	w.has(t)
}

func sideBySide(t *testing.T, w World) {
	var all sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		all.Go(func() {
			for range 5 {
				asset, err := w.Plugin.Creator.Create(t.Context(), w.request(name))
				if err != nil {
					t.Error(err)
					return
				}
				w.Write(t, name, "note")
				if err := w.Plugin.Deleter.Delete(t.Context(), plugin.Volume{Name: name, Source: &asset.Source}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	w.has(t)
}
