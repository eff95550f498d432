package resultdir

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"tarn.dev/tarn/internal/node/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m.Run) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func TestResultsAreReadAsTheyWereMeant(t *testing.T) {
	pav := nodetest.Tmpfs(t)
	got, err := ReadResults(pav)
	if err != nil || got.Handle != nil || got.Capacity != nil || got.Error != "" || got.Unreadable != "" {
		t.Errorf("of an empty folder: %+v %v", got, err)
	}
	write(t, filepath.Join(pav, "handle"), " vol-1 \n")
	write(t, filepath.Join(pav, "capacity"), "")
	write(t, filepath.Join(pav, "error"), "\n first line\nsecond\x00 \xff\n\n")
	got, err = ReadResults(pav)
	if err != nil || got.Handle == nil || *got.Handle != "vol-1" || got.Capacity == nil || *got.Capacity != "" ||
		got.Error != "first line\nsecond\uFFFD \uFFFD" || got.Unreadable != "" {
		t.Errorf("read %+v %v", got, err)
	}
	if _, err := ReadResults(filepath.Join(pav, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no folder: %v", err)
	}
}

func TestALongErrorIsCutBetweenCharacters(t *testing.T) {
	pav := nodetest.Tmpfs(t)
	write(t, filepath.Join(pav, "error"), "x"+strings.Repeat("\u00e9", 200_000))
	got := ReadError(pav)
	if len(got) > maxError || len(got) < maxError-8 || !utf8.ValidString(got) || !strings.HasSuffix(got, "\u00e9...") {
		t.Errorf("%d bytes, ends in %q", len(got), got[len(got)-8:])
	}
}

func TestWhatIsNoRegularFileOfTheFolderIsNotRead(t *testing.T) {
	secret := filepath.Join(nodetest.Tmpfs(t), "secret")
	write(t, secret, "the agent's token")
	for want, make := range map[string]func(path string) error{
		"symbolic link": func(path string) error { return os.Symlink(secret, path) },
		"is a mount": func(path string) error {
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				return err
			}
			return unix.Mount(secret, path, "", unix.MS_BIND, "")
		},
		"not a regular file": func(path string) error { return unix.Mkfifo(path, 0o644) },
		"not a regular":      func(path string) error { return os.Mkdir(path, 0o755) },
		"not a reg":          func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))) },
	} {
		pav := nodetest.Tmpfs(t)
		for _, name := range []string{"handle", "error"} {
			must(t, make(filepath.Join(pav, name)))
		}
		got, err := ReadResults(pav)
		if err != nil || got.Handle != nil || got.Error != "" || strings.Count(got.Unreadable, want) != 2 {
			t.Errorf("%s: %+v %v", want, got, err)
		}
		if text := ReadError(pav); strings.Contains(text, "token") {
			t.Errorf("%s: the error text is %q", want, text)
		}
	}
}

func TestAHandleThatIsTooLongOrNoTextIsAProblem(t *testing.T) {
	pav := nodetest.Tmpfs(t)
	write(t, filepath.Join(pav, "handle"), strings.Repeat("h", maxValue+1))
	write(t, filepath.Join(pav, "capacity"), "\xff")
	got, err := ReadResults(pav)
	if err != nil || got.Handle != nil || got.Capacity != nil || !strings.Contains(got.Unreadable, "4097 bytes") || !strings.Contains(got.Unreadable, "UTF-8") {
		t.Errorf("read %+v %v", got, err)
	}
}

func newStage(t *testing.T) (stage, pav string) {
	t.Helper()
	stage = nodetest.Tmpfs(t)
	pav = filepath.Join(stage, "pav")
	must(t, os.Mkdir(pav, 0o755))
	return stage, pav
}

func TestTheVolumeIsFoundAsThePodSeesIt(t *testing.T) {
	for name, test := range map[string]struct {
		make func(t *testing.T, pav string)
		want string
	}{
		"a directory": {func(t *testing.T, pav string) { must(t, os.Mkdir(filepath.Join(pav, "volume"), 0o755)) }, "volume"},
		"a link below /pav as the container names it": {func(t *testing.T, pav string) {
			must(t, os.MkdirAll(filepath.Join(pav, "data", "real"), 0o755))
			must(t, os.Symlink("/pav/data/real", filepath.Join(pav, "volume")))
		}, "data/real"},
		"a relative link through another": {func(t *testing.T, pav string) {
			must(t, os.MkdirAll(filepath.Join(pav, "data", "real"), 0o755))
			must(t, os.Symlink("data", filepath.Join(pav, "link")))
			must(t, os.Symlink("link/../link/real", filepath.Join(pav, "volume")))
		}, "data/real"},
		"a mount": {func(t *testing.T, pav string) { nodetest.MountTmpfs(t, filepath.Join(pav, "volume")) }, "volume"},
		"a link to a mount": {func(t *testing.T, pav string) {
			nodetest.MountTmpfs(t, filepath.Join(pav, "mnt"))
			must(t, os.Symlink("mnt", filepath.Join(pav, "volume")))
		}, "mnt"},
	} {
		t.Run(name, func(t *testing.T) {
			stage, pav := newStage(t)
			test.make(t, pav)
			v, err := OpenVolume(stage, false, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = v.File.Close() }()
			if v.Path != filepath.Join(pav, test.want) {
				t.Errorf("found at %s, want %s in %s", v.Path, test.want, pav)
			}
		})
	}
}

func TestNoLinkLeadsOutOfPav(t *testing.T) {
	for name, link := range map[string]string{
		"an absolute path": "/etc",
		"many parents":     "../../../../../../etc",
		"the parent":       "..",
		"the record":       "/record.json",
		"itself":           "volume",
		"a magic link":     "/proc/self/root",
	} {
		t.Run(name, func(t *testing.T) {
			stage, pav := newStage(t)
			write(t, filepath.Join(stage, "record.json"), "{}")
			must(t, os.Symlink(link, filepath.Join(pav, "volume")))
			v, err := OpenVolume(stage, false, 0)
			var wrong *WrongVolumeError
			if !errors.As(err, &wrong) {
				t.Errorf("opened %v: %v", v, err)
			}
		})
	}
}

func TestABlockVolumeIsADeviceOfExactlyTheCapacity(t *testing.T) {
	const size = 1 << 20
	device := nodetest.Loop(t, size)
	stage, pav := newStage(t)
	must(t, unix.Mknod(filepath.Join(pav, "device"), unix.S_IFBLK|0o600, int(device)))
	must(t, os.Symlink("/pav/device", filepath.Join(pav, "volume")))
	v, err := OpenVolume(stage, true, size)
	if err != nil {
		t.Fatal(err)
	}
	_ = v.File.Close()
	if want := strconv.Itoa(int(unix.Major(device))) + ":" + strconv.Itoa(int(unix.Minor(device))); v.Rdev != want {
		t.Errorf("device %s, want %s", v.Rdev, want)
	}
	for want, open := range map[string]func() (*Volume, error){
		"1Mi, but the volume's capacity is 1048577": func() (*Volume, error) { return OpenVolume(stage, true, size+1) },
		"volumeMode is Filesystem":                  func() (*Volume, error) { return OpenVolume(stage, false, size) },
	} {
		var wrong *WrongVolumeError
		if _, err := open(); !errors.As(err, &wrong) || !strings.Contains(wrong.Problem, want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	other, pav2 := newStage(t)
	must(t, os.Mkdir(filepath.Join(pav2, "volume"), 0o755))
	if _, err := OpenVolume(other, true, size); err == nil || !strings.Contains(err.Error(), "volumeMode is Block") {
		t.Errorf("a directory as a block volume: %v", err)
	}
}
