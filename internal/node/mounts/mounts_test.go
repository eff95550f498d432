package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tarn.dev/tarn/internal/node/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m.Run) }

func open(t *testing.T, path string) *os.File {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open %s: %v", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func mkdir(t *testing.T, elements ...string) string {
	t.Helper()
	dir := filepath.Join(elements...)
	nodetest.Must(t, os.MkdirAll(dir, 0o755))
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	nodetest.Must(t, os.WriteFile(path, []byte(text), 0o644))
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	nodetest.Must(t, err)
	return string(data)
}

func mountsUnder(t *testing.T, path string) []Mount {
	t.Helper()
	table, err := Kernel{}.List()
	nodetest.Must(t, err)
	return Under(table, path)
}

func TestAVolumeIsShownAtItsTargetAndGoneAfterwards(t *testing.T) {
	top := nodetest.Tmpfs(t)
	source := mkdir(t, top, "volume with blanks")
	write(t, filepath.Join(source, "greeting"), "hello")
	target := filepath.Join(mkdir(t, top, "pods and more"), "mount")
	for range 2 { // again is the same
		nodetest.Must(t, EnsureBind(Kernel{}, open(t, source), target, false))
	}
	if got := read(t, filepath.Join(target, "greeting")); got != "hello" {
		t.Errorf("read %q through the target", got)
	}
	if found := mountsUnder(t, target); len(found) != 1 {
		t.Errorf("mounts at the target: %v, want one", found)
	}
	write(t, filepath.Join(target, "written"), "by the pod")
	if err := RemoveTarget(Kernel{}, target); err == nil {
		t.Error("a target that is still mounted was removed")
	}
	for range 2 {
		nodetest.Must(t, UnmountTree(Kernel{}, target, nil))
		nodetest.Must(t, RemoveTarget(Kernel{}, target))
	}
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("target is still there: %v", err)
	}
	if got := read(t, filepath.Join(source, "written")); got != "by the pod" {
		t.Errorf("the volume holds %q", got)
	}
}

func TestAReadOnlyTargetCannotBeWrittenNorCanWhatIsMountedBelow(t *testing.T) {
	top := nodetest.Tmpfs(t)
	source := mkdir(t, top, "volume")
	nodetest.MountTmpfs(t, filepath.Join(source, "below"))
	target := filepath.Join(top, "target")
	nodetest.Must(t, EnsureBind(Kernel{}, open(t, source), target, true))
	for _, dir := range []string{target, filepath.Join(target, "below")} {
		if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing in %s: %v, want a read-only file system", dir, err)
		}
	}
	write(t, filepath.Join(source, "below", "x"), "the source stays writable")
	// A request for write access to the same volume replaces the mount.
	nodetest.Must(t, EnsureBind(Kernel{}, open(t, source), target, false))
	write(t, filepath.Join(target, "x"), "")
}

