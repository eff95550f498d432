package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// pod creates a pod as the controller does, with /pav of Tarn's driver.
func (w *world) pod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	w.Helper()
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.id}})
	w.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.id, Name: "default"}})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.id, Name: name, Labels: map[string]string{tarnv1.LabelStep: string(tarnv1.StepCreation)}},
		Spec: corev1.PodSpec{
			NodeName:      w.node, // the policy on the agent holds it to these
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "main", Image: "busybox:1.36"}},
			Volumes: []corev1.Volume{{Name: "pav", VolumeSource: corev1.VolumeSource{
				CSI: &corev1.CSIVolumeSource{Driver: tarnv1.ResultsDriver},
			}}},
			AutomountServiceAccountToken: ptr.To(false),
		},
	}
	for _, change := range changes {
		change(pod)
	}
	w.create(pod)
	return pod
}

func (w *world) podTarget(pod *corev1.Pod) string {
	w.Helper()
	folder := filepath.Join(w.kubelet, "pods", string(pod.UID), "volumes", "kubernetes.io~csi", "pav")
	w.must(os.MkdirAll(folder, 0o755))
	return filepath.Join(folder, "mount")
}

func handleOf(pod *corev1.Pod) string { return "csi-" + string(pod.UID) }

func (w *world) publishPav(pod *corev1.Pod) (pav string, err error) {
	w.Helper()
	pav = w.podTarget(pod)
	_, err = w.csi(tarnv1.ResultsDriver).NodePublishVolume(w.ctx, &csi.NodePublishVolumeRequest{
		VolumeId: handleOf(pod), TargetPath: pav,
		VolumeContext: map[string]string{
			keyEphemeral: "true", keyNamespace: pod.Namespace, keyPodName: pod.Name, keyPodUID: string(pod.UID),
		},
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	})
	return pav, err
}

func (w *world) mustPublishPav(pod *corev1.Pod, files map[string]string) (pav string) {
	w.Helper()
	pav, err := w.publishPav(pod)
	w.must(err)
	for name, text := range files {
		w.must(os.WriteFile(filepath.Join(pav, name), []byte(text), 0o644))
	}
	return pav
}

func (w *world) unpublishPav(pod *corev1.Pod) error {
	w.Helper()
	_, err := w.csi(tarnv1.ResultsDriver).NodeUnpublishVolume(w.ctx, &csi.NodeUnpublishVolumeRequest{
		VolumeId: handleOf(pod), TargetPath: w.podTarget(pod),
	})
	return err
}

func (w *world) result(pod *corev1.Pod) (*tarnv1.PodResult, error) {
	now := &corev1.Pod{}
	if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(pod), now); err != nil {
		return nil, err
	}
	text, ok := now.Annotations[tarnv1.AnnotationResult]
	if !ok {
		return nil, errors.New("no result on the pod")
	}
	result := &tarnv1.PodResult{}
	return result, json.Unmarshal([]byte(text), result)
}

func TestWhatAPodLeavesInPavIsOnThePodBeforeItsFolderGoes(t *testing.T) {
	w := newWorld(t)
	w.start()
	pod := w.pod("creation")
	pav := w.mustPublishPav(pod, map[string]string{"handle": " vol-7\n", "capacity": "1Gi\n", "error": "warning: \xff slow\n"})
	if info, err := os.Stat(pav); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("/pav: %v %v, want one anyone may write in", info, err)
	}
	w.stop() // the agent is restarted while the pod runs
	w.start()
	if _, err := w.publishPav(pod); err != nil {
		t.Errorf("publish again: %v", err)
	}
	w.must(w.unpublishPav(pod))
	got, err := w.result(pod)
	w.must(err)
	if got.Succeeded != nil || *got.Handle != "vol-7" || *got.Capacity != "1Gi" || got.Error != "warning: \uFFFD slow" || got.Unreadable != "" {
		t.Errorf("result: %+v", got)
	}
	w.nothingIsLeft()
	if err := w.unpublishPav(pod); err != nil {
		t.Errorf("unpublish again: %v", err)
	}
}

