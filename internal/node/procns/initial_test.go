package procns

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"tarn.dev/tarn/internal/node/nodetest"
)

// initialOf gives the first processes of the pod, closed when the test ends.
func initialOf(t *testing.T, pods ...types.UID) []*InitialProcess {
	t.Helper()
	list, err := InitialProcesses(pods)
	nodetest.Must(t, err)
	for _, f := range list {
		t.Cleanup(f.Close)
	}
	return list
}

func TestTheEndOfAContainerIsHeardOfFromTheKernel(t *testing.T) {
	keepsCodes := nodetest.LinuxSince(t, 6, 15)
	for name, c := range map[string]struct{ cgroup, script string }{
		"named by the kubelet":            {"kubepods/besteffort/podUID/0abc", "sleep 100; exit 3"},
		"named by systemd":                {"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUNDERSCORES.slice/cri-containerd-0abc.scope", "sleep 100; exit 3"},
		"named by systemd and runc":       {"system.slice/kubepods-podUNDERSCORES.slice:cri-containerd:0abc", "sleep 100; exit 3"},
		"of CRI-O":                        {"kubepods/podUID/crio-0abc", "sleep 100; exit 3"},
		"in a cgroup of its own":          {"kubepods/podUID/0abc/init", "sleep 100; exit 3"},
		"with a process namespace within": {"kubepods/podUID/0abc", "unshare --pid --fork sleep 100; exit 3"},
	} {
		t.Run(name, func(t *testing.T) {
			podUID := uuid.NewUUID() // the whole machine is looked at
			names := strings.NewReplacer("UID", string(podUID), "UNDERSCORES", strings.ReplaceAll(string(podUID), "-", "_"))
			dir := nodetest.Cgroup(t, names.Replace(c.cgroup))
			cmd := nodetest.StartIn(t, dir, unix.CLONE_NEWPID, c.script)
			sleeping := awaitChild(t, dir)
			list := initialOf(t, "another", podUID)
			if len(list) != 1 || list[0].Pod != podUID || list[0].Container != "0abc" {
				t.Fatalf("found %+v, want the first process of container 0abc", list)
			}
			type end struct {
				code  int32
				known bool
				err   error
			}
			ended := make(chan end, 1)
			go func() {
				code, known, err := list[0].Wait()
				ended <- end{code, known, err}
			}()
			select {
			case e := <-ended:
				t.Fatalf("it runs, and has ended with %+v", e)
			case <-time.After(50 * time.Millisecond):
			}
			nodetest.Must(t, unix.Kill(sleeping, unix.SIGKILL))
			_ = cmd.Wait()
			want := end{}
			if keepsCodes {
				want = end{code: 3, known: true}
			}
			if e := <-ended; e != want {
				t.Errorf("it ended with %+v, want %+v", e, want)
			}
			if left := initialOf(t, podUID); len(left) != 0 {
				t.Errorf("found %+v of a pod that has ended", left)
			}
		})
	}
}

// awaitChild waits until the shell's sleep is in the cgroup, and gives its number.
func awaitChild(t *testing.T, cgroup string) (pid int) {
	t.Helper()
	for over := time.Now().Add(10 * time.Second); time.Now().Before(over); time.Sleep(time.Millisecond) {
		file, err := os.Open(filepath.Join(cgroup, "cgroup.procs"))
		nodetest.Must(t, err)
		var found []int
		for lines := bufio.NewScanner(file); lines.Scan(); {
			n, err := strconv.Atoi(lines.Text())
			comm, err2 := os.ReadFile(filepath.Join("/proc", lines.Text(), "comm"))
			if err == nil && err2 == nil && string(comm) == "sleep\n" {
				found = append(found, n)
			}
		}
		_ = file.Close()
		if len(found) == 1 {
			return found[0]
		}
	}
	t.Fatal("the shell has started no sleep")
	return 0
}

func TestProcessesThatAreNotTheFirstAreLeftOut(t *testing.T) {
	podUID, another := uuid.NewUUID(), uuid.NewUUID()
	for _, c := range []struct {
		cgroup string
		flags  uintptr
		script string
	}{
		{"kubepods/pod" + string(podUID) + "/0abc", 0, "sleep 100; true"}, // as in a pod with hostPID
		{"kubepods/pod" + string(podUID), unix.CLONE_NEWPID, "sleep 100; true"},
		{"kubepods/pod" + string(another) + "/0abc", unix.CLONE_NEWPID, "sleep 100; true"},
	} {
		dir := nodetest.Cgroup(t, c.cgroup)
		nodetest.StartIn(t, dir, c.flags, c.script)
		awaitChild(t, dir)
	}
	if list := initialOf(t, podUID); len(list) != 0 {
		t.Errorf("found %+v", list)
	}
}

func TestAFirstThatIsClosedIsWaitedForNoMore(t *testing.T) {
	podUID := uuid.NewUUID()
	nodetest.StartIn(t, nodetest.Cgroup(t, "kubepods/pod"+string(podUID)+"/0abc"), unix.CLONE_NEWPID, "sleep 100")
	list := initialOf(t, podUID)
	if len(list) != 1 {
		t.Fatalf("found %+v, want one", list)
	}
	failed := make(chan error)
	go func() {
		_, _, err := list[0].Wait()
		failed <- err
	}()
	time.Sleep(50 * time.Millisecond) // until it waits, which nothing shows
	list[0].Close()
	if err := <-failed; err == nil {
		t.Error("waiting ended as if the process had")
	}
}
