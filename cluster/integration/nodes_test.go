package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// onNodes is a server on the second node, and a client on the third that counts the answers it gets
// through a service. Both must find the image on their nodes.
const onNodes = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: CLUSTER-2
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "mkdir -p /www; hostname > /www/index.html; exec httpd -f -p 8080 -h /www"]
    readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
    volumeMounts: [{name: disk, mountPath: /disk}]
  volumes: [{name: disk, hostPath: {path: /var/lib/tarn/CLUSTER, type: DirectoryOrCreate}}]
---
apiVersion: v1
kind: Pod
metadata: {name: caller}
spec:
  nodeName: CLUSTER-3
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "mkdir -p /www; httpd -p 8080 -h /www; while :; do wget -q -O - http://$WEB_SERVICE_HOST >> /www/answers; sleep 0.2; done"]
---
apiVersion: v1
kind: Pod
metadata: {name: imported}
spec:
  nodeName: CLUSTER-3
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: "example.org/pause:latest"}]
`

func TestNodesOfAClusterFailAndComeBackAndLeaveNothing(t *testing.T) {
	t.Parallel()
	tarn, err := standIn()
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, "nodes")
	second, third := c.name+"-2", c.name+"-3"
	c.run("up", "--nodes", "3", "--tarn-binary", tarn)
	if got, want := c.kubectl("get", "nodes", "-o", `jsonpath={range .items[*]}{.metadata.name}={.metadata.labels.topology\.kubernetes\.io/zone} {end}`),
		fmt.Sprintf("%s=a %s=b %s=c", c.name, second, third); got != want {
		t.Errorf("the zones of the nodes are %q, want %q", got, want)
	}
	c.run("image", "build", "--tag", "example.org/pause:latest", "--binary", filepath.Join(c.bin, "tarn-cluster.d", "pause"))
	c.apply(strings.ReplaceAll(onNodes, "CLUSTER", c.name))
	c.kubectl("wait", "--for=condition=Ready", "pod/web", "pod/caller", "pod/imported", "--timeout=90s")
	web, caller := c.podAddress("web"), c.podAddress("caller")
	c.eventually("a pod reaches one on another node by its service", func() bool {
		return strings.Contains(answer("http://"+caller+":8080/answers"), "web")
	})
	c.isSeen("processes", "cgroups", "network interfaces", "folders")
	for what, path := range map[string]string{
		"its own": filepath.Join(c.dataDir, "nodes", second, "var-lib-tarn", c.name), "the machine's": filepath.Join("/var/lib/tarn", c.name),
	} {
		if _, err := os.Stat(path); os.IsNotExist(err) != (what == "the machine's") {
			t.Errorf("the second node keeps its volumes not on its own disk; on %s: %v", what, err)
		}
	}
	if out, err := c.try("node", "cut", c.name); err == nil || !strings.Contains(out, "runs the control plane") {
		t.Errorf("the node of the control plane was cut: %v, %s", err, out)
	}

	aNodeIsCut(c, second, web)
	aNodeIsIsolatedAndFrozen(c, third, caller)

	c.run("node", "remove", second)
	if got := c.kubectl("get", "nodes", "-o", "name"); strings.Contains(got, second) {
		t.Errorf("after the removal of %s the nodes are\n%s", second, got)
	}
	c.crash()
	if left := c.traces()["processes"]; left != "" {
		t.Errorf("processes outlived their supervisor:\n%s", left)
	}
	c.run("up", "--nodes", "3", "--tarn-binary", tarn)
	if got := c.run("node", "list"); strings.Count(got, " Ready ") != 3 {
		t.Errorf("after a crash and a new second node the nodes are\n%s", got)
	}
	c.run("node", "isolate", second)
	c.run("node", "freeze", third)
	c.run("down", "--keep-data")
	if left := c.traces()["processes"]; left != "" {
		t.Errorf("processes outlived an orderly end:\n%s", left)
	}
	c.leavesNothing()
}

// aNodeIsCut cuts the node of the web server, and starts it again.
func aNodeIsCut(c *cluster, second, web string) {
	c.t.Helper()
	if c.processesOf(second) == "" {
		c.t.Error("the node runs, and the search sees none of its processes")
	}
	c.run("node", "cut", second)
	if left := c.processesOf(second); left != "" {
		c.t.Errorf("processes outlived their node:\n%s", left)
	}
	if got := answer("http://" + web + ":8080"); got != "" {
		c.t.Errorf("a pod of a node that is off answered %q", got)
	}
	if out, err := c.try("restart", "kubelet", "--node", second); err == nil || !strings.Contains(out, "is off") {
		c.t.Errorf("restarting the kubelet of a node that is off: %v, %s", err, out)
	}
	c.run("node", "start", second)
	c.eventually("the pod of a node that was off serves again", func() bool {
		out, err := c.tryKubectl("kubeconfig", "", "get", "pod", "web", "-o", "jsonpath={.status.podIP}")
		return err == nil && out != "" && strings.TrimSpace(answer("http://"+out+":8080")) == "web"
	})
}

// aNodeIsIsolatedAndFrozen lets the node of the caller fail in the ways that its processes survive.
func aNodeIsIsolatedAndFrozen(c *cluster, third, caller string) {
	c.t.Helper()
	for failure, undo := range map[string]string{"isolate": "join", "freeze": "thaw"} {
		c.run("node", failure, third)
		if got := answer("http://" + caller + ":8080/answers"); got != "" {
			c.t.Errorf("after node %s its pod answers", failure)
		}
		c.run("node", undo, third)
		c.eventually("the pod answers after node "+undo, func() bool { return answer("http://"+caller+":8080/answers") != "" })
	}
	if got := c.kubectl("get", "pod", "caller", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"); got != "0" {
		c.t.Errorf("a pod was restarted %s times whose node was isolated and frozen, want never", got)
	}
	c.run("restart", "kubelet", "--node", third, "--kill")
	c.eventually("the kubelet of the third node runs again", func() bool {
		kubelet := c.nodeComponent(third, "kubelet")
		return kubelet.Restarts == 1 && kubelet.State == "Running"
	})
	if out := c.run("logs", "kubelet", "--node", third); !strings.Contains(out, third) {
		c.t.Errorf("the log of the kubelet of the third node is another's:\n%s", tail(out, 5))
	}
}

// answer is what a server answers within a second, "" if it does not.
func answer(url string) string {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(url)
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	body := make([]byte, 64)
	n, _ := r.Body.Read(body)
	return string(body[:n])
}

func (c *cluster) podAddress(pod string) string {
	c.t.Helper()
	return c.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIP}")
}

// processesOf lists the processes of a node: those that live in its directories or cgroups.
func (c *cluster) processesOf(node string) string {
	c.t.Helper()
	var of []string
	for path := range strings.FieldsSeq(c.traces()["processes"]) {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), "/nodes/"+node+"/") {
			of = append(of, path)
		}
	}
	return strings.Join(of, "\n")
}

// nodeComponent is what status reports of a component of a further node.
func (c *cluster) nodeComponent(node, name string) component {
	c.t.Helper()
	for _, n := range c.status().Nodes {
		for _, one := range n.Components {
			if n.Name == node && one.Name == name {
				return one
			}
		}
	}
	c.t.Fatalf("status knows no component %s of node %s", name, node)
	return component{}
}
