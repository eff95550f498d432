//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// inPods reports whether Tarn's parts are pods installed by helm, and not processes of
// tarn-cluster.
func inPods() bool { return os.Getenv("TARN_HELM") != "" }

// wide reports whether every case is requested that the cluster supports.
func wide() bool { return os.Getenv("WIDE") != "" }

// tarnAgain waits until every part of Tarn that a case has removed runs again. Processes run at
// once.
func (s *scenario) tarnAgain() {
	s.t.Helper()
	if !inPods() {
		return
	}
	for _, part := range []string{"deployment/tarn-controller", "daemonset/tarn-node", "deployment/tarn-api"} {
		s.kubectl("-n", tarnSystem, "rollout", "status", part, "--timeout=180s")
	}
}

// withoutController ends all controllers, as an administrator does who scales them to zero, until
// goOn is called.
func (s *scenario) withoutController() (goOn func()) {
	s.t.Helper()
	scale := func(to int32) {
		s.kubectl("-n", tarnSystem, "scale", "deployment", controller, fmt.Sprintf("--replicas=%d", to))
	}
	before := &appsv1.Deployment{}
	if err := suite.live.Get(s.ctx, client.ObjectKey{Namespace: tarnSystem, Name: controller}, before); err != nil {
		s.t.Fatal(err)
	}
	scale(0)
	back := func() { scale(ptr.Deref(before.Spec.Replicas, 1)); s.tarnAgain() }
	s.t.Cleanup(back)
	s.await("no controller to run", func() (bool, string) {
		var pods corev1.PodList
		err := suite.live.List(s.ctx, &pods, client.InNamespace(tarnSystem), client.MatchingLabels{"app.kubernetes.io/component": "controller"})
		return err == nil && len(pods.Items) == 0, fmt.Sprintf("%d pods are there (%v)", len(pods.Items), err)
	})
	return back
}

// pausesAgent stops the node agents' processes until the case ends. Their pods' probes would
// restart them after a minute.
func (s *scenario) pausesAgent() (goOn func()) {
	s.t.Helper()
	pods := s.parts("node")
	each := func(what syscall.Signal) error {
		var err error
		for i := range pods {
			err = errors.Join(err, suite.machine.signal(&pods[i], what))
		}
		return err
	}
	if err := each(syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	goOn = func() { _ = each(syscall.SIGCONT) } // a process that has ended meanwhile does not need it
	s.t.Cleanup(goOn)
	return goOn
}

// errNoProcess says that a pod's process has ended or runs on another machine.
var errNoProcess = errors.New("it has no process on this machine")

// processes gives the ids of a pod's processes on this machine.
func (m machine) processes(pod *corev1.Pod) ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		for _, c := range pod.Status.ContainerStatuses {
			_, id, _ := strings.Cut(c.ContainerID, "://")
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && id != "" && strings.Contains(string(text), id) {
				found = append(found, pid)
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("pod %s: %w", pod.Name, errNoProcess)
	}
	return found, nil
}

// signal sends a signal to the processes of a pod.
func (m machine) signal(pod *corev1.Pod, what syscall.Signal) error {
	pids, err := m.processes(pod)
	for _, pid := range pids {
		err = errors.Join(err, syscall.Kill(pid, what))
	}
	return err
}

// ends kills a pod of Tarn's as the loss of its machine would: it kills the process and deletes the
// pod. Another pod replaces it. The process may have just ended by itself, like a controller that
// cannot renew its lease.
func (m machine) ends(ctx context.Context, pod *corev1.Pod) error {
	if err := m.signal(pod, syscall.SIGKILL); err != nil && !errors.Is(err, errNoProcess) && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return client.IgnoreNotFound(suite.live.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID}))
}

// serviceURL is the URL of the REST API's service.
func (s *scenario) serviceURL() string {
	s.t.Helper()
	service := &corev1.Service{}
	if err := suite.live.Get(s.ctx, client.ObjectKey{Namespace: tarnSystem, Name: "tarn-api"}, service); err != nil {
		s.t.Fatal(err)
	}
	return "http://" + net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(int(service.Spec.Ports[0].Port)))
}

// killPods kills the leading controller, the standby, or the node agents, as the loss of their
// machines would. It waits until another controller leads and other agents are Ready. That takes
// seconds, so a kill that began after the request serves all waiting callers.
func (m machine) killPods(asked time.Time, parts []string) error {
	key, began := strings.Join(parts, " "), time.Now()
	if m.kills.began[key].After(asked) {
		return nil
	}
	m.kills.began[key] = began
	ctx := context.Background()
	was, victims, agents, err := victimsOf(ctx, parts)
	if err != nil {
		return err
	}
	for i := range victims {
		if err := m.ends(ctx, &victims[i]); err != nil {
			return fmt.Errorf("killing pod %s: %w", victims[i].Name, err)
		}
	}
	gone := func(p corev1.Pod) bool {
		return slices.ContainsFunc(victims, func(v corev1.Pod) bool { return v.UID == p.UID })
	}
	over, again := time.NewTimer(soon), time.NewTicker(100*time.Millisecond)
	defer over.Stop()
	defer again.Stop()
	for {
		// The pod of a lost holder is not found.
		now, _, leaderErr := leads(ctx)
		others, agentErr := podsOf(ctx, "node")
		if errors.Join(leaderErr, agentErr) == nil && now != was && len(others) == agents &&
			!slices.ContainsFunc(others, func(p corev1.Pod) bool { return gone(p) || !isReadyPod(&p) }) {
			return nil
		}
		select {
		case <-again.C:
		case <-over.C:
			return errors.Join(fmt.Errorf("%s after %s were killed %s leads, and there are the agents %v", time.Since(began), parts, now, names(others)), leaderErr, agentErr)
		}
	}
}

// victimsOf gives the pods of parts to kill, none of which may lead afterwards, and the number of
// agents.
func victimsOf(ctx context.Context, parts []string) (was string, victims []corev1.Pod, agents int, err error) {
	leader, itsPod, err := leads(ctx)
	if err != nil {
		return "", nil, 0, err
	}
	controllers, controllersErr := podsOf(ctx, "controller")
	nodes, nodesErr := podsOf(ctx, "node")
	for _, part := range parts {
		switch part {
		case controller:
			was, victims = leader, append(victims, *itsPod)
		case standby:
			victims = append(victims, slices.DeleteFunc(controllers, func(p corev1.Pod) bool { return p.UID == itsPod.UID })...)
		case nodeAgent:
			victims = append(victims, nodes...)
		}
	}
	return was, victims, len(nodes), errors.Join(controllersErr, nodesErr)
}

// podsOf are the running pods of a part of Tarn. On a node without a kubelet, an agent stays
// pending for ever.
func podsOf(ctx context.Context, component string) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := suite.live.List(ctx, &list, client.InNamespace(tarnSystem), client.MatchingLabels{"app.kubernetes.io/component": component})
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Running == nil
	}), err
}

// leads gives the holder of the controllers' lease, and its pod.
func leads(ctx context.Context) (string, *corev1.Pod, error) {
	lease := &coordinationv1.Lease{}
	if err := suite.live.Get(ctx, client.ObjectKey{Namespace: tarnSystem, Name: controller}, lease); err != nil {
		return "", nil, err
	}
	name, _, _ := strings.Cut(holder(lease), "_") // it begins with the host name, which is the pod's name
	pod := &corev1.Pod{}
	return holder(lease), pod, suite.live.Get(ctx, client.ObjectKey{Namespace: tarnSystem, Name: name}, pod)
}
