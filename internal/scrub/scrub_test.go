package scrub

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

const secret = "the combination of tenant A is 31-07-19"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// disk is a loop device on an image.
type disk struct{ image, device string }

func newDisk(t *testing.T, size int64) disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	d := disk{image: filepath.Join(t.TempDir(), "image")}
	must(t, os.WriteFile(d.image, nil, 0o600))
	must(t, os.Truncate(d.image, size))
	d.device = run(t, "losetup", "--find", "--show", d.image)
	t.Cleanup(func() { run(t, "losetup", "--detach", d.device) })
	return d
}

// mount makes a file system on a disk and mounts it.
func (d disk) mount(t *testing.T, kind string, options ...string) string {
	t.Helper()
	mkfs := "mkfs." + kind
	if _, err := exec.LookPath(mkfs); err != nil {
		t.Skipf("%s is not on this machine", mkfs)
	}
	run(t, mkfs, append(options, "-q", d.device)...)
	path := t.TempDir()
	run(t, "mount", d.device, path)
	t.Cleanup(func() { run(t, "umount", path) })
	return path
}

// holds says whether a disk contains a text anywhere.
func (d disk) holds(t *testing.T, text string) bool {
	t.Helper()
	unix.Sync()
	data, err := os.ReadFile(d.image)
	must(t, err)
	return bytes.Contains(data, []byte(text))
}

// kinds are file systems with the size they need.
var kinds = map[string]int64{"ext4": 64 << 20, "xfs": 320 << 20, "btrfs": 128 << 20}

