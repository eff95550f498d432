package mounts

import (
	"path/filepath"
	"testing"

	"tarn.dev/tarn/internal/node/nodetest"
)

func TestAMountThatCannotBeExchangedIsHiddenBelowTheNewOne(t *testing.T) {
	const notKnown = 0x80000 // what a kernel before 6.5 takes the flag for
	for what, c := range map[string]struct{ beneath, wantLayers int }{
		"exchanged":        {moveMountBeneath, 1},
		"on an old kernel": {notKnown, 2},
	} {
		t.Run(what, func(t *testing.T) {
			dir := nodetest.Tmpfs(t)
			target, again := mkdir(t, dir, "target"), mkdir(t, dir, "again")
			for folder, text := range map[string]string{target: "old", again: "new"} {
				nodetest.MountTmpfs(t, folder)
				write(t, filepath.Join(folder, "greeting"), text)
			}
			tree, err := Clone(open(t, again), true, true)
			nodetest.Must(t, err)
			defer func() { _ = tree.Close() }()
			nodetest.Must(t, put(tree, open(t, target), OwnFiles, c.beneath))
			if got := read(t, filepath.Join(target, "greeting")); got != "new" {
				t.Errorf("the target holds %q, want what is new", got)
			}
			layers := mountsUnder(t, target)
			if len(layers) != c.wantLayers || !layers[len(layers)-1].ReadOnly {
				t.Errorf("mounted at the target is %v, want %d, the uppermost read-only", layers, c.wantLayers)
			}
		})
	}
}
