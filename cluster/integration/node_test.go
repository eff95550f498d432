package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tarn.dev/tarn/cluster/internal/image"
)

// workload is one pod of each kind that has caused trouble before. They are a service reached by
// its address, a tag that is always pulled, and the image that stands for a distribution. The last
// is a privileged pod that mounts through to the node. It attaches a loop device to a file named
// after its cluster.
const workload = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "echo started; mkdir /www; echo served > /www/index.html; exec httpd -f -p 8080 -h /www"]
    ports: [{containerPort: 8080, hostPort: 8181}]
    readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: caller}
spec:
  restartPolicy: OnFailure
  containers:
  - name: c
    image: busybox # :latest, so pulled each time
    command: [sh, -c, "nc -w 2 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && wget -q -O - http://$WEB_SERVICE_HOST"]
---
apiVersion: v1
kind: Pod
metadata: {name: tools}
spec:
  restartPolicy: OnFailure
  containers:
  - name: c
    image: alpine:3.15
    command: [/bin/bash, -c, "grep -c . <<<\"of the tools' image\""]
---
apiVersion: v1
kind: Pod
metadata: {name: mounter}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: ubuntu:20.04
    securityContext: {privileged: true}
    command:
    - /bin/bash
    - -ec
    - |
      mkdir -p /plugins/CLUSTER
      mount -t tmpfs tarn-test /plugins/CLUSTER
      truncate -s 16M /CLUSTER.img
      mkfs.ext4 -q /CLUSTER.img
      losetup -f /CLUSTER.img
      echo "awk sed grep $(echo works | awk '{print $1}' | sed s/s// | grep work)"
      sleep 10000
    volumeMounts: [{name: plugins, mountPath: /plugins, mountPropagation: Bidirectional}]
  volumes: [{name: plugins, hostPath: {path: /var/lib/kubelet/plugins, type: DirectoryOrCreate}}]
