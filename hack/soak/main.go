// Command soak loads volumes of the ready provisioners, kills what serves them, and lets nodes fail, by
// a schedule that follows from a seed. Every byte is checked, and at the end nothing may be left.
// hack/soak.sh gives it a cluster of its own; the command must not know how one is made.
//
//	soak CLUSTER SEED DURATION JOURNALS CLASS...
//
// CLUSTER is a name for tarn-cluster, JOURNALS a directory that all nodes share. A class may begin with
// what its load must know, such as "blocks,faults:". "blocks" serves writes within files and renames,
// "faults" has a server whose death pods notice, and "recovers" may keep the last content of a file
// under another name. "moves" has nothing on a node, so that a pod of a lost node runs elsewhere.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	namespace = "soak"
	image     = "tarn.dev/soak-load:1" // hack/soak.sh makes it
	// slots is how many volumes are used at once.
	slots = 10
	// patience is how long a step may take while parts are killed. After each failed mount the
	// kubelet doubles its pause, up to two minutes.
	patience = 6 * time.Minute
	// size is the first size of a claim, and step how much it grows: xfs is no smaller.
	size, step = 320 << 20, 16 << 20
)

// deed is what the schedule does.
type deed string

const (
	begin      deed = "begin"           // a claim, and a pod that loads its volume
	end        deed = "end"             // of both: the pod checks everything first
	restart    deed = "restart"         // another pod for the claim, which checks what the first wrote
	crash      deed = "crash"           // the load is killed, and checks when it starts again
	serve      deed = "serve"           // whatever step pods the volume has are killed
	grow       deed = "grow"            // the claim
	app        deed = "app"             // one is deployed, scaled and deleted
	agent      deed = "tarn-node"       // the node agent is killed
	kubelet    deed = "kubelet"         // it is killed
	containerd deed = "containerd"      // it is killed
	controller deed = "tarn-controller" // the controller is killed
	cut        deed = "cut"             // the node loses its power
	lose       deed = "lose"            // it is cut and declared out of service, and pods that can move do
	isolate    deed = "isolate"         // the node loses its network
	freeze     deed = "freeze"          // all processes of the node are stopped
)

// Slots, then apps, then nodes.
const (
	apps      = slots
	firstNode = slots + 1
)

// event is one deed of the schedule, to a slot, to apps or to a node. A failure of a node lasts.
type event struct {
	at, lasts time.Duration
	slot      int
	do        deed
}

// schedule follows from the seed and the number of nodes alone. The first node, which has the control
// plane, does not fail.
func schedule(seed uint64, duration time.Duration, nodes int) []event {
	random := rand.New(rand.NewPCG(seed, 0))
	var events []event
	live, calmAgain := [slots]bool{}, map[int]time.Duration{} // a node, after its last failure
	for at := time.Duration(0); at < duration; at += time.Duration(1+random.IntN(5000)) * time.Millisecond {
		e := event{at: at, slot: random.IntN(slots)}
		switch choice := random.IntN(27); {
		case !live[e.slot]:
			e.do = begin
		case choice < 8:
			e.do = serve
		case choice < 12:
			e.do = crash
		case choice < 16:
			e.do = restart
		case choice < 18:
			e.do = grow
		case choice < 20:
			e.do = end
		case choice < 21:
			e.slot, e.do = apps, app
		case choice < 23:
			e.slot, e.do = firstNode, controller
		case choice < 25:
			e.slot, e.do = firstNode+random.IntN(nodes), []deed{agent, agent, kubelet, containerd}[random.IntN(4)]
		case nodes > 1:
			e.slot, e.do = firstNode+1+random.IntN(nodes-1), []deed{cut, lose, isolate, freeze}[random.IntN(4)]
			if e.lasts = 5*time.Second + time.Duration(random.IntN(35000))*time.Millisecond; e.do == lose {
				e.lasts += moving
			}
		}
		if e.slot >= firstNode && at < calmAgain[e.slot] || e.do == "" {
			continue
		}
		if e.lasts > 0 {
			calmAgain[e.slot] = at + e.lasts + calm
		}
		if e.slot < slots {
			live[e.slot] = e.do != end
		}
		events = append(events, e)
	}
	for slot, is := range live {
		if is {
			events = append(events, event{at: duration, slot: slot, do: end})
		}
	}
	return events
}