func TestAPodCannotHaveTheNodesFilesCopiedIntoItsResult(t *testing.T) {
	w := newWorld(t)
	w.start()
	pod := w.pod("thief")
	pav := w.mustPublishPav(pod, map[string]string{"capacity": strings.Repeat("1", 5000)})
	for link, to := range map[string]string{"error": "/etc/passwd", "handle": "capacity"} {
		w.must(os.Symlink(to, filepath.Join(pav, link)))
	}
	w.must(w.unpublishPav(pod))
	got, err := w.result(pod)
	w.must(err)
	if got.Error != "" || got.Handle != nil || got.Capacity != nil || strings.Count(got.Unreadable, "symbolic link") != 2 || !strings.Contains(got.Unreadable, "5000 bytes") {
		t.Errorf("result: %+v", got)
	}
	w.nothingIsLeft()
}

func TestPavIsNotForPodsOfOthers(t *testing.T) {
	w := newWorld(t)
	w.start()
	pod := w.pod("stranger", func(p *corev1.Pod) { p.Labels = nil })
	if _, err := w.publishPav(pod); status.Code(err) != codes.PermissionDenied {
		t.Errorf("publish for a pod without our label: %v", err)
	}
	ours := w.pod("ours")
	stale := ours.DeepCopy()
	stale.UID = "another"
	if _, err := w.publishPav(stale); status.Code(err) != codes.NotFound {
		t.Errorf("publish for a pod that has another uid: %v", err)
	}
	w.nothingIsLeft()
}

func TestAVolumeOfAPodThatIsGoneIsGivenBackWithNothingStored(t *testing.T) {
	w := newWorld(t)
	w.start()
	pod := w.pod("gone")
	w.mustPublishPav(pod, map[string]string{"handle": "x"})
	w.must(w.client.Delete(w.ctx, pod, client.GracePeriodSeconds(0)))
	again := w.pod("gone") // another pod of the same name
	w.must(w.unpublishPav(pod))
	if got, err := w.result(again); err == nil {
		t.Errorf("the other pod has result %+v", got)
	}
	w.nothingIsLeft()
}

func TestAResultStaysUntilTheAPIServerHasIt(t *testing.T) {
	w := newWorld(t)
	died := make(chan struct{})
	w.wrap = dieAt(1, false, died)
	w.start()
	pod := w.pod("creation")
	w.mustPublishPav(pod, map[string]string{"handle": "precious"})
	if err := w.unpublishPav(pod); status.Code(err) != codes.Unavailable {
		t.Errorf("unpublish while the API server refuses the result: %v, want Unavailable", err)
	}
	w.stop()
	w.wrap = nil
	w.start()
	w.must(w.unpublishPav(pod))
	if got, err := w.result(pod); err != nil || *got.Handle != "precious" {
		t.Errorf("result: %+v %v", got, err)
	}
	w.nothingIsLeft()
}

// fakeRuntime is a container runtime with the containers that the test gives it. A real one would
// need images and cgroups, and the test is about the use of its answers.
type fakeRuntime struct {
	cri.UnimplementedRuntimeServiceServer

	mu         sync.Mutex
	containers map[string][]*cri.ContainerStatus // by pod uid
	events     chan *cri.ContainerEventResponse
}

func (f *fakeRuntime) GetContainerEvents(_ *cri.GetEventsRequest, s grpc.ServerStreamingServer[cri.ContainerEventResponse]) error {
	f.mu.Lock()
	events := f.events
	f.mu.Unlock()
	old := &cri.ContainerEventResponse{
		ContainerEventType: cri.ContainerEventType_CONTAINER_STOPPED_EVENT,
		PodSandboxStatus:   &cri.PodSandboxStatus{Metadata: &cri.PodSandboxMetadata{Uid: "long-gone"}},
	}
	if err := s.Send(old); err != nil {
		return err
	}
	for {
		select {
		case <-s.Context().Done():
			return nil
		case e, open := <-events:
			if !open {
				return errors.New("the runtime restarts")
			}
			if err := s.Send(e); err != nil {
				return err
			}
		}
	}
}