`

func TestAWholeClusterRunsPodsRecoversAndLeavesNothing(t *testing.T) {
	t.Parallel()
	forwards := forwarding(t)
	tarn, err := standIn()
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, "whole")
	options := []string{"--tarn-binary", tarn, "--tarn-node-arg=--extra=1"}
	c.run(append([]string{"up"}, options...)...)
	c.apply(strings.ReplaceAll(workload, "CLUSTER", c.name))
	podsRun(c)
	aSecondUpChangesNothing(c, options...)
	tarnKeepsItsContract(c)
	theKubeletIsKeptToItsNode(c)
	componentsAreStartedAgain(c)
	imagesAreBuiltAndImported(c)
	marks := c.marks()
	c.isSeen("processes", "cgroups", "network interfaces", "loop devices", "folders")
	c.untouched("while it runs", marks)

	c.crash()
	if left := c.traces()["processes"]; left != "" {
		t.Errorf("processes outlived their supervisor:\n%s", left)
	}
	tokensHaveExpired(c)
	c.run("up", "--tarn-binary", tarn)
	tarnKeepsItsContract(c)
	c.eventually("the pod serves again after a crash", func() bool {
		out, err := c.tryKubectl("kubeconfig", "", "exec", "web", "--", "wget", "-q", "-O", "-", "http://127.0.0.1:8080")
		return err == nil && out == "served"
	})
	c.eventually("the loop device is attached again", func() bool { return c.traces()["loop devices"] != "" })
	c.crash() // down must remove everything after a crash as well
	c.leavesNothing()
	c.untouched("after its end", marks)
	if now := forwarding(t); now != forwards {
		t.Errorf("the machine forwards packets: %s, before %s", now, forwards)
	}
}

// forwarding is the machine's setting for packet forwarding. Nodes of clusters forward packets, but
// in their own network namespace.
func forwarding(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func podsRun(c *cluster) {
	c.t.Helper()
	c.kubectl("wait", "--for=condition=Ready", "pod/web", "pod/mounter", "--timeout=60s")
	c.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/caller", "--timeout=60s")
	c.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/tools", "--timeout=60s")
	if got := c.kubectl("logs", "tools"); got != "1" {
		c.t.Errorf("alpine:3.15 printed %q", got)
	}
	if got := c.kubectl("logs", "caller"); got != "served" {
		c.t.Errorf("through the service came %q", got)
	}
	if got := c.kubectl("exec", "web", "--", "cat", "/www/index.html"); got != "served" {
		c.t.Errorf("exec printed %q", got)
	}
	// Pods and services have routes from the host, so no port-forward is needed.
	ip := c.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	if got := fetch(c.t, "http://"+ip); strings.TrimSpace(got) != "served" {
		c.t.Errorf("the host got %q from the service", got)
	}
	node := c.kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}")
	if got := fetch(c.t, "http://"+node+":8181"); strings.TrimSpace(got) != "served" {
		c.t.Errorf("the host got %q from the pod's host port", got)
	}
	if got, want := c.kubectl("logs", "mounter"), "awk sed grep work"; got != want {
		c.t.Errorf("the tools printed %q, want %q", got, want)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", c.status().PID))
	if err != nil {
		c.t.Fatal(err)
	}
	if !strings.Contains(string(mounts), "/var/lib/kubelet/plugins/"+c.name) {
		c.t.Error("what a privileged pod mounted did not reach the node")
	}
	forwarded(c)
}

func forwarded(c *cluster) {
	c.t.Helper()
	port := strconv.Itoa(c.port("tarn-node-metrics")) // the stand-in serves no metrics, so the port is free
	cmd := exec.Command(filepath.Join(c.bin, "kubectl"), "--kubeconfig", filepath.Join(c.dataDir, "kubeconfig"), "port-forward", "pod/web", port+":8080")
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	defer cmd.Wait() //nolint:errcheck
	defer cmd.Process.Kill()
	if _, err := out.Read(make([]byte, 64)); err != nil { // it prints a line once it listens
		c.t.Fatal(err)
	}
	if got := fetch(c.t, "http://127.0.0.1:"+port); strings.TrimSpace(got) != "served" {
		c.t.Errorf("through port-forward came %q", got)
	}
}

// tokensHaveExpired replaces the tokens of Tarn's parts by invalid ones, as if they had expired.
func tokensHaveExpired(c *cluster) {
	c.t.Helper()
	for _, name := range []string{"tarn-controller", "tarn-node", "tarn-api"} {
		if err := os.WriteFile(filepath.Join(c.dataDir, "pki", name+".token"), []byte("expired"), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
}

func tarnKeepsItsContract(c *cluster) {
	c.t.Helper()
	for _, name := range []string{"tarn-controller", "tarn-node"} {
		got, err := c.tryKubectl("pki/"+name+".kubeconfig", "", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.groups[*]}")
		if err != nil {
			c.t.Fatalf("whoami: %v: %s", err, got)
		}
		want := sorted("system:serviceaccount:tarn-system:" + name + " system:serviceaccounts system:serviceaccounts:tarn-system system:authenticated")
		if got := sorted(got); strings.Join(got, " ") != strings.Join(want, " ") {
			c.t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	mounts := fetch(c.t, fmt.Sprintf("http://127.0.0.1:%d/mounts", c.port("tarn-node-health")))
	if !strings.Contains(mounts, " /var/lib/kubelet ") {
		c.t.Error("the node agent does not see the kubelet's folder")
	}
}

// aSecondUpChangesNothing runs `up` for a running cluster with the same options.
func aSecondUpChangesNothing(c *cluster, options ...string) {
	c.t.Helper()
	was := c.status()
	if was.PID == 0 || len(was.Components) == 0 || slices.ContainsFunc(was.Components, func(one component) bool { return one.PID == 0 }) {
		c.t.Fatalf("not all of the cluster runs: %+v", was)
	}
	if out, want := c.run(append([]string{"up"}, options...)...), "cluster "+c.name+" is up already\n"; out != want {
		c.t.Errorf("the second up said %q, want %q", out, want)
	}
	if now := c.status(); !reflect.DeepEqual(now, was) {
		c.t.Errorf("after a second up the cluster is\n%+v, and it was\n%+v", now, was)
	}
}

// theKubeletIsKeptToItsNode makes requests as the kubelet: for its own objects, and for objects
// that only the Node authorizer or NodeRestriction denies. Labels are set with server-side apply,
// because the other ways read the Node first, and the authorizer would deny that read.
func theKubeletIsKeptToItsNode(c *cluster) {
	c.t.Helper()
	c.apply("{apiVersion: v1, kind: Node, metadata: {name: other}}")
	defer c.kubectl("delete", "node", "other")
	c.kubectl("create", "secret", "generic", "foreign")
	for _, request := range []struct{ command, input, refusal string }{
		{"get node " + c.name, "", ""},
		{"label node " + c.name + " mine=of-kubelet", "", ""},
		{"get secrets -A", "", "forbidden"},
		{"get persistentvolumeclaim of-no-pod", "", "NotFound"},
		{"get persistentvolume of-no-claim", "", "NotFound"},
		{"get persistentvolumeclaims -A", "", "forbidden"},
		{"get secret foreign", "", "no relationship found between node '" + c.name + "' and this object"},
		{"get node other", "", "only its own Node object"},
		{"apply --server-side -f -", "{apiVersion: v1, kind: Node, metadata: {name: other, labels: {mine: of-kubelet}}}", `is not allowed to modify node "other"`},
		{"label node " + c.name + " node-restriction.kubernetes.io/mine=yes", "", "is not allowed to modify labels"},
	} {
		out, err := c.tryKubectl("pki/kubelet.kubeconfig", request.input, strings.Fields(request.command)...)
		if (err != nil) != (request.refusal != "") || !strings.Contains(out, request.refusal) {
			c.t.Errorf("the kubelet's %s: %v, %s; want %q", request.command, err, out, request.refusal)
		}
	}
}

func componentsAreStartedAgain(c *cluster) {
	c.t.Helper()
	for name, exit := range map[string]string{"tarn-controller": "", "kubelet": "killed by killed"} {
		was := c.component(name).Restarts
		args := []string{"restart", name}
		if exit != "" {
			args = append(args, "--kill")
		}
		c.run(args...)
		c.eventually(name+" runs again", func() bool {
			component := c.component(name)
			return component.Restarts > was && component.State == "Running" && (exit == "" || component.LastExit == exit)
		})
	}
	if out, err := c.try("restart", "nothing"); err == nil || !strings.Contains(out, "nothing") {
		c.t.Errorf("restarting a component that is none: %v, %s", err, out)
	}
}

// imagesAreBuiltAndImported makes images in every supported way, and runs a pod of each.
func imagesAreBuiltAndImported(c *cluster) {
	c.t.Helper()
	pause := filepath.Join(c.bin, "tarn-cluster.d", "pause")
	c.run("image", "build", "--tag", "example.org/pause:latest", "--binary", pause)
	for _, pod := range []string{"program", "program-again"} {
		c.runs(pod, "example.org/pause") // :latest, so pulled for each, and no registry has it
	}

	folder := c.t.TempDir()
	content, err := os.ReadFile(pause)
	if err := errors.Join(err, os.MkdirAll(filepath.Join(folder, "opt/app"), 0o755), os.WriteFile(filepath.Join(folder, "opt/app/waits"), content, 0o755),
		os.Symlink("opt/app/waits", filepath.Join(folder, "entry"))); err != nil {
		c.t.Fatal(err)
	}
	c.run("image", "build", "--tag", "example.org/folder:1", "--rootfs", folder, "/entry")
	c.runs("folder", "example.org/folder:1")

	archives := []string{filepath.Join(c.t.TempDir(), "one.tar"), filepath.Join(c.t.TempDir(), "two.tar")}
	for i, archive := range archives {
		if err := image.Build(archive, fmt.Sprintf("example.org/archive:%d", i), "", pause, nil); err != nil {
			c.t.Fatal(err)
		}
	}
	c.run(append([]string{"image", "import"}, archives...)...)
	for i := range archives {
		c.runs(fmt.Sprintf("archive-%d", i), fmt.Sprintf("example.org/archive:%d", i))
	}
	if out, err := c.try("image", "import", pause); err == nil || !strings.Contains(out, pause) {
		c.t.Errorf("importing a file that is no archive: %v, %s", err, out)
	}
}

// runs starts a pod of an image that must be in the cluster already. No registry has it.
func (c *cluster) runs(pod, image string) {
	c.t.Helper()
	c.kubectl("run", pod, "--image="+image, "--grace-period=1")
	c.kubectl("wait", "--for=condition=Ready", "pod/"+pod, "--timeout=60s")
}

func TestASecondClusterLivesBesideTheFirst(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "stock")
	c.run("up", "--stock")
	c.kubectl("run", "p", "--image=busybox:1.36", "--", "sleep", "10000")
	c.kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s")
	address := c.kubectl("get", "pod", "p", "-o", "jsonpath={.status.podIP}")
	for _, component := range c.status().Components {
		if strings.HasPrefix(component.Name, "tarn") {
			t.Errorf("a stock cluster has %s", component.Name)
		}
	}
	c.run("down", "--keep-data")
	c.run("up", "--stock")
	// Until the kubelet has synced, the pod's record is from before. Only the restart count proves
	// anything.
	c.kubectl("wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "pod/p", "--timeout=60s")
	c.kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s")
	again := c.kubectl("get", "pod", "p", "-o", "jsonpath={.status.podIP}")
	if block(address) != block(again) {
		t.Errorf("the pod moved from %s to %s: the cluster lost its network", address, again)
	}
	c.leavesNothing()
}

// block is the first two numbers of an address, which identify a cluster's network.
func block(address string) string {
	parts := strings.SplitN(address, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}
