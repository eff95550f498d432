// Command build compiles the programs named by its arguments, in that order. It shows how many
// packages are compiled and how long the rest takes. It prints nothing when everything is up to
// date.
//
//	go run ./hack/build [-bin=DIRECTORY] [-version=VERSION] PROGRAM...
//
// The name "cluster" stands for all programs of the embedded cluster. The command runs at the top
// of the repository, and must not know what the programs do.
package main

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const (
	// stripped omits the debugger's tables.
	stripped = "-s -w"
	// collected lets a compiler's heap grow to five times its use before a garbage collection.
	// Compiling then needs a sixth less processor time.
	collected = "400"
	// heap is the size above which the garbage is collected more often, so that small machines
	// suffice.
	heap = "1GiB"
)

// program is one call of `go build`.
type program struct {
	name string
	// module is the directory of the module whose go.mod sets the versions to compile.
	module string
	// out is the file below the directory for programs. With a slash at its end, it is a directory.
	out      string
	packages []string
	// aliases are links to out, beside the program tarn.
	aliases []string
	tags    string
	ldflags string
	// cgo is "1" for a program with C code.
	cgo string
}

// programs lists every program that a Makefile builds.
func programs(version string) ([]program, error) {
	const kube = "k8s.io/component-base/version."
	release := make(map[string]string)
	for _, m := range []struct{ module, needs string }{
		{"cluster", "k8s.io/kubernetes"},
		{"cluster/runtime", "github.com/containerd/containerd/v2"},
		{"cluster/runtime", "github.com/containernetworking/plugins"},
	} {
		found, err := pinned(m.module, m.needs)
		if err != nil {
			return nil, err
		}
		release[m.needs] = found
	}
	kubernetes := release["k8s.io/kubernetes"]
	numbers := append(strings.Split(strings.TrimPrefix(kubernetes, "v"), "."), "")
	return []program{
		{name: "tarn", module: ".", out: "tarn", packages: []string{"./cmd/tarn"}, aliases: []string{"kubectl-tarn", "kubectl_complete-tarn"}, ldflags: " -X tarn.dev/tarn/internal/cli.Version=" + version},
		{name: "demo", module: ".", out: "../.tarn/demo", packages: []string{"./hack/demo"}},
		{name: "tarn-cluster", module: "cluster", out: "tarn-cluster", packages: []string{"./cmd/tarn-cluster"},
			ldflags: " -X tarn.dev/tarn/cluster/internal/cli.kubernetesVersion=" + strings.TrimPrefix(kubernetes, "v")},
		{name: "pause", module: "cluster", out: "tarn-cluster.d/pause", packages: []string{"./cmd/pause"}},
		{name: "etcd", module: "cluster", out: "tarn-cluster.d/etcd", packages: []string{"go.etcd.io/etcd/server/v3"}},
		// Kubernetes reports v0.0.0 unless the linker is given its version.
		{name: "kubernetes", module: "cluster", out: "tarn-cluster.d/kube", packages: []string{"./cmd/tarn-kube"}, aliases: []string{"kubectl"},
			ldflags: fmt.Sprintf(" -X %[1]sgitVersion=%[2]s -X %[1]sgitMajor=%[3]s -X %[1]sgitMinor=%[4]s -X %[1]sgitTreeState=clean", kube, kubernetes, numbers[0], numbers[1])},
		{name: "containerd", module: "cluster/runtime", out: "tarn-cluster.d/", tags: "no_btrfs no_devmapper no_zfs netgo osusergo",
			packages: within("github.com/containerd/containerd/v2/cmd/", "containerd", "containerd-shim-runc-v2", "ctr"),
			ldflags:  " -X github.com/containerd/containerd/v2/version.Version=" + release["github.com/containerd/containerd/v2"]},
		{name: "cni", module: "cluster/runtime", out: "tarn-cluster.d/cni/",
			packages: within("github.com/containernetworking/plugins/plugins/", "ipam/host-local", "main/bridge", "main/loopback", "meta/portmap"),
			ldflags:  " -X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=" + release["github.com/containernetworking/plugins"]},
		{name: "runc", module: "cluster/runtime", out: "tarn-cluster.d/runc", packages: []string{"github.com/opencontainers/runc"}, tags: "seccomp urfave_cli_no_docs", cgo: "1"},
		// Helm renders and installs the chart.
		{name: "helm", module: "hack/helm", out: "helm", packages: []string{"helm.sh/helm/v4/cmd/helm"}},
		// Kubernetes' own provisioner. Only tests beside other drivers need it.
		{name: "csi-provisioner", module: "hack/csi", out: "csi-provisioner", packages: []string{"github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"}},
	}, nil
}

