// Command soak loads volumes of the ready provisioners and kills what serves them, by a schedule
// that follows from a seed. Every byte is checked, and at the end nothing may be left. hack/soak.sh
// gives it a cluster of its own; the command must not know how one is made.
//
//	soak CLUSTER SEED DURATION JOURNALS CLASS...
//
// CLUSTER is a name for tarn-cluster, JOURNALS a directory of this machine. A class may begin with what
// its load must know, such as "blocks,faults:". "blocks" serves writes within files and renames,
// "faults" has a server whose death pods notice, and "recovers" may keep the last content of a file
// under another name.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
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
	begin      deed = "begin"      // a claim, and a pod that loads its volume
	end        deed = "end"        // of both: the pod checks everything first
	restart    deed = "restart"    // another pod for the claim, which checks what the first wrote
	crash      deed = "crash"      // the load is killed, and checks when it starts again
	serve      deed = "serve"      // whatever step pods the volume has are killed
	grow       deed = "grow"       // the claim
	agent      deed = "agent"      // the node agent is killed
	controller deed = "controller" // the controller is killed
)

// event is one deed of the schedule. A deed to a part of Tarn has no slot.
type event struct {
	at   time.Duration
	slot int
	do   deed
}

// schedule follows from the seed alone.
func schedule(seed uint64, duration time.Duration) []event {
	random := rand.New(rand.NewPCG(seed, 0))
	var events []event
	live := [slots]bool{}
	for at := time.Duration(0); at < duration; at += time.Duration(1+random.IntN(5000)) * time.Millisecond {
		slot := random.IntN(slots)
		if !live[slot] {
			live[slot] = true
			events = append(events, event{at, slot, begin})
			continue
		}
		switch choice := random.IntN(24); {
		case choice < 8:
			events = append(events, event{at, slot, serve})
		case choice < 12:
			events = append(events, event{at, slot, crash})
		case choice < 16:
			events = append(events, event{at, slot, restart})
		case choice < 18:
			events = append(events, event{at, slot, grow})
		case choice < 20:
			live[slot] = false
			events = append(events, event{at, slot, end})
		case choice < 22:
			events = append(events, event{at, -1, agent})
		default:
			events = append(events, event{at, -1, controller})
		}
	}
	for slot, is := range live {
		if is {
			events = append(events, event{duration, slot, end})
		}
	}
	return events
}

// soak is one run.
type soak struct {
	client.Client
	cluster, journals string

	mu   sync.Mutex
	done map[deed]int
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
	s := &soak{cluster: args[0], journals: args[3], done: map[deed]int{}}
	if s.Client, err = client.New(config, client.Options{}); err != nil {
		return err
	}
	if err := s.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	s.play(ctx, schedule(seed, duration), args[4:])
	if len(s.errs) == 0 {
		s.fail("at the end", s.nothingLeft(ctx))
	}
	fmt.Printf("soak: seed %d, %s: %v; %s\n", seed, duration, s.done, s.sums())
	return errors.Join(s.errs...)
}

// play does the deeds of the schedule. Those of one slot follow each other; a slot that is late
// delays its own deeds only. After a failure nothing new begins.
func (s *soak) play(ctx context.Context, events []event, classes []string) {
	queues := [slots]chan event{}
	var all sync.WaitGroup
	for i := range queues {
		queues[i] = make(chan event, len(events))
		v := &volume{soak: s, slot: i, class: classes[i%len(classes)]}
		all.Go(func() {
			for e := range queues[i] {
				if s.fail(fmt.Sprintf("%s of %s at %s", e.do, v.name(), e.at), v.do(ctx, e.do)) {
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
		if e.slot >= 0 {
			queues[e.slot] <- e
			continue
		}
		s.fail(string(e.do), s.part(e.do))
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
		fmt.Printf("%s soak: FAILED: %s: %v\n", time.Now().Format(time.TimeOnly), what, err)
		s.errs = append(s.errs, fmt.Errorf("%s: %w", what, err))
	}
	return err != nil
}

func (s *soak) count(d deed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[d]++
}

// part kills a part of Tarn, which the cluster starts again.
func (s *soak) part(d deed) error {
	component := map[deed]string{agent: "tarn-node", controller: "tarn-controller"}[d]
	fmt.Printf("%s soak: kill %s\n", time.Now().Format(time.TimeOnly), component)
	s.count(d)
	return command("tarn-cluster", "restart", "--kill", component, "--name", s.cluster)
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// nothingLeft waits until no volume is left, and asks tarn.
func (s *soak) nothingLeft(ctx context.Context) error {
	var volumes corev1.PersistentVolumeList
	err := wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		return s.List(ctx, &volumes) == nil && len(volumes.Items) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%d volumes are left: %w", len(volumes.Items), err)
	}
	return command("tarn", "audit")
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

// volume is what a slot has: at most one claim and its pod at a time.
type volume struct {
	*soak
	slot, life, pods int
	class            string
	size             int64
}

func (v *volume) name() string { return fmt.Sprintf("soak-%d-%d", v.slot, v.life) }
func (v *volume) pod() string  { return fmt.Sprintf("%s-%d", v.name(), v.pods) }

func (v *volume) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func (v *volume) do(ctx context.Context, d deed) error {
	if d == begin {
		v.life, v.pods, v.size = v.life+1, 0, size
	}
	fmt.Printf("%s soak: %s %s of %s\n", time.Now().Format(time.TimeOnly), d, v.name(), v.class)
	v.count(d)
	switch d {
	case begin:
		class := v.class[strings.Index(v.class, ":")+1:]
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: v.meta(v.name()), Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(v.size, resource.BinarySI)}},
		}}
		if err := v.Create(ctx, claim); err != nil {
			return err
		}
		return v.start(ctx)
	case restart:
		if err := v.stop(ctx); err != nil {
			return err
		}
		return v.start(ctx)
	case end:
		if err := v.stop(ctx); err != nil {
			return err
		}
		return v.Delete(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: v.meta(v.name())})
	case crash:
		pod, err := v.running(ctx, "")
		if err != nil {
			return err
		}
		if err := killIn(pod, "load"); err != nil {
			return err
		}
		_, err = v.running(ctx, pod.Status.ContainerStatuses[0].ContainerID)
		return err
	case serve:
		return v.killSteps(ctx)
	case grow:
		return v.grow(ctx)
	default:
		return fmt.Errorf("a volume has no %s", d)
	}
}

