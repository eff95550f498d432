//go:build integration

package stage

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
)

// runAhead starts the controller with a cache of all pods.
func (s *server) runAhead(config *rest.Config) (stop func()) {
	s.t.Helper()
	return testkit.Run(s.ctx, s.t, config, func(mgr ctrl.Manager) error {
		pods, err := kube.AllPods(mgr)
		if err != nil {
			return err
		}
		return Register(mgr, Options{Pods: pods, Steps: &steppod.Steps{Namespaces: steppod.Namespaces{"default", "*"}, Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), StateDir: tarnv1.DefaultStateDir}})
	})
}

// agreed fails the test on any error but a conflict. It returns true, so that it can serve as a
// condition.
func (s *server) agreed(err error) bool {
	s.t.Helper()
	if err != nil && !apierrors.IsConflict(err) {
		s.t.Fatal(err)
	}
	return true
}

// await waits until a condition is true.
func (s *server) await(what string, so func() bool) {
	s.t.Helper()
	for !so() {
		select {
		case <-s.ctx.Done():
			s.t.Fatalf("in vain waited until %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// takenOn creates a pod that uses the claim, and accepts it as the kubelet of the node would.
func (s *server) takenOn(claim *corev1.PersistentVolumeClaim, name, node string) *corev1.Pod {
	s.t.Helper()
	pod := consumer(claim.Namespace, claim.Name, node)
	pod.Name, pod.Spec.TerminationGracePeriodSeconds = name, new(int64)
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	s.must(s.client.Create(s.ctx, pod))
	pod.Status.Phase, pod.Status.StartTime = corev1.PodPending, &metav1.Time{Time: time.Now().Truncate(time.Second)}
	s.must(s.client.Status().Update(s.ctx, pod))
	return pod
}

// begun returns a pod and the stage that was begun ahead for it. The controller ignores a pod
// that it finds when it starts, so begun may create a second one.
func (s *server) begun(claim *corev1.PersistentVolumeClaim, vol *corev1.PersistentVolume) (*tarnv1.PavStage, *corev1.Pod) {
	s.t.Helper()
	stage := &tarnv1.PavStage{}
	for {
		pod := s.takenOn(claim, "first", s.name)
		for range 100 {
			if s.client.Get(s.ctx, client.ObjectKey{Name: tarnv1.StageName(vol.UID, s.name, false)}, stage) == nil {
				return stage, pod
			}
			time.Sleep(10 * time.Millisecond)
		}
		s.must(s.client.Delete(s.ctx, pod))
	}
}

// bound creates the subjects of a stage, with a bound claim and nodes that serve the driver.
func (s *server) bound(nodes ...string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	s.t.Helper()
	_, claim, vol := s.subjects()
	claim.Spec.VolumeName = vol.Name
	s.must(s.client.Update(s.ctx, claim))
	claim.Status.Phase = corev1.ClaimBound
	s.must(s.client.Status().Update(s.ctx, claim))
	record := testkit.Record(claim, s.name, tarnv1.VolumeCreated)
	record.Name, record.UID = vol.Name, ""
	s.must(s.client.Create(s.ctx, record))
	vol.Annotations = map[string]string{tarnv1.AnnotationRecord: string(record.UID)}
	s.must(s.client.Update(s.ctx, vol))
	for _, node := range nodes {
		s.served(node)
	}
	return claim, vol
}

func (s *server) served(node string) {
	s.t.Helper()
	s.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	s.must(s.client.Create(s.ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: s.name, NodeID: node}}},
	}))
}

