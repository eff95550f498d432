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
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// runAhead starts the controller with a cache of all pods.
func (s *server) runAhead(config *rest.Config) (stop func()) { return s.runWith(config, true) }

// agreed fails the test on any error but a conflict. It returns true, so that it can serve as a
// condition.
func (s *server) agreed(err error) bool {
	s.T.Helper()
	if err != nil && !apierrors.IsConflict(err) {
		s.T.Fatal(err)
	}
	return true
}

// await waits until a condition is true.
func (s *server) await(what string, so func() bool) {
	s.T.Helper()
	s.Eventually(what, func() string { return map[bool]string{false: "in vain"}[so()] })
}

// takenOn creates a pod that uses the claim, and accepts it as the kubelet of the node would.
func (s *server) takenOn(claim *corev1.PersistentVolumeClaim, name, node string) *corev1.Pod {
	s.T.Helper()
	pod := consumer(claim.Namespace, claim.Name, node)
	pod.Name, pod.Spec.TerminationGracePeriodSeconds = name, new(int64)
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	s.Must(s.Client.Create(s.Ctx, pod))
	pod.Status.Phase, pod.Status.StartTime = corev1.PodPending, &metav1.Time{Time: time.Now().Truncate(time.Second)}
	s.Must(s.Client.Status().Update(s.Ctx, pod))
	return pod
}

// begun returns a pod and the stage that was begun ahead for it. The controller ignores a pod
// that it finds when it starts, so begun may create a second one.
func (s *server) begun(claim *corev1.PersistentVolumeClaim, vol *corev1.PersistentVolume) (*tarnv1.PavStage, *corev1.Pod) {
	s.T.Helper()
	stage := &tarnv1.PavStage{}
	for {
		pod := s.takenOn(claim, "first", s.name)
		for range 100 {
			if s.Client.Get(s.Ctx, client.ObjectKey{Name: tarnv1.StageName(vol.UID, s.name, false)}, stage) == nil {
				return stage, pod
			}
			time.Sleep(10 * time.Millisecond)
		}
		s.Must(s.Client.Delete(s.Ctx, pod))
	}
}

// bound creates the subjects of a stage, with a bound claim and nodes that serve the driver.
func (s *server) bound(nodes ...string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	s.T.Helper()
	_, claim, vol := s.subjects()
	claim.Spec.VolumeName = vol.Name
	s.Must(s.Client.Update(s.Ctx, claim))
	claim.Status.Phase = corev1.ClaimBound
	s.Must(s.Client.Status().Update(s.Ctx, claim))
	record := testkit.Record(claim, s.name, tarnv1.VolumeCreated)
	record.Name, record.UID = vol.Name, ""
	s.Must(s.Client.Create(s.Ctx, record))
	vol.Annotations = map[string]string{tarnv1.AnnotationRecord: string(record.UID)}
	s.Must(s.Client.Update(s.Ctx, vol))
	for _, node := range nodes {
		s.served(node)
	}
	return claim, vol
}

func (s *server) served(node string) {
	s.T.Helper()
	s.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	s.Must(s.Client.Create(s.Ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: s.name, NodeID: node}}},
	}))
}

func TestAStageIsBegunWhenTheKubeletHasTakenOnAPodAndEndsIfThatGoes(t *testing.T) {
	s := newServer(t, "stage-ahead", well)
	defer s.runAhead(s.Config)()
	other := s.name + "-2"
	claim, vol := s.bound(s.name, other)
	stage, first := s.begun(claim, vol)
	read := func() bool { return s.Client.Get(s.Ctx, client.ObjectKeyFromObject(stage), stage) == nil }
	s.await("it is staged ahead", func() bool {
		return read() && s.agreed(agent(s.Ctx, s.Client, stage)) && stage.Status.Pod.Phase == tarnv1.StagePodSucceeded
	})
	if who := stage.Spec.AheadFor; who == nil || who.UID != first.UID || who.Name != first.Name || who.Namespace != first.Namespace {
		t.Errorf("it was begun for %+v, want pod %s", who, first.UID)
	}

	// A stage that another kubelet asks for waits for the end of an unused stage.
	p := stage.Spec.Provisioner
	second := s.takenOn(claim, "second", other)
	next := tarnv1.NewStage(p, vol.Name, vol.UID, other, false)
	s.Must(s.Client.Create(s.Ctx, next))
	s.await("the other node is told to wait", func() bool {
		return s.Client.Get(s.Ctx, client.ObjectKeyFromObject(next), next) == nil && next.Status.Pod.Message != ""
	})
	if next.Status.Pod.Staged {
		t.Error("the volume is staged on two nodes")
	}
	s.Must(s.Client.Delete(s.Ctx, first))
	s.await("the stage of the pod that went ends", func() bool { return read() && stage.DeletionTimestamp != nil })
	s.lives(stage, nil)
	s.await("the other node's is staged", func() bool {
		return s.Client.Get(s.Ctx, client.ObjectKeyFromObject(next), next) == nil && next.Status.Pod.Staged
	})
	s.Must(s.Client.Delete(s.Ctx, second))
	s.lives(next, nil)
	s.check(2, 2)
}

func TestAStageOnWhichTheKubeletHasCalledOutlivesThePodItWasBegunFor(t *testing.T) {
	s := newServer(t, "stage-taken", well)
	defer s.runAhead(s.Config)()
	claim, vol := s.bound(s.name)
	stage, pod := s.begun(claim, vol)
	key := client.ObjectKeyFromObject(stage)
	s.await("it is staged ahead", func() bool {
		err := s.Client.Get(s.Ctx, key, stage)
		if err == nil && !stage.Status.Node.Taken {
			stage.Status.Node = tarnv1.PavStageNodeStatus{Phase: tarnv1.StageWaiting, Taken: true, Targets: []string{"/target"}}
			err = s.Client.Status().Update(s.Ctx, stage)
		}
		return err == nil && stage.Status.Pod.Phase == tarnv1.StagePodSucceeded
	})
	s.Must(s.Client.Delete(s.Ctx, pod))
	s.await("the pod is gone", func() bool { return apierrors.IsNotFound(s.Client.Get(s.Ctx, client.ObjectKeyFromObject(pod), pod)) })
	time.Sleep(time.Second) // the controller has long had the event by then
	s.Must(s.Client.Get(s.Ctx, key, stage))
	if stage.DeletionTimestamp != nil {
		t.Error("it was ended with the pod that it was begun for, though the kubelet had called")
	}
	s.Must(s.Client.Delete(s.Ctx, stage))
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
		s.Must(s.Client.Get(s.Ctx, client.ObjectKey{Name: s.name}, p))
		stage := tarnv1.NewStage(tarnv1.ProvisionerReference{Name: p.Name, UID: p.UID}, vol.Name, vol.UID, s.name, false)
		stage.Spec.AheadFor = &tarnv1.StageConsumer{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
		s.create(stage)
		return stage
	})
}