func within(folder string, names ...string) []string {
	packages := make([]string, len(names))
	for i, name := range names {
		packages[i] = folder + name
	}
	return packages
}

// pinned gives the version of a module that another module's go.mod requires.
func pinned(module, needs string) (string, error) {
	path := filepath.Join(module, "go.mod")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`(?m)^\t` + regexp.QuoteMeta(needs) + ` (v\S+)`).FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("%s does not require %s: add it with `go -C %s get %[2]s`", path, needs, module)
	}
	return string(found[1]), nil
}

// command builds a go command with the settings that decide how packages are compiled.
func (p program) command(verb string, args ...string) *exec.Cmd {
	args = append([]string{verb}, args...)
	if p.tags != "" {
		args = append(args, "-tags", p.tags)
	}
	c := exec.Command("go", append(args, p.packages...)...)
	c.Dir = p.module
	c.Env = append([]string{"GOGC=" + collected, "GOMEMLIMIT=" + heap}, os.Environ()...)
	c.Env = append(c.Env, "CGO_ENABLED="+cmp.Or(p.cgo, "0"))
	return c
}

// build compiles and links the program. It calls started with the path of each compiled package.
func (p program) build(bin string, started func(path string), say func(line string)) (time.Duration, error) {
	out := filepath.Join(bin, p.out)
	if strings.HasSuffix(p.out, "/") {
		out += "/"
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return 0, err
	}
	c := p.command("build", "-v", "-o", out, "-ldflags", stripped+p.ldflags)
	c.Stdout = os.Stdout
	printed, err := c.StderrPipe()
	if err != nil {
		return 0, err
	}
	if err := c.Start(); err != nil {
		return 0, err
	}
	lines := bufio.NewReader(printed)
	for {
		line, err := lines.ReadString('\n')
		switch path := strings.TrimSuffix(line, "\n"); {
		case path == "":
		// A path has no space, but a compiler message has.
		case strings.Contains(path, " "):
			say(path)
		default:
			started(path)
		}
		if err != nil {
			break
		}
	}
	err = c.Wait()
	took := c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	if err != nil {
		return took, fmt.Errorf("building %s: %w", p.name, err)
	}
	return took, p.link(bin)
}

// link makes the aliases.
func (p program) link(bin string) error {
	for _, alias := range p.aliases {
		path := filepath.Join(bin, alias)
		if to, err := os.Readlink(path); err == nil && to == p.out {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.Symlink(p.out, path); err != nil {
			return err
		}
	}
	return nil
}

// list gives the packages that the program consists of.
func (p program) list() (map[string]pkg, error) {
	text, err := p.command("list", "-deps", "-f", "{{.Stale}} {{.ImportPath}} {{with .Module}}{{.Version}}{{end}}").Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages of %s: %w", p.name, err)
	}
	all := make(map[string]pkg)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(strings.TrimSuffix(line, "\n"), " "); len(fields) == 3 {
			all[fields[1]] = pkg{key: fields[1] + "@" + fields[2], stale: fields[0] == "true"}
		}
	}
	return all, nil
}

func main() {
	bin := flag.String("bin", "bin", "`directory` for the programs")
	version := flag.String("version", "unknown", "`version` that tarn reports")
	flag.Parse()
	if err := run(*bin, *version, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "make:", err)
		os.Exit(1)
	}
}

func run(bin, version string, names []string, out io.Writer) error {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	all, err := programs(version)
	if err != nil {
		return err
	}
	chosen, err := choose(all, names)
	if err != nil {
		return err
	}
	v := newView(out, chosen)
	defer v.end()
	for i, p := range chosen {
		v.at(i)
		used, err := p.build(bin, func(path string) {
			// Packages that are up to date are not counted: counting them takes as long as finding
			// that out.
			if v.started(path) {
				go count(chosen, i, v)
			}
		}, v.say)
		v.used(used)
		if err != nil {
			return err
		}
	}
	return nil
}

// choose gives the programs with those names.
func choose(all []program, names []string) ([]program, error) {
	var chosen []program
	for _, name := range names {
		before := len(chosen)
		for _, p := range all {
			if p.name == name || name == "cluster" && strings.HasPrefix(p.module, "cluster") {
				chosen = append(chosen, p)
			}
		}
		if len(chosen) == before {
			return nil, fmt.Errorf("there is no program %q: use a name of hack/build/main.go", name)
		}
	}
	return chosen, nil
}

// count lists the packages still to compile, while the first ones compile.
func count(chosen []program, from int, v *view) {
	for i := from; i < len(chosen); i++ {
		packages, err := chosen[i].list()
		if err != nil {
			// The build fails for the same reason, and reports it.
			return
		}
		v.counted(i, packages)
	}
	v.countedAll()
}
