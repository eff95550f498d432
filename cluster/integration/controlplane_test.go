package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestControlPlanesComeUpSideBySideSurviveAKillAndLeaveNothing(t *testing.T) {
	for _, name := range []string{"cp-one", "cp-two"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, name)
			c.run("up", "--control-plane-only", "--kube-apiserver-arg=--event-ttl=30m")
			c.kubectl("create", "namespace", "mine-"+name)
			// Pods must be admitted although no controller makes a service account.
			c.kubectl("run", "p", "--image=x", "-n", "mine-"+name)
			if out := c.run("up", "--control-plane-only"); !strings.Contains(out, "up already, with other options") {
				t.Errorf("the second up said %q", out)
			}
			port := c.port("kube-apiserver")
			if out, want := c.run("logs", "kube-apiserver"), fmt.Sprintf("Serving securely on 127.0.0.1:%d", port); !strings.Contains(out, want) {
				t.Errorf("the log of the API server does not say %q:\n%s", want, tail(out, 15))
			}
			if out, err := c.try("logs", "kubelet"); err == nil || !strings.Contains(out, "has not been started") {
				t.Errorf("the log of a kubelet that there is not: %v, %q", err, out)
			}

			c.crash()
			if s := c.status(); s.Stage != "Down" {
				t.Errorf("after a kill the stage is %s", s.Stage)
			}
			c.run("up", "--control-plane-only")
			if got := c.kubectl("get", "namespaces", "-o", "name"); !strings.Contains(got, "mine-"+name) {
				t.Errorf("after a kill the namespaces are\n%s", got)
			}
			if again := c.port("kube-apiserver"); again != port {
				t.Errorf("the API server moved from port %d to %d", port, again)
			}

			c.run("down", "--keep-data")
			c.run("up", "--control-plane-only")
			c.kubectl("get", "namespace", "mine-"+name)
			c.leavesNothing()
			if out := c.run("down"); !strings.Contains(out, "does not exist") {
				t.Errorf("the second down said %q", out)
			}
		})
	}
}

func TestAClusterWithoutANodeReconcilesAndRemembersWhoDoesWhat(t *testing.T) {
	tarn, err := standIn()
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, "no-node")
	t.Setenv("GOMAXPROCS", "7000")
	c.run("up", "--without-node", "--tarn-binary", tarn, "--binder", "tarn", "--protection", "kubernetes", "--tarn-controllers", "2")
	// The controller manager makes a namespace's service account.
	c.kubectl("create", "namespace", "mine")
	c.kubectl("wait", "--for=create", "serviceaccount/default", "-n", "mine", "--timeout=60s")
	c.run("down", "--keep-data")
	c.run("up", "--without-node", "--tarn-binary", tarn)
	var names []string
	for _, component := range c.status().Components {
		names = append(names, component.Name)
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", component.PID))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"kube-controller-manager": "--controllers=*,-persistentvolume-binder-controller",
			"tarn-controller":         "--controllers=*,-protect",
			"tarn-controller-2":       "--controllers=*,-protect",
		}[component.Name]
		if args := strings.Split(string(command), "\x00"); want != "" && !slices.Contains(args, want) {
			t.Errorf("%s was told %q, want %s in it", component.Name, args, want)
		}
		if got := processors(t, component.PID); (got == 0) == (component.Name == "etcd") || got > max(1, runtime.NumCPU()/2) {
			t.Errorf("%s is held to %d processors, want half of the machine's for etcd, none named for others, and the shell's 7000 for nobody", component.Name, got)
		}
	}
	if want := []string{"etcd", "kube-apiserver", "kube-controller-manager", "tarn-controller", "tarn-controller-2", "tarn-api"}; !slices.Equal(names, want) {
		t.Errorf("it runs %q, want %q", names, want)
	}
	if out := c.run("up", "--without-node", "--binder", "kubernetes"); !strings.Contains(out, "up already, with other options") {
		t.Errorf("up with another binder said %q", out)
	}
	c.leavesNothing()
}