func TestAVolumeThatIsMountedReadOnlyIsShownReadOnlyToAll(t *testing.T) {
	top := nodetest.Tmpfs(t)
	source := mkdir(t, top, "volume")
	nodetest.MountTmpfs(t, source)
	nodetest.Must(t, unix.Mount("", source, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOEXEC, ""))
	target := filepath.Join(top, "target")
	for range 2 { // and found right again
		nodetest.Must(t, EnsureBind(Kernel{}, open(t, source), target, false))
	}
	if err := os.WriteFile(filepath.Join(target, "x"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing: %v, want a read-only file system", err)
	}
	var is unix.Statfs_t
	if err := unix.Statfs(target, &is); err != nil || is.Flags&unix.ST_NOEXEC == 0 {
		t.Errorf("the target has flags %#x (%v), want noexec among them", is.Flags, err)
	}
}

func TestUnmountingTheTargetLeavesTheSourcesMountsAlone(t *testing.T) {
	top := nodetest.Tmpfs(t)
	source := mkdir(t, top, "volume")
	below := filepath.Join(source, "below")
	nodetest.MountTmpfs(t, below)
	write(t, filepath.Join(below, "data"), "precious")
	target := filepath.Join(top, "target")
	nodetest.Must(t, EnsureBind(Kernel{}, open(t, source), target, false))
	if got := read(t, filepath.Join(target, "below", "data")); got != "precious" {
		t.Errorf("the target shows %q", got)
	}
	nodetest.Must(t, UnmountTree(Kernel{}, target, nil))
	if got := read(t, filepath.Join(below, "data")); got != "precious" {
		t.Errorf("the source's own mount was unmounted with the target: %q", got)
	}
}

func TestAMountMadeLaterInTheVolumeArrivesAtTheTarget(t *testing.T) {
	top := nodetest.Tmpfs(t)
	source := mkdir(t, top, "volume", "later")
	target := filepath.Join(top, "target")
	nodetest.Must(t, EnsureBind(Kernel{}, open(t, filepath.Dir(source)), target, false))
	nodetest.MountTmpfs(t, source)
	write(t, filepath.Join(source, "file"), "here")
	if got := read(t, filepath.Join(target, "later", "file")); got != "here" {
		t.Errorf("the target shows %q", got)
	}
}

func TestWhateverElseIsMountedAtTheTargetIsReplaced(t *testing.T) {
	top := nodetest.Tmpfs(t)
	source := mkdir(t, top, "volume")
	target := mkdir(t, top, "target")
	nodetest.MountTmpfs(t, target)
	nodetest.MountTmpfs(t, target)
	nodetest.Must(t, EnsureBind(Kernel{}, open(t, source), target, false))
	if found := mountsUnder(t, target); len(found) != 1 || found[0].Root != "/volume" {
		t.Errorf("mounts at the target: %v, want the volume alone", found)
	}
}

func TestAFileIsBoundAtAFile(t *testing.T) {
	top := nodetest.Tmpfs(t)
	node := filepath.Join(top, "device")
	nodetest.Must(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))))
	target := filepath.Join(top, "pod-uid")
	nodetest.Must(t, EnsureBind(Kernel{}, open(t, node), target, false))
	var stat unix.Stat_t
	if err := unix.Stat(target, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFBLK || stat.Rdev != unix.Mkdev(7, 0) {
		t.Errorf("the target is %o %d (%v), want block device 7:0", stat.Mode, stat.Rdev, err)
	}
	nodetest.Must(t, UnmountTree(Kernel{}, target, nil))
	nodetest.Must(t, RemoveTarget(Kernel{}, target))
}

func TestLayersAndNestedMountsAreAllUnmounted(t *testing.T) {
	top := nodetest.Tmpfs(t)
	dir := mkdir(t, top, "stage", "pav")
	for _, below := range []string{"", "", "a", "a/b", "a/b", "c d"} {
		nodetest.MountTmpfs(t, filepath.Join(dir, below))
	}
	nodetest.Must(t, UnmountTree(Kernel{}, filepath.Dir(dir), nil))
	if found := mountsUnder(t, filepath.Dir(dir)); len(found) != 0 {
		t.Errorf("left: %v", found)
	}
}

func TestNoMountIsReachedThroughALinkThatTookTheFoldersPlace(t *testing.T) {
	dir := nodetest.Tmpfs(t)
	volume, elsewhere := mkdir(t, dir, "volume"), mkdir(t, dir, "elsewhere")
	inner, other := mkdir(t, volume, "deep/inner"), mkdir(t, elsewhere, "inner")
	nodetest.MountTmpfs(t, inner)
	nodetest.MountTmpfs(t, other)
	// A process with write access to the volume swaps the directory between two lookups.
	nodetest.Must(t, errors.Join(os.Rename(filepath.Join(volume, "deep"), filepath.Join(volume, "moved")), os.Symlink(elsewhere, filepath.Join(volume, "deep"))))
	for what, unmount := range map[string]func(string) error{"unmount": Kernel{}.Unmount, "detach": Kernel{}.Detach} {
		if err := unmount(inner); !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s of %s: got %v, want it to follow no link", what, inner, err)
		}
	}
	if left := mountsUnder(t, other); len(left) != 1 {
		t.Errorf("what is mounted at %s is %v, want it left alone", other, left)
	}
	if err := UnmountTree(Kernel{}, volume, nil); err != nil || len(mountsUnder(t, volume)) > 0 {
		t.Errorf("the volume's own mount stays: %v (%v)", mountsUnder(t, volume), err)
	}
}

func TestABusyMountIsAnErrorOrDetachedWhenAsked(t *testing.T) {
	top := nodetest.Tmpfs(t)
	dir := filepath.Join(top, "busy")
	nodetest.MountTmpfs(t, dir)
	f, err := os.Create(filepath.Join(dir, "open"))
	nodetest.Must(t, err)
	defer func() { _ = f.Close() }()
	if err := UnmountTree(Kernel{}, dir, nil); !errors.Is(err, unix.EBUSY) {
		t.Errorf("unmounting a busy mount: %v, want busy", err)
	}
	var told []string
	err = UnmountTree(Kernel{}, dir, func(point string, busy error) { told = append(told, point) })
	if err != nil || len(told) != 1 || told[0] != dir {
		t.Errorf("detached %v: %v", told, err)
	}
	if found := mountsUnder(t, dir); len(found) != 0 {
		t.Errorf("left: %v", found)
	}
}

