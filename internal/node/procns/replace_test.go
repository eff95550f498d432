package procns

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"tarn.dev/tarn/internal/node/hangguard"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/nodetest"
)

func TestMain(m *testing.M) {
	if folder := os.Getenv("TARN_TEST_CONTAINER"); folder != "" {
		contain(folder)
		return
	}
	nodetest.Main(m.Run)
}

// contain runs in the container of the tests. It has its own copy of the volume's mount, and
// answers each line with the volume's present content.
func contain(folder string) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		text, err := os.ReadFile(filepath.Join(folder, "greeting"))
		fmt.Println(strings.TrimSpace(string(text)), err)
	}
}

type container struct {
	Container
	ask func() string
}

// start starts a container with the present mounts.
func start(t *testing.T, folder string, flags uintptr) container {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "TARN_TEST_CONTAINER="+folder)
	// The container ends with its standard input. A death signal would depend on the thread that
	// started it, and a thread that has entered another namespace ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | flags}
	if flags&unix.CLONE_NEWUSER != 0 {
		one := []syscall.SysProcIDMap{{HostID: 0, Size: 1}}
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = one, one
	}
	in, err := cmd.StdinPipe()
	nodetest.Must(t, err)
	out, err := cmd.StdoutPipe()
	nodetest.Must(t, err)
	nodetest.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("the container says %q", lines.Text())
	}
	process := fmt.Sprint("/proc/", cmd.Process.Pid)
	table, err := mounts.ListOf(process)
	nodetest.Must(t, err)
	space, err := namespaceOf(process)
	nodetest.Must(t, err)
	return container{Container{Pod: "pod", Process: process, Namespace: space, Table: table}, func() string {
		fmt.Fprintln(in)
		lines.Scan()
		return lines.Text()
	}}
}

// volume mounts a tmpfs whose greeting contains the text.
func volume(t *testing.T, folder, text string) {
	t.Helper()
	nodetest.MountTmpfs(t, folder)
	nodetest.Must(t, os.WriteFile(filepath.Join(folder, "greeting"), []byte(text), 0o644))
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(path, unix.O_PATH, 0)
	nodetest.Must(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return file
}

func TestAMountIsExchangedInAContainerThatRuns(t *testing.T) {
	dir := nodetest.Tmpfs(t)
	data, again := filepath.Join(dir, "data"), filepath.Join(dir, "again")
	volume(t, data, "old")
	c := start(t, data, 0)
	volume(t, again, "new")
	if got := c.ask(); got != "old <nil>" {
		t.Fatalf("the container finds %q at first", got)
	}
	old := mounts.At(c.Table, data)
	if len(old) != 1 {
		t.Fatalf("the container has %v", old)
	}
	nodetest.Must(t, c.Replace(&hangguard.Asker{}, long, old[0], open(t, again)))
	if got := c.ask(); got != "new <nil>" {
		t.Errorf("then the container finds %q, want what is new", got)
	}
	table, err := mounts.ListOf(c.Process)
	nodetest.Must(t, err)
	if now := mounts.At(table, data); now[len(now)-1].Device == old[0].Device || now[len(now)-1].Receives {
		t.Errorf("the container has %v at its place", now)
	}
	// The test's own namespace must be unchanged: no thread may have stayed in the container.
	if text, err := os.ReadFile(filepath.Join(data, "greeting")); err != nil || string(text) != "old" {
		t.Errorf("outside there is %q (%v), want what was there", text, err)
	}
}

func TestAMountWithoutItsServerIsExchangedReadOnlyAsItWas(t *testing.T) {
	dir := nodetest.Tmpfs(t)
	data, again := filepath.Join(dir, "data"), filepath.Join(dir, "again")
	nodetest.Must(t, os.Mkdir(data, 0o755))
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	nodetest.Must(t, err)
	options := fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0", device.Fd())
	nodetest.Must(t, unix.Mount("tarn-test", data, "fuse", unix.MS_RDONLY, options))
	t.Cleanup(func() { _ = unix.Unmount(data, unix.MNT_DETACH) })
	c := start(t, data, 0)
	_ = device.Close() // the server's end
	if got := c.ask(); !strings.Contains(got, "not connected") {
		t.Fatalf("the container finds %q, want a dead mount", got)
	}
	volume(t, again, "new")
	nodetest.Must(t, c.Replace(&hangguard.Asker{}, long, mounts.At(c.Table, data)[0], open(t, again)))
	if got := c.ask(); got != "new <nil>" {
		t.Errorf("then the container finds %q, want what is new", got)
	}
	table, err := mounts.ListOf(c.Process)
	nodetest.Must(t, err)
	if now := mounts.At(table, data); !now[len(now)-1].ReadOnly {
		t.Errorf("the container has %v, want it read-only", now)
	}
}

func TestAContainerWithUsersOfItsOwnIsLeftAlone(t *testing.T) {
	dir := nodetest.Tmpfs(t)
	data := filepath.Join(dir, "data")
	volume(t, data, "old")
	c := start(t, data, unix.CLONE_NEWUSER)
	err := c.Replace(&hangguard.Asker{}, long, mounts.At(c.Table, data)[0], open(t, dir))
	if !errors.Is(err, ErrUserNamespace) {
		t.Errorf("got %v, want %v", err, ErrUserNamespace)
	}
	if got := c.ask(); got != "old <nil>" {
		t.Errorf("the container finds %q, want what was there", got)
	}
}

func TestAContainerThatHasEndedIsNoError(t *testing.T) {
	dir := nodetest.Tmpfs(t)
	c := Container{Process: "/proc/4194305"} // beyond the highest number
	if err := c.Replace(&hangguard.Asker{}, long, mounts.Mount{Point: dir}, open(t, dir)); err != nil {
		t.Error(err)
	}
}

func TestAProcessThatGotTheNumberOfAnEndedOneIsLeftAlone(t *testing.T) {
	dir := nodetest.Tmpfs(t)
	data, again := filepath.Join(dir, "data"), filepath.Join(dir, "again")
	volume(t, data, "old")
	ended, other := start(t, data, 0), start(t, data, 0)
	volume(t, again, "new")
	ended.Process = other.Process
	if err := ended.Replace(&hangguard.Asker{}, long, mounts.At(ended.Table, data)[0], open(t, again)); err != nil {
		t.Error(err)
	}
	if got := other.ask(); got != "old <nil>" {
		t.Errorf("the other container finds %q, want what was there", got)
	}
}

func TestOnlyContainersOfThePodsAreFound(t *testing.T) {
	start(t, nodetest.Tmpfs(t), 0)
	found, err := Find([]types.UID{"00000000-no-pod-has-this-uid"})
	if err != nil || len(found) > 0 {
		t.Errorf("got %v, %v, want none", found, err)
	}
}