func (f *fakeRuntime) ListContainers(_ context.Context, r *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := &cri.ListContainersResponse{}
	for _, c := range f.containers[r.GetFilter().GetLabelSelector()["io.kubernetes.pod.uid"]] {
		answer.Containers = append(answer.Containers, &cri.Container{Id: c.Id})
	}
	return answer, nil
}

func (f *fakeRuntime) ContainerStatus(_ context.Context, r *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, list := range f.containers {
		for _, c := range list {
			if c.Id == r.ContainerId {
				return &cri.ContainerStatusResponse{Status: c}, nil
			}
		}
	}
	return nil, status.Error(codes.NotFound, r.ContainerId)
}

func (f *fakeRuntime) exit(pod *corev1.Pod, name string, code int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	uid := string(pod.UID)
	f.containers[uid] = append(f.containers[uid], &cri.ContainerStatus{
		Id: fmt.Sprintf("%s-%s-%d", uid, name, len(f.containers[uid])), Metadata: &cri.ContainerMetadata{Name: name, Attempt: uint32(len(f.containers[uid]))},
		State: cri.ContainerState_CONTAINER_EXITED, ExitCode: code, StartedAt: time.Now().UnixNano(), FinishedAt: time.Now().UnixNano(),
	})
}

func (f *fakeRuntime) stopped(pod *corev1.Pod) {
	f.events <- &cri.ContainerEventResponse{
		ContainerEventType: cri.ContainerEventType_CONTAINER_STOPPED_EVENT,
		PodSandboxStatus:   &cri.PodSandboxStatus{Metadata: &cri.PodSandboxMetadata{Uid: string(pod.UID)}},
	}
}

// startRuntime starts a container runtime for the agent, whose Node has the conditions.
func (w *world) startRuntime(conditions ...corev1.NodeCondition) *fakeRuntime {
	w.Helper()
	socket := filepath.Join(w.kubelet, "cri.sock")
	w.options.CRIEndpoint = socket
	w.has(conditions...)
	w.must(os.MkdirAll(w.kubelet, 0o755))
	listener, err := net.Listen("unix", socket)
	w.must(err)
	f := &fakeRuntime{containers: map[string][]*cri.ContainerStatus{}, events: make(chan *cri.ContainerEventResponse)}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, f)
	go func() { _ = server.Serve(listener) }()
	w.Cleanup(server.Stop)
	return f
}

func TestTheRuntimesEventsBringTheResultBeforeTheKubeletDoes(t *testing.T) {
	w := newWorld(t)
	runtime := w.startRuntime(nodeReady)
	w.start()
	wantEarly := func(pod *corev1.Pod, succeeded bool, codes map[string]int32) {
		t.Helper()
		w.eventually("the result is stored", func() error { _, err := w.result(pod); return err })
		got, err := w.result(pod)
		if err != nil || got.Succeeded == nil || *got.Succeeded != succeeded || fmt.Sprint(got.ExitCodes) != fmt.Sprint(codes) || *got.Handle != pod.Name {
			t.Errorf("result of %s: %+v %v", pod.Name, got, err)
		}
	}
	good := w.pod("good")
	w.mustPublishPav(good, map[string]string{"handle": "good"})
	runtime.exit(good, "main", 0)
	runtime.stopped(good)
	wantEarly(good, true, nil)

	bad := w.pod("bad")
	w.mustPublishPav(bad, map[string]string{"handle": "bad"})
	runtime.exit(bad, "main", 3)
	runtime.stopped(bad)
	wantEarly(bad, false, map[string]int32{"main": 3})

	retried := w.pod("retried", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure })
	w.mustPublishPav(retried, map[string]string{"handle": "retried"})
	runtime.exit(retried, "main", 1)
	runtime.stopped(retried) // it will be started again, so this says nothing
	runtime.exit(retried, "main", 0)
	runtime.mu.Lock()
	close(runtime.events) // the stream breaks; what ended meanwhile is found after it
	runtime.events = make(chan *cri.ContainerEventResponse)
	runtime.mu.Unlock()
	wantEarly(retried, true, nil)

	// The kubelet's later call knows less and changes nothing.
	for _, pod := range []*corev1.Pod{good, bad, retried} {
		w.must(w.unpublishPav(pod))
		if got, err := w.result(pod); err != nil || got.Succeeded == nil {
			t.Errorf("result of %s after unpublish: %+v %v", pod.Name, got, err)
		}
	}
	w.nothingIsLeft()
}