// litter creates what tenants leave behind, and things outside that a tenant must not be able to
// have removed.
func litter(t *testing.T, volume, outside string) {
	t.Helper()
	for _, name := range []string{".hidden", "a\nb", "\xff\xfe", "-rf", " ", strings.Repeat("n", 255)} {
		must(t, os.WriteFile(filepath.Join(volume, name), []byte(secret), 0))
	}
	must(t, os.Symlink(outside, filepath.Join(volume, "link")))
	must(t, os.Symlink("/nowhere", filepath.Join(volume, "dangling")))
	must(t, os.Link(filepath.Join(volume, "-rf"), filepath.Join(volume, "twin")))
	must(t, unix.Mkfifo(filepath.Join(volume, "fifo"), 0o600))
	must(t, unix.Mknod(filepath.Join(volume, "null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	socket, err := net.Listen("unix", filepath.Join(volume, "socket"))
	must(t, err)
	defer func() { _ = socket.Close() }()
	must(t, os.Mkdir(filepath.Join(volume, ".d"), 0o700))
	must(t, os.WriteFile(filepath.Join(volume, ".d", "fixed"), []byte(secret), 0o600))
	for _, fixed := range []string{"a\nb", ".d/fixed", ".d"} {
		run(t, "chattr", "+i", filepath.Join(volume, fixed))
	}
	must(t, os.WriteFile(filepath.Join(volume, "log"), []byte(secret), 0o600))
	run(t, "chattr", "+a", filepath.Join(volume, "log"))
	must(t, unix.Setxattr(volume, "user.note", []byte(secret), 0))
	dir, err := os.Open(volume)
	must(t, err)
	for range 3000 { // deeper than any path may be long
		must(t, unix.Mkdirat(int(dir.Fd()), "deep", 0o700))
		next, err := unix.Openat(int(dir.Fd()), "deep", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, errors.Join(err, dir.Close()))
		dir = os.NewFile(uintptr(next), "deep")
	}
	must(t, dir.Close())
}

func TestNothingOfATenantIsLeftInTheFileSystem(t *testing.T) {
	for kind, size := range kinds {
		t.Run(kind, func(t *testing.T) {
			volume, outside := newDisk(t, size).mount(t, kind), t.TempDir()
			witness := filepath.Join(outside, "witness")
			must(t, os.WriteFile(witness, nil, 0o600))
			litter(t, volume, outside)
			if kind == "ext4" {
				must(t, os.WriteFile(filepath.Join(volume, lostAndFound, "#12"), []byte(secret), 0o600))
			}
			cert, err := File(t.Context(), tarnv1.RecycleFiles, volume)
			must(t, err)
			if cert.Files < 3000 || len(cert.SampleSHA256) != 64 {
				t.Errorf("the certificate says %+v", cert)
			}
			if got, want := run(t, "ls", "-A", volume), map[string]string{"ext4": lostAndFound}[kind]; got != want {
				t.Errorf("the volume has %q, want %q", got, want)
			}
			if kind == "ext4" && run(t, "ls", "-A", filepath.Join(volume, lostAndFound)) != "" {
				t.Error("lost+found is not empty")
			}
			if n, err := unix.Getxattr(volume, "user.note", nil); !errors.Is(err, unix.ENODATA) {
				t.Errorf("the volume's folder still has an attribute of %d bytes: %v", n, err)
			}
			if _, err := os.Stat(witness); err != nil {
				t.Errorf("a symbolic link was followed: %v", err)
			}
		})
	}
}

func TestZeroAndDiscardLeaveNothingOnTheRawDevice(t *testing.T) {
	for _, c := range []struct {
		kind   string
		method tarnv1.RecycleMethod
	}{{"ext4", tarnv1.RecycleZero}, {"xfs", tarnv1.RecycleZero}, {"ext4", tarnv1.RecycleDiscard}} {
		t.Run(c.kind+" "+string(c.method), func(t *testing.T) {
			d := newDisk(t, kinds[c.kind])
			volume := d.mount(t, c.kind)
			for i := range 200 {
				must(t, os.WriteFile(filepath.Join(volume, strconv.Itoa(i)), bytes.Repeat([]byte(secret), 1000), 0o600))
			}
			unix.Sync()
			for i := range 100 { // deleted by the tenant himself
				must(t, os.Remove(filepath.Join(volume, strconv.Itoa(i))))
			}
			if !d.holds(t, secret) {
				t.Fatal("the secret was never on the device")
			}
			cert, err := File(t.Context(), c.method, volume)
			must(t, err)
			if d.holds(t, secret) {
				t.Errorf("the secret is still on the device; the certificate says %+v", cert)
			}
			if cert.Bytes < kinds[c.kind]/2 {
				t.Errorf("the certificate says %+v of %d bytes", cert, kinds[c.kind])
			}
			var fs unix.Statfs_t
			must(t, unix.Statfs(volume, &fs))
			if free := int64(fs.Bfree) * fs.Bsize; free < kinds[c.kind]*2/3 {
				t.Errorf("%d bytes of %d are free", free, kinds[c.kind])
			}
		})
	}
}

// A local volume stays mounted from one tenant to the next.
func TestDiscardIsDoneAgainOnAFileSystemThatStaysMounted(t *testing.T) {
	for _, options := range []string{"", "discard"} {
		t.Run(options, func(t *testing.T) {
			d := newDisk(t, kinds["ext4"])
			volume := d.mount(t, "ext4")
			run(t, "mount", "-o", strings.TrimSuffix("remount,"+options, ","), volume)
			for range 4 {
				_, err := File(t.Context(), tarnv1.RecycleDiscard, volume)
				must(t, err)
			}
			must(t, os.WriteFile(filepath.Join(volume, "a"), bytes.Repeat([]byte(secret), 1000), 0o600))
			if !d.holds(t, secret) {
				t.Fatal("the secret was never on the device")
			}
			_, err := File(t.Context(), tarnv1.RecycleDiscard, volume)
			must(t, err)
			if d.holds(t, secret) {
				t.Error("the secret is still on the device")
			}
			if got := run(t, "ls", "-A", volume); got != lostAndFound {
				t.Errorf("the volume has %q", got)
			}
		})
	}
}

func TestZeroGoesOnAfterItWasKilled(t *testing.T) {
	d := newDisk(t, kinds["ext4"])
	volume := d.mount(t, "ext4")
	must(t, os.WriteFile(filepath.Join(volume, "a"), []byte(secret), 0o600))
	must(t, os.Mkdir(filepath.Join(volume, filling), 0o700))
	must(t, os.WriteFile(filepath.Join(volume, filling, "0"), make([]byte, chunk), 0o600))
	_, err := File(t.Context(), tarnv1.RecycleZero, volume)
	must(t, err)
	if d.holds(t, secret) || run(t, "ls", "-A", volume) != lostAndFound {
		t.Error("something is left")
	}
}

func TestZeroRefusesWhatItCannotOverwrite(t *testing.T) {
	part := t.TempDir()
	must(t, os.WriteFile(filepath.Join(part, "a"), []byte(secret), 0o600))
	if _, err := File(t.Context(), tarnv1.RecycleZero, part); err == nil {
		t.Error("a folder of the machine's own disk was filled")
	}
	if _, err := os.Stat(filepath.Join(part, "a")); err != nil {
		t.Errorf("it was emptied before it was refused: %v", err)
	}
	d := newDisk(t, kinds["ext4"])
	whole, bound := d.mount(t, "ext4"), t.TempDir()
	must(t, os.Mkdir(filepath.Join(whole, "sub"), 0o700))
	run(t, "mount", "--bind", filepath.Join(whole, "sub"), bound)
	t.Cleanup(func() { run(t, "umount", bound) })
	if _, err := File(t.Context(), tarnv1.RecycleZero, bound); err == nil || !strings.Contains(err.Error(), "directory /sub") {
		t.Errorf("a folder of a file system: got %v", err)
	}
	if _, err := File(t.Context(), tarnv1.RecycleZero, newDisk(t, kinds["btrfs"]).mount(t, "btrfs")); err == nil || !strings.Contains(err.Error(), "btrfs") {
		t.Errorf("btrfs: got %v", err)
	}
}

func TestABlockDeviceIsWiped(t *testing.T) {
	for _, method := range []tarnv1.RecycleMethod{tarnv1.RecycleZero, tarnv1.RecycleDiscard} {
		t.Run(string(method), func(t *testing.T) {
			const size = 9<<20 + 512
			d := newDisk(t, size)
			must(t, os.WriteFile(d.device, bytes.Repeat([]byte(secret), size/len(secret)), 0o600))
			if !d.holds(t, secret) {
				t.Fatal("the secret was never on the device")
			}
			cert, err := Device(t.Context(), method, d.device)
			must(t, err)
			data, err := os.ReadFile(d.device)
			must(t, err)
			if len(bytes.Trim(data, "\x00")) != 0 || cert.Bytes != size || len(cert.SampleSHA256) != 64 {
				t.Errorf("%d bytes of other than zero, and the certificate says %+v", len(bytes.Trim(data, "\x00")), cert)
			}
		})
	}
}

func TestADeviceInUseIsNotWiped(t *testing.T) {
	d := newDisk(t, kinds["ext4"])
	d.mount(t, "ext4")
	if _, err := Device(t.Context(), tarnv1.RecycleZero, d.device); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a mounted device: got %v, want EBUSY", err)
	}
}

func TestAScrubRefusesMethodsThatAreNotForIt(t *testing.T) {
	dir := t.TempDir()
	for _, method := range []tarnv1.RecycleMethod{"", "files", tarnv1.RecycleRecreate} {
		if _, err := File(t.Context(), method, dir); err == nil {
			t.Errorf("%q was done to a file system", method)
		}
	}
	if _, err := CheckFile(t.Context(), "files", dir); err == nil {
		t.Error("a method that is none was checked")
	}
	if _, err := Device(t.Context(), tarnv1.RecycleFiles, "/dev/null"); err == nil {
		t.Error("files were removed from a device")
	}
	if _, err := Device(t.Context(), tarnv1.RecycleZero, "/dev/null"); err == nil {
		t.Error("a character device was wiped")
	}
}

func TestASampleThatIsNotZeroIsNoSuccess(t *testing.T) {
	for _, at := range []int64{0, 300<<10 - 1} { // first and last piece are always read
		path := filepath.Join(t.TempDir(), "file")
		data := make([]byte, 300<<10)
		data[at] = 7
		must(t, os.WriteFile(path, data, 0o600))
		file, err := os.Open(path)
		must(t, err)
		err = verifyZero(file, int64(len(data)), samplesOfFile, make([]byte, sampleSize), newSample())
		if err == nil || !strings.Contains(err.Error(), "byte "+strconv.FormatInt(at, 10)) {
			t.Errorf("byte %d: got %v", at, err)
		}
		must(t, file.Close())
	}
}

func TestACancelledScrubStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := newDisk(t, 8<<20)
	if _, err := Device(ctx, tarnv1.RecycleZero, d.device); !errors.Is(err, context.Canceled) {
		t.Errorf("device: got %v", err)
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o600))
	if _, err := File(ctx, tarnv1.RecycleFiles, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("files: got %v", err)
	}
}

