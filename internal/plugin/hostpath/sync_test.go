package hostpath

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"tarn.dev/tarn/internal/plugin"
)

// A call that finds its work done must still sync: the earlier call may have been killed before its
// own sync, and the API write that follows is permanent.
func TestEachCallEndsWithWhatAPowerCutCannotUndo(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	p, err := New(root, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	var synced []string
	f, ok := p.Creator.(folders)
	if !ok {
		t.Fatalf("the plugin is a %T", p.Creator)
	}
	f.sync = func(file *os.File) error {
		if _, err := os.Lstat(filepath.Join(root, graveOf("a"))); err == nil {
			t.Errorf("%s is synced while the volume is half gone", file.Name())
		}
		synced = append(synced, filepath.Base(file.Name()))
		return nil
	}
	request := plugin.Request{Name: "a", Bytes: 1, Mode: corev1.PersistentVolumeFilesystem}
	v := plugin.Volume{Name: "a"}
	create := func() error { _, err := f.Create(t.Context(), request); return err }
	remove := func() error { return f.Delete(t.Context(), v) }
	for _, c := range []struct {
		what string
		call func() error
		want []string
	}{
		{"making it", create, []string{"a", "root"}},
		{"making it again", create, []string{"a", "root"}},
		{"scrubbing it", func() error { return f.Recycle(t.Context(), v) }, []string{"a", "root"}},
		{"deleting it", remove, []string{"root"}},
		{"deleting it again", remove, []string{"root"}},
	} {
		synced = nil
		if err := c.call(); err != nil || !slices.Equal(synced, c.want) {
			t.Errorf("%s: %v, synced %q, want %q", c.what, err, synced, c.want)
		}
	}
}