func TestAStagingPodThatHasEndedIsNotWaitedForUntilTheKubeletTells(t *testing.T) {
	w := newWorld(t)
	runtime := w.startRuntime(nodeReady)
	w.start()
	volume := w.volume(w.provisioner(), "pv-"+w.id)
	pod := w.pod("staging")
	w.player.set(func(pav string) (tarnv1.StagePodPhase, string) {
		greet(pav)
		return tarnv1.StagePodRunning, "" // as the API server shows it for another second
	})
	published := make(chan error, 1)
	go func() {
		_, err := w.publish(volume, "pod-1")
		published <- err
	}()
	w.eventually("the pod is recorded", func() error {
		stages := w.stages()
		if len(stages) == 0 || stages[0].Status.Pod.Phase != tarnv1.StagePodRunning {
			return errors.New("not running yet")
		}
		body := fmt.Appendf(nil, `{"status":{"pod":{"namespace":%q,"name":%q,"uid":%q}}}`, pod.Namespace, pod.Name, pod.UID)
		return w.client.Status().Patch(w.ctx, &stages[0], client.RawPatch(types.MergePatchType, body))
	})
	w.until("the agent knows of the pod", func() bool { return len(w.agent.stages.Pods()) == 1 })
	runtime.stopped(pod) // a container, but another still runs: there is none that has ended
	select {
	case err := <-published:
		t.Fatalf("published before the pod has ended: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	runtime.exit(pod, "main", 0)
	runtime.stopped(pod)
	w.must(<-published)
	w.ends(volume, w.target(volume, "pod-1"))
}

// has writes conditions of the agent's Node, and creates a missing Node.
func (w *world) has(conditions ...corev1.NodeCondition) {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.node}}
	w.create(n)
	n.Status.Conditions = conditions
	w.must(w.client.Status().Update(w.ctx, n))
}

var nodeReady = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}

func TestUnderPressureTheKubeletTellsWhetherAPodHasSucceeded(t *testing.T) {
	w := newWorld(t)
	runtime := w.startRuntime(nodeReady, corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue})
	w.start()
	stopped := w.pod("stopped") // by SIGTERM, upon which it exits with 0
	w.mustPublishPav(stopped, map[string]string{"handle": "half-made"})
	runtime.exit(stopped, "main", 0)
	runtime.stopped(stopped)
	failed := w.pod("failed")
	w.mustPublishPav(failed, map[string]string{"error": "no room"})
	runtime.exit(failed, "main", 1)
	runtime.stopped(failed)
	w.eventually("what has failed is told at once", func() error { _, err := w.result(failed); return err })
	time.Sleep(100 * time.Millisecond)
	if got, err := w.result(stopped); err == nil {
		t.Errorf("stored of the pod that was stopped: %+v", got)
	}
	w.must(w.unpublishPav(stopped))
	if got, err := w.result(stopped); err != nil || got.Succeeded != nil || *got.Handle != "half-made" {
		t.Errorf("result after unpublish: %+v %v", got, err)
	}
	w.must(w.unpublishPav(failed))
	w.nothingIsLeft()
}