func TestACheckSeesWhatAScrubWouldHaveRemoved(t *testing.T) {
	for kind, size := range kinds {
		t.Run(kind, func(t *testing.T) {
			volume := newDisk(t, size).mount(t, kind)
			clean, err := CheckFile(t.Context(), tarnv1.RecycleZero, volume)
			must(t, err)
			scrubbed, err := File(t.Context(), tarnv1.RecycleFiles, volume)
			must(t, err)
			if clean.SampleSHA256 != scrubbed.SampleSHA256 || clean.Found != 0 {
				t.Errorf("checked %+v, scrubbed %+v", clean, scrubbed)
			}
			must(t, unix.Setxattr(volume, "user.note", []byte(secret), 0))
			if _, err := CheckFile(t.Context(), tarnv1.RecycleZero, volume); err == nil || !strings.Contains(err.Error(), `"user.note"`) {
				t.Errorf("with what a user has written on its folder: got %v", err)
			}
			must(t, unix.Removexattr(volume, "user.note"))
			hidden := []string{".a", ".b", ".c", ".d", ".e", ".f", ".g"}
			for _, name := range hidden {
				must(t, os.WriteFile(filepath.Join(volume, name), []byte(secret), 0))
			}
			for _, method := range []tarnv1.RecycleMethod{tarnv1.RecycleFiles, tarnv1.RecycleZero, tarnv1.RecycleDiscard} {
				if _, err := CheckFile(t.Context(), method, volume); err == nil || !strings.Contains(err.Error(), `".a"`) || !strings.Contains(err.Error(), "and 2 more") {
					t.Errorf("%s: got %v", method, err)
				}
			}
			anew, err := CheckFile(t.Context(), tarnv1.RecycleRecreate, volume)
			must(t, err)
			if anew.Found != 7 || anew.SampleSHA256 == clean.SampleSHA256 {
				t.Errorf("made anew it has %+v", anew)
			}
			if got := run(t, "ls", "-A", volume); !strings.Contains(got, strings.Join(hidden, "\n")) {
				t.Errorf("the check has changed the volume: it has %q", got)
			}
		})
	}
	volume := newDisk(t, kinds["ext4"]).mount(t, "ext4")
	must(t, os.WriteFile(filepath.Join(volume, lostAndFound, "#12"), []byte(secret), 0o600))
	if _, err := CheckFile(t.Context(), tarnv1.RecycleFiles, volume); err == nil || !strings.Contains(err.Error(), "#12") {
		t.Errorf("a file in lost+found: got %v", err)
	}
}

func TestACheckOfADeviceReadsZerosOnly(t *testing.T) {
	const size = 9<<20 + 512
	d := newDisk(t, size)
	for _, method := range []tarnv1.RecycleMethod{tarnv1.RecycleZero, tarnv1.RecycleDiscard} {
		cert, err := CheckDevice(t.Context(), method, d.device)
		must(t, err)
		if cert.Bytes != size || len(cert.SampleSHA256) != 64 {
			t.Errorf("%s: the certificate says %+v", method, cert)
		}
	}
	must(t, os.WriteFile(d.device, []byte(secret), 0o600))
	if _, err := CheckDevice(t.Context(), tarnv1.RecycleZero, d.device); err == nil || !strings.Contains(err.Error(), "byte 0 reads 0x74") {
		t.Errorf("a device with a secret: got %v", err)
	}
	_, err := CheckDevice(t.Context(), tarnv1.RecycleRecreate, d.device)
	must(t, err)
	if !d.holds(t, secret) {
		t.Error("the check has changed the device")
	}
	for _, path := range []string{"/dev/null", t.TempDir()} {
		if _, err := CheckDevice(t.Context(), tarnv1.RecycleZero, path); err == nil {
			t.Errorf("%s was checked as a device", path)
		}
	}
}