// start begins a pod that loads the volume, and waits until it runs.
func (v *volume) start(ctx context.Context) error {
	v.pods++
	flags, _, _ := strings.Cut(v.class, ":")
	pod := &corev1.Pod{ObjectMeta: v.meta(v.pod()), Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: ptr.To(int64(patience.Seconds())),
		AutomountServiceAccountToken:  ptr.To(false),
		Containers: []corev1.Container{{
			Name: "load", Image: image, Args: append([]string{"/volume", "/journals/" + v.name(), v.name()}, strings.Split(flags, ",")...),
			VolumeMounts: []corev1.VolumeMount{{Name: "volume", MountPath: "/volume"}, {Name: "journals", MountPath: "/journals"}},
		}},
		Volumes: []corev1.Volume{
			{Name: "volume", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.name()}}},
			{Name: "journals", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: v.journals, Type: ptr.To(corev1.HostPathDirectory)}}},
		},
	}}
	if err := v.Create(ctx, pod); err != nil {
		return err
	}
	_, err := v.running(ctx, "")
	return err
}

// running waits until the pod's load runs, in another container than the one that was killed: the
// kubelet pauses before it starts one again.
func (v *volume) running(ctx context.Context, killed string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := v.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v.pod()}, pod)
		if err != nil || len(pod.Status.ContainerStatuses) != 1 {
			return false, nil // not yet
		}
		is := &pod.Status.ContainerStatuses[0]
		return is.State.Running != nil && is.ContainerID != killed, nil
	})
	if err != nil {
		return nil, fmt.Errorf("pod %s does not run, in phase %s: %w", v.pod(), pod.Status.Phase, err)
	}
	return pod, nil
}

// stop ends the pod and reads what its load said last.
func (v *volume) stop(ctx context.Context) error {
	pod, err := v.running(ctx, "")
	if err != nil {
		return err
	}
	if err := v.Delete(ctx, pod); err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, 2*patience, true, func(ctx context.Context) (bool, error) {
		return apierrors.IsNotFound(v.Get(ctx, client.ObjectKeyFromObject(pod), pod)), nil
	})
	if err != nil {
		return fmt.Errorf("pod %s does not end: %w", pod.Name, err)
	}
	text, err := os.ReadFile(filepath.Join(v.journals, v.name()))
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "verified ") || strings.Contains(string(text), "\nfailed ") {
		return fmt.Errorf("the load of pod %s has not verified everything: see %s, which ends with %q", pod.Name, filepath.Join(v.journals, v.name()), last)
	}
	return nil
}

// killSteps kills all processes of the step pods that the volume has.
func (v *volume) killSteps(ctx context.Context) error {
	claim := &corev1.PersistentVolumeClaim{}
	if err := v.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v.name()}, claim); err != nil {
		return err
	}
	var pods corev1.PodList
	if err := v.List(ctx, &pods, client.MatchingLabels{tarn.LabelVolume: claim.Spec.VolumeName}); err != nil {
		return err
	}
	for i := range pods.Items {
		if err := killIn(&pods.Items[i], ""); err != nil {
			return err
		}
	}
	return nil
}

// grow asks for more, and waits until the volume has it.
func (v *volume) grow(ctx context.Context) error {
	v.size += step
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":"%d"}}}}`, v.size))
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: v.meta(v.name())}
	if err := v.Patch(ctx, claim, patch); err != nil {
		return err
	}
	err := wait.PollUntilContextTimeout(ctx, time.Second, 2*patience, true, func(ctx context.Context) (bool, error) {
		return v.Get(ctx, client.ObjectKeyFromObject(claim), claim) == nil && claim.Status.Capacity.Storage().Value() >= v.size, nil
	})
	if err != nil {
		return fmt.Errorf("claim %s has %s, and asked for %d bytes: %w", claim.Name, claim.Status.Capacity.Storage(), v.size, err)
	}
	return nil
}

// killIn kills the processes of that name in a pod's containers, or all without a name. There may
// be none.
func killIn(pod *corev1.Pod, name string) error {
	entries, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return err
	}
	for _, path := range entries {
		comm, err := os.ReadFile(path)
		groups, err2 := os.ReadFile(filepath.Join(filepath.Dir(path), "cgroup"))
		if err != nil || err2 != nil || !strings.Contains(string(groups), string(pod.UID)) {
			continue // it has ended, or is of another pod
		}
		is := strings.TrimSpace(string(comm))
		if name != "" && is != name || name == "" && is == "pause" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return err
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