func TestATargetThatIsNotOursIsLeftAlone(t *testing.T) {
	top := nodetest.Tmpfs(t)
	full := mkdir(t, top, "full")
	write(t, filepath.Join(full, "file"), "x")
	written := filepath.Join(top, "written")
	write(t, written, "x")
	link := filepath.Join(top, "link")
	nodetest.Must(t, os.Symlink(full, link))
	for _, target := range []string{full, written, link} {
		if err := RemoveTarget(Kernel{}, target); err == nil {
			t.Errorf("%s was removed", target)
		}
	}
	for _, target := range []string{written, link} {
		if err := EnsureBind(Kernel{}, open(t, full), target, false); err == nil {
			t.Errorf("mounted at %s", target)
		}
	}
}

func TestATreeIsRemovedWithAllThatIsInIt(t *testing.T) {
	top := nodetest.Tmpfs(t)
	dir := mkdir(t, top, "stage")
	outside := filepath.Join(top, "outside")
	write(t, outside, "stays")
	for i := range 3000 { // more than one batch of names
		write(t, filepath.Join(dir, fmt.Sprintf("file-%d", i)), "")
	}
	mkdir(t, dir, "a", "b", "c")
	nodetest.Must(t, os.Symlink(outside, filepath.Join(dir, "a", "link")))
	nodetest.Must(t, os.Symlink(top, filepath.Join(dir, "a", "folder-link")))
	nodetest.Must(t, unix.Mkfifo(filepath.Join(dir, "a", "fifo"), 0o600))
	for range 2 {
		nodetest.Must(t, RemoveTree(dir))
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	if read(t, outside) != "stays" {
		t.Error("a file outside was harmed")
	}
}

func TestAFolderDeeperThanPathsAndOpenFilesAllowIsRemoved(t *testing.T) {
	top := nodetest.Tmpfs(t)
	dir := mkdir(t, top, "stage")
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	nodetest.Must(t, err)
	name := strings.Repeat("d", 200)
	for range 3000 {
		nodetest.Must(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_RDONLY, 0)
		_ = unix.Close(at)
		nodetest.Must(t, err)
		at = next
	}
	_ = unix.Close(at)
	nodetest.Must(t, RemoveTree(dir))
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

func TestNothingIsEverRemovedThroughAMount(t *testing.T) {
	for name, mount := range map[string]func(t *testing.T, precious, point string){
		"another file system": func(t *testing.T, precious, point string) {
			nodetest.MountTmpfs(t, point)
			write(t, filepath.Join(point, "data"), "precious")
		},
		"a bind mount of the same file system": func(t *testing.T, precious, point string) {
			nodetest.Must(t, EnsureBind(Kernel{}, open(t, precious), point, false))
		},
	} {
		for _, where := range []string{"", "deep/down"} {
			t.Run(name+" at "+where, func(t *testing.T) {
				top := nodetest.Tmpfs(t)
				precious := mkdir(t, top, "precious")
				write(t, filepath.Join(precious, "data"), "precious")
				stage := mkdir(t, top, "stage")
				point := mkdir(t, stage, where)
				mount(t, precious, point)
				err := RemoveTree(stage)
				if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EBUSY) {
					t.Errorf("removing a folder with a mount: %v, want a refusal", err)
				}
				if got := read(t, filepath.Join(point, "data")); got != "precious" {
					t.Errorf("behind the mount: %q", got)
				}
			})
		}
	}
	t.Run("a file", func(t *testing.T) {
		top := nodetest.Tmpfs(t)
		precious := filepath.Join(top, "precious")
		write(t, precious, "precious")
		stage := mkdir(t, top, "stage")
		nodetest.Must(t, EnsureBind(Kernel{}, open(t, precious), filepath.Join(stage, "file"), false))
		if err := RemoveTree(stage); !errors.Is(err, unix.EBUSY) {
			t.Errorf("removing a folder with a mounted file: %v, want a refusal", err)
		}
		if read(t, precious) != "precious" {
			t.Error("the file was harmed")
		}
	})
}
