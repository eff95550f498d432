//go:build integration

package stage

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/steppod/steppodtest"
	"tarn.dev/tarn/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// server is a real API server with one stage's subjects, a stand-in for the kubelet and one for
// the node agent.
type server struct {
	testkit.World
	kubelet *steppodtest.Kubelet
	name    string
}

func newServer(t *testing.T, name string, ends func(*corev1.Pod) steppodtest.End) *server {
	t.Helper()
	return newServerOn(t, testkit.APIServer(t), name, ends)
}

func newServerOn(t *testing.T, config *rest.Config, name string, ends func(*corev1.Pod) steppodtest.End) *server {
	t.Helper()
	s := &server{World: testkit.NewWorld(t, config), name: name}
	s.kubelet = &steppodtest.Kubelet{Provisioner: name, Client: s.Client, Ends: ends}
	ctx, stop := context.WithCancel(s.Ctx)
	done := make(chan error, 1)
	go func() { done <- s.kubelet.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		s.Must(<-done)
	})
	s.PodsMayRun("default")
	return s
}

func (s *server) create(o client.Object) {
	s.T.Helper()
	if err := s.Client.Create(s.Ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
		s.T.Fatalf("creating %T %s: %v", o, o.GetName(), err)
	}
}

// stage creates a volume on a node and the stage that makes it available there.
func (s *server) stage() *tarnv1.PavStage {
	s.T.Helper()
	p, claim, vol := s.subjects()
	s.create(consumer(claim.Namespace, claim.Name, s.name))
	stage := tarnv1.NewStage(tarnv1.ProvisionerReference{Name: s.name, UID: p.UID}, s.name, vol.UID, s.name, false)
	s.create(stage)
	return stage
}

// subjects creates a volume of an accepted provisioner, with its claim, and a node.
func (s *server) subjects() (*pavv1.PavProvisioner, *corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	s.T.Helper()
	p := testkit.Provisioner(s.name)
	status := p.Status
	status.Conditions[0].LastTransitionTime = metav1.Time{Time: noon}
	p.UID, p.Spec.VolumeUnstaging = "", testkit.PodSection()
	s.create(p)
	p.Status = status
	s.Must(s.Client.Status().Update(s.Ctx, p))
	claim := testkit.Claim("default", s.name, "", s.name)
	s.create(claim)
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	vol.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	vol.Spec.AccessModes = claim.Spec.AccessModes
	vol.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: s.name, VolumeHandle: "handle"}
	vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	s.create(vol)
	s.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}})
	return p, claim, vol
}

// run starts the controller with the account it has in a cluster, and returns a function that
// stops it.
func (s *server) run(restConfig *rest.Config) (stop func()) { return s.runWith(restConfig, false) }

// runWith starts the controller, with a cache of all pods if it begins stages ahead.
func (s *server) runWith(restConfig *rest.Config, ahead bool) (stop func()) {
	s.T.Helper()
	return s.Run(restConfig, func(mgr ctrl.Manager) (err error) {
		o := Options{Steps: &steppod.Steps{Namespaces: steppod.Namespaces{"default", "*"}, Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), StateDir: tarnv1.DefaultStateDir}}
		if ahead {
			if o.Pods, err = kube.AllPods(mgr); err != nil {
				return err
			}
		}
		return Register(mgr, o)
	})
}

// lives plays the node agent until the stage is gone, or until the controller is killed.
func (s *server) lives(stage *tarnv1.PavStage, killed <-chan struct{}) (gone bool) {
	s.T.Helper()
	key := client.ObjectKeyFromObject(stage)
	for {
		current := &tarnv1.PavStage{}
		err := s.Client.Get(s.Ctx, key, current)
		if apierrors.IsNotFound(err) {
			return true
		}
		s.Must(err)
		if err := agent(s.Ctx, s.Client, current); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			s.T.Fatal(err)
		}
		select {
		case <-killed:
			return false
		case <-s.Ctx.Done():
			s.T.Fatalf("the stage has not ended: %+v", current.Status)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (s *server) check(wantStagings, wantUnstagings int) {
	s.T.Helper()
	if ran := s.kubelet.Ran(tarnv1.StepStaging); len(ran) != wantStagings {
		s.T.Errorf("the staging pods that ran are %q, want %d", ran, wantStagings)
	}
	if ran := s.kubelet.Ran(tarnv1.StepUnstaging); len(ran) != wantUnstagings {
		s.T.Errorf("the unstaging pods that ran are %q, want %d", ran, wantUnstagings)
	}
	var pods corev1.PodList
	s.Must(s.Client.List(s.Ctx, &pods, client.HasLabels{tarnv1.LabelStage}))
	if len(pods.Items) != 0 {
		s.T.Errorf("%d pods are left", len(pods.Items))
	}
}

func well(*corev1.Pod) steppodtest.End { return steppodtest.End{} }

func TestAStageLivesAndEndsOnARealAPIServer(t *testing.T) {
	for name, c := range map[string]struct {
		ends           func(*corev1.Pod) steppodtest.End
		wantUnstagings int
	}{
		"stage-well": {well, 1},
		"stage-unstaging-fails": {func(p *corev1.Pod) steppodtest.End {
			return steppodtest.End{Fails: p.Labels[tarnv1.LabelStep] == "unstaging" && p.Name[len(p.Name)-2:] == "-1"}
		}, 2},
		"stage-staging-fails": {func(p *corev1.Pod) steppodtest.End {
			return steppodtest.End{Fails: p.Labels[tarnv1.LabelStep] == "staging"}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, name, c.ends)
			defer s.run(s.Config)()
			s.lives(s.stage(), nil)
			s.check(1, c.wantUnstagings)
		})
	}
}

func TestAStageWhoseNodeIsDeletedEndsWithIt(t *testing.T) {
	s := newServer(t, "stage-node-gone", well)
	stage := s.stage()
	stop := s.run(s.Config)
	defer stop()
	for stage.Status.Pod.Phase != tarnv1.StagePodSucceeded {
		time.Sleep(10 * time.Millisecond)
		s.Must(s.Client.Get(s.Ctx, client.ObjectKeyFromObject(stage), stage))
	}
	s.Must(s.Client.Delete(s.Ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}}))
	s.lives(stage, nil)
	s.check(1, 0)
}

func TestAControllerKilledAtAnyWriteEndsTheStageAllTheSame(t *testing.T) {
	killedAtEachWrite(t, "stage-kill", (*server).run, (*server).stage)
}

// killedAtEachWrite runs the life of a stage once for each write of the controller. The
// controller is killed at that write, and a second controller continues.
func killedAtEachWrite(t *testing.T, name string, run func(*server, *rest.Config) func(), make func(*server) *tarnv1.PavStage) {
	for n := 1; ; n++ {
		name := fmt.Sprintf("%s-%d", name, n)
		died := false
		t.Run(name, func(t *testing.T) {
			s := newServer(t, name, well)
			killer := testkit.NewKiller(n)
			stop := run(s, killer.Wrap(s.Config))
			stage := make(s)
			died = !s.lives(stage, killer.Dead())
			stop()
			if died {
				defer run(s, s.Config)()
				s.lives(stage, nil)
			}
			s.check(1, 1)
		})
		if !died {
			if n < 8 {
				t.Errorf("the life has %d writes; it should at least start, mirror, discard, stop, unstage, discard and let go", n-1)
			}
			break
		}
	}
}
