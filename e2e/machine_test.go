//go:build e2e

package e2e

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The parts of Tarn as tarn-cluster calls them.
const (
	controller = "tarn-controller"
	nodeAgent  = "tarn-node"
)

// machine is the machine the cluster runs on, when that is this one: then a
// component can be killed, and folders and mounts can be looked at. Its zero value
// knows nothing.
type machine struct {
	// binary is the path of tarn-cluster, name the cluster's.
	binary, name string
	kills        *killing
}

// killing keeps one restart from meeting another.
type killing struct {
	sync.Mutex
	// began says when the last one of the same parts did, where they are pods.
	began map[string]time.Time
}

// thisMachine reads TARN_CLUSTER_BINARY and TARN_CLUSTER_NAME.
func thisMachine() (machine, error) {
	m := machine{binary: os.Getenv("TARN_CLUSTER_BINARY"), name: os.Getenv("TARN_CLUSTER_NAME"), kills: &killing{began: map[string]time.Time{}}}
	if (m.binary == "") != (m.name == "") {
		return m, errors.New("set both TARN_CLUSTER_BINARY and TARN_CLUSTER_NAME, or neither where the cluster is not on this machine")
	}
	return m, nil
}

// here says whether the cluster is on this machine.
func (m machine) here() bool { return m.binary != "" }

// run gives what a command of tarn-cluster prints; what it printed before it failed
// comes with the error.
func (m machine) run(args ...string) (string, error) {
	command := exec.Command(m.binary, append(args, "--name", m.name)...)
	var complaint strings.Builder
	command.Stderr = &complaint
	out, err := command.Output()
	if err != nil {
		err = fmt.Errorf("tarn-cluster %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return string(out), err
}

// kill ends components by SIGKILL and sees them started again; of Tarn's, where they are
// pods, others in their place.
func (m machine) kill(components ...string) error {
	asked := time.Now()
	m.kills.Lock()
	defer m.kills.Unlock()
	if inPods() && strings.HasPrefix(components[0], "tarn-") {
		return m.killPods(asked, components)
	}
	killed := map[string]int{}
	for _, c := range components {
		before, err := m.component(c)
		if err != nil {
			return err
		}
		killed[c] = before.PID
		if _, err := m.run("restart", "--kill", c); err != nil {
			return err
		}
	}
	over, again := time.NewTimer(soon), time.NewTicker(100*time.Millisecond)
	defer over.Stop()
	defer again.Stop()
	for {
		up := 0
		for _, c := range components {
			now, err := m.component(c)
			if err != nil {
				return err
			}
			if now.PID > 0 && now.PID != killed[c] {
				up++
			}
		}
		if up == len(components) {
			return nil
		}
		select {
		case <-again.C:
		case <-over.C:
			return fmt.Errorf("%s were killed and are not started again", components)
		}
	}
}

// log gives the last lines of a component's log; where helm installed Tarn, its parts' are those of pods.
func (m machine) log(component string, lines int) string {
	var text string
	var err error
	if inPods() && strings.HasPrefix(component, "tarn-") {
		var out []byte
		out, err = exec.Command(filepath.Join(filepath.Dir(m.binary), "kubectl"), "-n", "tarn-system", "logs", "--prefix", "--tail", strconv.Itoa(lines),
			"--selector", "app.kubernetes.io/component="+strings.TrimPrefix(component, "tarn-")).Output()
		text = string(out)
	} else {
		text, err = m.run("logs", component)
	}
	if err != nil {
		return err.Error() + "\n"
	}
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n") + "\n"
}

// component is what the cluster says of one of its processes.
type component struct {
	Name    string    `json:"name"`
	State   string    `json:"state"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	// Metrics is host:port of its metrics, LastExit how its last process ended.
	Metrics  string `json:"metrics"`
	LastExit string `json:"lastExit"`
}

// component asks for one by name.
func (m machine) component(name string) (component, error) {
	// While a component is being started again the cluster is not Ready, and the
	// command fails with its answer.
	text, err := m.run("status", "--output", "json")
	if err != nil && text == "" {
		return component{}, err
	}
	var status struct {
		Components []component `json:"components"`
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return component{}, fmt.Errorf("status of cluster %s: %w", m.name, err)
	}
	for _, c := range status.Components {
		if c.Name == name {
			return c, nil
		}
	}
	return component{}, fmt.Errorf("cluster %s runs no %s", m.name, name)
}

// kubelet gives the process id of the cluster's kubelet, through whose eyes the
// node's files and mounts are seen.
func (m machine) kubelet() (int, error) {
	c, err := m.component("kubelet")
	if err == nil && c.PID == 0 {
		err = fmt.Errorf("the kubelet of cluster %s does not run", m.name)
	}
	return c.PID, err
}

// mount is one line of mountinfo.
type mount struct {
	point, options string
}

// mounts gives what is mounted below a folder of the node, in the kubelet's view.
func (m machine) mounts(below string) ([]mount, error) {
	pid, err := m.kubelet()
	if err != nil {
		return nil, err
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []mount
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// The fields: id, parent, device, root, mount point, options, ...
		fields := strings.Fields(lines.Text())
		if len(fields) > 5 && strings.HasPrefix(fields[4], below+"/") {
			found = append(found, mount{point: fields[4], options: fields[5]})
		}
	}
	return found, lines.Err()
}

// kubeletDir is the kubelet's folder in its own view, stateDir the node agent's.
var (
	kubeletDir = cmp.Or(os.Getenv("TARN_KUBELET_DIR"), "/var/lib/kubelet")
	stateDir   = kubeletDir + "/plugins/pav.tarn.dev"
)

// ownDirs are the folders of the node in which Tarn has one entry a thing.
var ownDirs = []string{
	stateDir + "/stages",
	stateDir + "/results",
}

// socketDirs are the folders of the node with one entry a provisioner.
var socketDirs = []string{
	kubeletDir + "/plugins_registry",
	stateDir + "/drivers",
}

// entries gives the paths of what lies in folders of the node, in the kubelet's
// view. A folder that does not exist is empty.
func (m machine) entries(dirs []string) ([]string, error) {
	pid, err := m.kubelet()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, dir := range dirs {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/root%s", pid, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, entry := range list {
			found = append(found, filepath.Join(dir, entry.Name()))
		}
	}
	return found, nil
}
