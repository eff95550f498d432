package main

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// moving is how much longer a node is lost than cut: its pods are to run elsewhere meanwhile.
	moving = 30 * time.Second
	// calm is how long a node works after a failure, so that what waits for it comes to an end.
	calm = 30 * time.Second
	// stale is how long after a power cut a pod may still be said to run.
	stale = time.Minute
)

// undone says how the failures of a node end.
var undone = map[deed]string{cut: "start", lose: "start", isolate: "join", freeze: "thaw"}

// node is one that fails, or a component of which is killed.
type node struct {
	*soak
	name string
}

func (n node) do(ctx context.Context, e event) error {
	undo, fails := undone[e.do]
	if !fails {
		say("kill %s of %s", e.do, n.name)
		return command("tarn-cluster", "restart", "--kill", string(e.do), "--node", n.name, "--name", n.cluster)
	}
	how := string(e.do)
	if e.do == lose {
		how = "cut"
	}
	if how == "cut" {
		n.isOff(time.Now().Add(time.Hour))
		defer func() { n.isOff(time.Now().Add(stale)) }()
	}
	say("%s %s for %s", e.do, n.name, e.lasts)
	err := command("tarn-cluster", "node", how, n.name, "--name", n.cluster)
	if err == nil && e.do == lose {
		err = n.giveUp(ctx)
	}
	if err == nil {
		<-time.NewTimer(e.lasts).C
	}
	say("%s %s", undo, n.name)
	err = errors.Join(err, command("tarn-cluster", "node", undo, n.name, "--name", n.cluster))
	if e.do == lose {
		err = errors.Join(err, command("kubectl", "taint", "node", n.name, corev1.TaintNodeOutOfService+"-"))
	}
	return err
}

// giveUp tells Kubernetes that the node is off, and deletes the pods that can run elsewhere.
func (n node) giveUp(ctx context.Context) error {
	if err := command("kubectl", "taint", "node", n.name, corev1.TaintNodeOutOfService+"=cut:NoExecute"); err != nil {
		return err
	}
	var pods corev1.PodList
	err := n.List(ctx, &pods, client.InNamespace(namespace), client.HasLabels{moves})
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName == n.name {
			say("%s moves away from %s", pods.Items[i].Name, n.name)
			err = errors.Join(err, client.IgnoreNotFound(n.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0))))
		}
	}
	return err
}

// isOff says until when the node is off.
func (n node) isOff(until time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.off[n.name] = until
}

// wasOff is whether a node was off after some time.
func (s *soak) wasOff(name string, after time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.off[name].After(after)
}
