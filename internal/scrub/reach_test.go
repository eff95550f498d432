package scrub

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestAMountInTheVolumeStopsTheScrub(t *testing.T) {
	volume, outside := newDisk(t, kinds["ext4"]).mount(t, "ext4"), newDisk(t, kinds["ext4"]).mount(t, "ext4")
	witness := filepath.Join(outside, "witness")
	must(t, os.WriteFile(witness, []byte(secret), 0o600))
	must(t, unix.Setxattr(outside, "user.note", []byte("x"), 0))
	run(t, "chattr", "+i", witness, outside)
	folder, file := filepath.Join(volume, "folder"), filepath.Join(volume, "file")
	for inner, mounted := range map[string]string{folder: outside, file: witness} {
		must(t, errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(file, nil, 0o600)))
		run(t, "chattr", "+i", inner) // a rejected call is repeated without the flag
		run(t, "mount", "--bind", mounted, inner)
		for _, method := range []tarnv1.RecycleMethod{tarnv1.RecycleFiles, tarnv1.RecycleZero, tarnv1.RecycleDiscard} {
			if _, err := File(t.Context(), method, volume); !errors.Is(err, ErrMount) {
				t.Errorf("%s of %s: got %v, want ErrMount", method, inner, err)
			}
		}
		if text, err := os.ReadFile(witness); err != nil || string(text) != secret {
			t.Errorf("%s was reached through %s: it reads %q (%v)", witness, inner, text, err)
		}
		if _, err := unix.Getxattr(outside, "user.note", make([]byte, 1)); err != nil {
			t.Errorf("the attribute of %s was reached through %s: %v", outside, inner, err)
		}
		for _, path := range []string{witness, outside} {
			if flags := run(t, "lsattr", "-d", path); !strings.Contains(strings.Fields(flags)[0], "i") {
				t.Errorf("%s was reached through %s: it may be changed now: %s", path, inner, flags)
			}
		}
		run(t, "umount", inner)
		run(t, "chattr", "-i", inner)
	}
	_, err := File(t.Context(), tarnv1.RecycleFiles, volume)
	must(t, err)
}

func TestZeroLeavesNoAttributeInTheInodes(t *testing.T) {
	d := newDisk(t, kinds["ext4"])
	volume := d.mount(t, "ext4", "-O", "^has_journal") // which keeps what was written; without it not all free space can be filled
	for i := range 200 {
		file, folder := filepath.Join(volume, strconv.Itoa(i)), filepath.Join(volume, "folder", strconv.Itoa(i))
		must(t, os.WriteFile(file, []byte("x"), 0o400))
		must(t, os.MkdirAll(folder, 0o500))
		for _, path := range []string{file, folder} {
			must(t, unix.Setxattr(path, "user.note", []byte(secret), 0))
		}
	}
	run(t, "chattr", "+i", filepath.Join(volume, "1"), filepath.Join(volume, "folder", "1"))
	unix.Sync()
	if !d.holds(t, secret) {
		t.Fatal("the secret was never on the device")
	}
	top, err := os.Open(volume)
	must(t, err)
	must(t, errors.Join(emptied(t.Context(), top, &tarnv1.RecycleCertificate{}, overwriter(t.Context(), make([]byte, chunk))), top.Close()))
	if d.holds(t, secret) {
		t.Error("the secret is still on the device")
	}
}
