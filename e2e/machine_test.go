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

// The parts of Tarn, by tarn-cluster's names.
const (
	controller = "tarn-controller"
	nodeAgent  = "tarn-node"
)

// machine is the cluster's machine, if it is this one. Then a component can be killed, and
// directories and mounts can be checked. Its zero value stands for a remote cluster.
type machine struct {
	// binary is the path of tarn-cluster, name the cluster's.
	binary, name string
	// node is one of several nodes, "" the first.
	node  string
	kills *killing
}

// on gives the machine with another of the cluster's nodes.
func (m machine) on(node string) machine {
	m.node = node
	return m
}

// killing keeps two restarts from running at once.
type killing struct {
	sync.Mutex
	// began is when the last restart of the same parts began, where they are pods.
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

// here reports whether the cluster is on this machine.
func (m machine) here() bool { return m.binary != "" }

// run gives the output of a tarn-cluster command. If it fails, the error contains the output until
// then.
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

// kill ends components by SIGKILL and waits until they run again. Where Tarn's parts are pods, it
// waits for their replacements.
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
		args := []string{"restart", "--kill", c}
		if m.node != "" {
			args = append(args, "--node", m.node)
		}
		if _, err := m.run(args...); err != nil {
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

// log gives the last lines of a component's log. Where helm installed Tarn, it reads the logs of
// the pods.
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

// component is what the cluster reports of one of its processes.
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
	// While a component is being restarted, the cluster is not Ready. The command then fails, but
	// still prints its answer.
	text, err := m.run("status", "--output", "json")
	if err != nil && text == "" {
		return component{}, err
	}
	var status struct {
		Node       string      `json:"node"`
		Components []component `json:"components"`
		Nodes      []struct {
			Name       string      `json:"name"`
			Components []component `json:"components"`
		} `json:"nodes"`
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return component{}, fmt.Errorf("status of cluster %s: %w", m.name, err)
	}
	components := status.Components
	if m.node != "" && m.node != status.Node {
		components = nil
		for _, node := range status.Nodes {
			if node.Name == m.node {
				components = node.Components
			}
		}
	}
	for _, c := range components {
		if c.Name == name {
			return c, nil
		}
	}
	return component{}, fmt.Errorf("cluster %s runs no %s on node %q", m.name, name, m.node)
}

// kubelet gives the process id of the node's kubelet. Its mount namespace shows the node's files
// and mounts.
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

// mounts gives the mounts below a directory of the node, in the kubelet's view.
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

// kubeletDir is the kubelet's directory in its own view, and stateDir that of the node agent.
var (
	kubeletDir = cmp.Or(os.Getenv("TARN_KUBELET_DIR"), "/var/lib/kubelet")
	stateDir   = kubeletDir + "/plugins/pav.tarn.dev"
)

// ownDirs are the directories of the node in which Tarn has one entry for each object.
var ownDirs = []string{
	stateDir + "/stages",
	stateDir + "/results",
}

// socketDirs are the directories of the node with one entry for each provisioner.
var socketDirs = []string{
	kubeletDir + "/plugins_registry",
	stateDir + "/drivers",
}

// entries gives the paths of the entries in directories of the node, in the kubelet's view. A
// directory that does not exist counts as empty.
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