// processors is the GOMAXPROCS in a process's environment, 0 where it is not set.
func processors(t *testing.T, pid int) int {
	t.Helper()
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range strings.Split(string(environ), "\x00") {
		if value, is := strings.CutPrefix(entry, "GOMAXPROCS="); is {
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Errorf("process %d has %s", pid, entry)
			}
			return n
		}
	}
	return 0
}

func TestOnlyRootReadsTheKubeconfig(t *testing.T) {
	c := newCluster(t, "cp-mode")
	if _, err := c.try("kubeconfig"); err == nil {
		t.Error("a cluster that does not exist has a kubeconfig")
	}
	c.run("up", "--control-plane-only")
	path := strings.TrimSpace(c.run("kubeconfig"))
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("%s has mode %v", path, info.Mode().Perm())
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if c.run("kubeconfig", "--content") != string(content) {
		t.Error("--content prints something else than the file")
	}
	// Each identity has its own rights: the kubelet's certificate may not read other secrets, nor
	// talk to the database.
	if out, err := c.tryKubectl("pki/kube-scheduler.kubeconfig", "", "get", "secrets", "-A"); err == nil || !strings.Contains(out, "forbidden") {
		t.Errorf("the scheduler may read secrets: %v, %s", err, out)
	}
}

func TestWhatIsWrongIsSaidInOneLineWithTheRemedy(t *testing.T) {
	dir := bin(t)
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "tarn-cluster")
	if out, err := exec.Command("cp", filepath.Join(dir, "tarn-cluster"), elsewhere).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// A user other than root must be able to reach the program. Test directories are closed to
	// others.
	public, err := os.MkdirTemp("/tmp", "tarn-public-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(public) })
	if err := os.Chmod(public, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", filepath.Join(dir, "tarn-cluster"), public).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program := filepath.Join(dir, "tarn-cluster")
	for what, c := range map[string]struct {
		command []string
		want    []string
	}{
		"not root":       {[]string{"setpriv", "--reuid=65534", "--clear-groups", filepath.Join(public, "tarn-cluster"), "up"}, []string{"root", "sudo"}},
		"an old kernel":  {[]string{"setarch", "--uname-2.6", program, "up", "--name", "never", "--tarn-binary", "/no/tarn"}, []string{"kernel 2.6.", " is too old: 5.4 or newer is needed"}},
		"an unknown log": {[]string{program, "logs", "nothing", "--name", "never"}, []string{`"nothing"`, "supervisor, tarn-install, image-import, etcd, kube-apiserver, ", "kubelet, ", "tarn-node"}},
		"a bad name":     {[]string{program, "up", "--name", "A_b"}, []string{"A_b", "lower-case"}},
		"not built":      {[]string{elsewhere, "up", "--name", "never"}, []string{"missing", "make"}},
		"no binder":      {[]string{program, "up", "--name", "never", "--stock", "--binder", "tarn"}, []string{"--binder=tarn", "--stock"}},
		"no tarn":        {[]string{program, "up", "--name", "never", "--tarn-binary", "/no/tarn"}, []string{"/no/tarn", "--tarn-binary"}},
		"a full folder":  {[]string{program, "up", "--name", "never", "--control-plane-only", "--data-dir", foreign}, []string{foreign, "--data-dir"}},
		"not running":    {[]string{program, "restart", "etcd", "--name", "never"}, []string{"never", "up"}},
		"an odd archive": {[]string{program, "image", "build", "--name", "never", "--tag", "example.org/app:1", "--rootfs", "/no/folder"}, []string{"/no/folder", "--rootfs"}},
	} {
		out, err := exec.Command(c.command[0], c.command[1:]...).CombinedOutput()
		text := strings.TrimSpace(string(out))
		if err == nil {
			t.Errorf("%s: no failure: %s", what, text)
		}
		if strings.Contains(text, "\n") {
			t.Errorf("%s: more than one line:\n%s", what, text)
		}
		for _, word := range c.want {
			if !strings.Contains(text, word) {
				t.Errorf("%s: %q does not mention %q", what, text, word)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(foreign, "thesis.txt")); err != nil {
		t.Errorf("a file that was never a cluster's is gone: %v", err)
	}
}