func TestAStageIsBegunWhenTheKubeletHasTakenOnAPodAndEndsIfThatGoes(t *testing.T) {
	s := newServer(t, "stage-ahead", well)
	defer s.runAhead(s.config)()
	other := s.name + "-2"
	claim, vol := s.bound(s.name, other)
	stage, first := s.begun(claim, vol)
	read := func() bool { return s.client.Get(s.ctx, client.ObjectKeyFromObject(stage), stage) == nil }
	s.await("it is staged ahead", func() bool {
		return read() && s.agreed(agent(s.ctx, s.client, stage)) && stage.Status.Pod.Phase == tarnv1.StagePodSucceeded
	})
	if who := stage.Spec.AheadFor; who == nil || who.UID != first.UID || who.Name != first.Name || who.Namespace != first.Namespace {
		t.Errorf("it was begun for %+v, want pod %s", who, first.UID)
	}

	// A stage that another kubelet asks for waits for the end of an unused stage.
	p := stage.Spec.Provisioner
	second := s.takenOn(claim, "second", other)
	next := tarnv1.NewStage(p, vol.Name, vol.UID, other, false)
	s.must(s.client.Create(s.ctx, next))
	s.await("the other node is told to wait", func() bool {
		return s.client.Get(s.ctx, client.ObjectKeyFromObject(next), next) == nil && next.Status.Pod.Message != ""
	})
	if next.Status.Pod.Staged {
		t.Error("the volume is staged on two nodes")
	}
	s.must(s.client.Delete(s.ctx, first))
	s.await("the stage of the pod that went ends", func() bool { return read() && stage.DeletionTimestamp != nil })
	s.lives(stage, nil)
	s.await("the other node's is staged", func() bool {
		return s.client.Get(s.ctx, client.ObjectKeyFromObject(next), next) == nil && next.Status.Pod.Staged
	})
	s.must(s.client.Delete(s.ctx, second))
	s.lives(next, nil)
	s.check(2, 2)
}

func TestAStageOnWhichTheKubeletHasCalledOutlivesThePodItWasBegunFor(t *testing.T) {
	s := newServer(t, "stage-taken", well)
	defer s.runAhead(s.config)()
	claim, vol := s.bound(s.name)
	stage, pod := s.begun(claim, vol)
	key := client.ObjectKeyFromObject(stage)
	s.await("it is staged ahead", func() bool {
		err := s.client.Get(s.ctx, key, stage)
		if err == nil && !stage.Status.Node.Taken {
			stage.Status.Node = tarnv1.PavStageNodeStatus{Phase: tarnv1.StageWaiting, Taken: true, Targets: []string{"/target"}}
			err = s.client.Status().Update(s.ctx, stage)
		}
		return err == nil && stage.Status.Pod.Phase == tarnv1.StagePodSucceeded
	})
	s.must(s.client.Delete(s.ctx, pod))
	s.await("the pod is gone", func() bool { return apierrors.IsNotFound(s.client.Get(s.ctx, client.ObjectKeyFromObject(pod), pod)) })
	time.Sleep(time.Second) // the controller has long had the event by then
	s.must(s.client.Get(s.ctx, key, stage))
	if stage.DeletionTimestamp != nil {
		t.Error("it was ended with the pod that it was begun for, though the kubelet had called")
	}
	s.must(s.client.Delete(s.ctx, stage))
	s.lives(stage, nil)
	s.check(1, 1)
}

// The test's node agent releases a stage once it is staged, so the kubelet's call comes too
// late here.
func TestAControllerKilledAtAnyWriteEndsAStageBegunAheadAllTheSame(t *testing.T) {
	killedAtEachWrite(t, "stage-ahead-kill", (*server).runAhead, func(s *server) *tarnv1.PavStage {
		claim, vol := s.bound(s.name)
		pod := s.takenOn(claim, s.name, s.name)
		p := &pavv1.PavProvisioner{}
		s.must(s.client.Get(s.ctx, client.ObjectKey{Name: s.name}, p))
		stage := tarnv1.NewStage(tarnv1.ProvisionerReference{Name: p.Name, UID: p.UID}, vol.Name, vol.UID, s.name, false)
		stage.Spec.AheadFor = &tarnv1.StageConsumer{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
		s.create(stage)
		return stage
	})
}