// soak is one run.
type soak struct {
	client.Client
	cluster, journals string
	nodes             []string

	mu   sync.Mutex
	done map[deed]int
	off  map[string]time.Time // until when a node was off
	errs []error
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 5 {
		return errors.New("usage: soak CLUSTER SEED DURATION JOURNALS CLASS...")
	}
	seed, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return fmt.Errorf("the seed %q is no number", args[1])
	}
	duration, err := time.ParseDuration(args[2])
	if err != nil {
		return fmt.Errorf("the duration %q is not valid; write one such as 20m", args[2])
	}
	ctrl.SetLogger(logr.Discard())
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 100, 200
	s := &soak{cluster: args[0], journals: args[3], done: map[deed]int{}, off: map[string]time.Time{}}
	if s.Client, err = client.New(config, client.Options{}); err != nil {
		return err
	}
	if err := s.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := s.List(ctx, &nodes); err != nil {
		return err
	}
	for i := range nodes.Items {
		s.nodes = append(s.nodes, nodes.Items[i].Name)
	}
	slices.Sort(s.nodes)
	s.play(ctx, schedule(seed, duration, len(s.nodes)), args[4:])
	if len(s.errs) == 0 {
		s.fail("at the end", s.nothingLeft(ctx))
	}
	fmt.Printf("soak: seed %d, %s: %v; %s\n", seed, duration, s.done, s.sums())
	return errors.Join(s.errs...)
}

// play does the deeds of the schedule. Those of one slot follow each other; a slot that is late
// delays its own deeds only. After a failure nothing new begins.
func (s *soak) play(ctx context.Context, events []event, classes []string) {
	queues := make([]chan event, firstNode+len(s.nodes))
	var all sync.WaitGroup
	for i := range queues {
		queues[i] = make(chan event, len(events))
		name, do := func() string { return "an app" }, s.app
		switch {
		case i < slots:
			v := &volume{soak: s, slot: i, class: classes[i%len(classes)]}
			name, do = v.name, v.do
		case i >= firstNode:
			n := node{soak: s, name: s.nodes[i-firstNode]}
			name, do = func() string { return n.name }, n.do
		}
		all.Go(func() {
			for e := range queues[i] {
				s.count(e.do)
				if s.fail(fmt.Sprintf("%s of %s at %s", e.do, name(), e.at), do(ctx, e)) {
					return
				}
			}
		})
	}
	start := time.Now()
	for _, e := range events {
		timer := time.NewTimer(time.Until(start.Add(e.at)))
		<-timer.C
		if s.failed() {
			break
		}
		queues[e.slot] <- e
	}
	for _, q := range queues {
		close(q)
	}
	all.Wait()
}

func (s *soak) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.errs) > 0
}

// fail records an error, if it is one.
func (s *soak) fail(what string, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		say("FAILED: %s: %v", what, err)
		s.errs = append(s.errs, fmt.Errorf("%s: %w", what, err))
	}
	return err != nil
}

func (s *soak) count(d deed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[d]++
}

func say(format string, args ...any) {
	fmt.Printf("%s soak: %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// nothingLeft waits until volumes that are recycled are spare again, deletes the pools, waits until no
// volume is left, and asks tarn.
func (s *soak) nothingLeft(ctx context.Context) error {
	return errors.Join(
		s.only(ctx, corev1.VolumeAvailable),
		command("kubectl", "wait", "pvset", "--all", "--for=condition=Ready", "--timeout", patience.String()),
		command("kubectl", "delete", "pvset", "--all", "--timeout", patience.String()),
		s.only(ctx, ""),
		command("tarn", "audit"))
}

// only waits until all volumes are of a phase.
func (s *soak) only(ctx context.Context, phase corev1.PersistentVolumePhase) error {
	var volumes corev1.PersistentVolumeList
	others := func(v corev1.PersistentVolume) bool { return v.Status.Phase != phase }
	err := wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		return s.List(ctx, &volumes) == nil && !slices.ContainsFunc(volumes.Items, others), nil
	})
	if err != nil {
		return fmt.Errorf("%d volumes are left, not all of phase %q: %w", len(volumes.Items), phase, err)
	}
	return nil
}

// sums adds up what the loads wrote in their journals.
func (s *soak) sums() string {
	paths, _ := filepath.Glob(filepath.Join(s.journals, "*")) // the pattern is valid
	volumes, writes, bytes, verified, failed, recovered := len(paths), 0, 0, 0, 0, 0
	for _, path := range paths {
		text, _ := os.ReadFile(path) // it counts for nothing
		for line := range strings.Lines(string(text)) {
			var verb, name string
			var generation, size int
			switch n, _ := fmt.Sscan(line, &verb, &name, &generation, &size); {
			case n == 4 && verb == "end" && size >= 0:
				writes, bytes = writes+1, bytes+size
			case verb == "verified":
				var files, faults, others int
				_, _ = fmt.Sscanf(line, "verified %d failed %d recovered %d", &files, &faults, &others)
				verified, failed, recovered = verified+1, failed+faults, recovered+others
			}
		}
	}
	return fmt.Sprintf("%d volumes, %d writes of %d MB, all checked %d times, %d operations repeated, %d files recovered", volumes, writes, bytes>>20, verified, failed, recovered)
}
