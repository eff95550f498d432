package stage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

const unstagingAgain = "pav-unstaging-uid-of-stage-2"

// story is a life of a stage: how the world is set up, and which pods were created by its end.
type story struct {
	name     string
	setUp    func(*world)
	wantMade []string
}

var stories = []story{
	{"a stage that is used and left", func(*world) {}, []string{staging, unstaging}},
	{"an unstaging that fails once", func(w *world) {
		w.end = func(p *corev1.Pod) corev1.PodPhase {
			if p.Name == unstaging {
				return corev1.PodFailed
			}
			return corev1.PodSucceeded
		}
	}, []string{staging, unstaging, unstagingAgain}},
	{"a staging that fails", func(w *world) {
		w.end = func(p *corev1.Pod) corev1.PodPhase {
			if p.Name == staging {
				return corev1.PodFailed
			}
			return corev1.PodSucceeded
		}
	}, []string{staging, unstaging}},
	{"a staging pod that is refused", func(w *world) {
		w.refuse = func(p *corev1.Pod) bool { return p.Name == staging }
	}, []string{unstaging}},
	{"an unstaging pod that is refused once", func(w *world) {
		w.refuse = func(p *corev1.Pod) bool { return p.Name == unstaging }
	}, []string{staging, unstagingAgain}},
	{"a staging that cannot be evaluated", func(w *world) {
		w.edit(func(p *pavv1.PavProvisioner) {
			p.Spec.VolumeStaging = &apiextensionsv1.JSON{Raw: []byte(`"{{ 1 // 0 }}"`)}
		})
	}, nil},
	{"a provisioner that is not accepted", func(w *world) {
		p := provisioner(metav1.ConditionFalse)
		w.edit(func(o *pavv1.PavProvisioner) { o.Status = p.Status })
	}, nil},
	{"a provisioner without an unstaging pod", func(w *world) {
		w.edit(func(p *pavv1.PavProvisioner) { p.Spec.VolumeUnstaging = nil })
	}, []string{staging}},
	{"a volume that is removed while staged", func(w *world) {
		w.during = w.once(tarnv1.StagePodSucceeded, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}})
	}, []string{staging}},
	{"a volume written by hand with a validation pod", func(w *world) {
		w.edit(func(p *pavv1.PavProvisioner) { p.Spec.VolumeValidation = checking })
	}, []string{validation, staging, unstaging}},
	{"a validation pod that fails", func(w *world) {
		w.edit(func(p *pavv1.PavProvisioner) { p.Spec.VolumeValidation = checking })
		w.end = func(*corev1.Pod) corev1.PodPhase { return corev1.PodFailed }
	}, []string{validation}},
	{"a validation pod that is refused", func(w *world) {
		w.edit(func(p *pavv1.PavProvisioner) { p.Spec.VolumeValidation = checking })
		w.refuse = func(*corev1.Pod) bool { return true }
	}, nil},
	{"a volume written by hand that does not fit", func(w *world) {
		w.edit(func(p *pavv1.PavProvisioner) {
			p.Spec.VolumeValidation = &apiextensionsv1.JSON{Raw: []byte(`{"minCapacity": "1Gi"}`)}
		})
	}, nil},
	{"another volume of its handle is staged", func(w *world) { w.rival(tarnv1.StagePodRunning) }, nil},
	{"another volume of its handle is unstaged", func(w *world) { w.rival(tarnv1.StagePodUnstaged) }, []string{staging, unstaging}},
	{"a node that is lost while staged", func(w *world) {
		w.during = w.once(tarnv1.StagePodSucceeded, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	}, []string{staging}},
}

// checking is a volumeValidation with a pod. No node agent reports anything about that pod.
var checking = &apiextensionsv1.JSON{Raw: []byte(`{"podTemplate": {"metadata": {"namespace": "validation"}, "spec": {"containers": [
	{"name": "c", "image": "busybox", "args": ["{{ handle }}", "{{ pv.metadata.name }}"]}]}}}`)}

// rival creates another volume with the same handle, and its stage on another node.
func (w *world) rival(phase tarnv1.StagePodPhase) {
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "other", UID: "uid-of-other"}}
	vol.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "slow", VolumeHandle: "handle-7"}
	w.must(w.store.Create(context.Background(), vol))
	stage := aStage(tarnv1.PavStagePodStatus{Phase: phase, Staged: true})
	stage.Name, stage.UID, stage.Spec.VolumeName, stage.Spec.VolumeUID, stage.Spec.NodeName = "stage-2", "uid-of-stage-2", "other", "uid-of-other", "n2"
	w.must(w.store.Create(context.Background(), stage))
}

func (w *world) edit(change func(*pavv1.PavProvisioner)) {
	p := &pavv1.PavProvisioner{}
	w.must(w.store.Get(context.Background(), client.ObjectKey{Name: "slow"}, p))
	change(p)
	status := p.Status
	w.must(w.store.Update(context.Background(), p))
	p.Status = status
	w.must(w.store.Status().Update(context.Background(), p))
}

// once returns a function that removes an object when the stage reaches a phase.
func (w *world) once(phase tarnv1.StagePodPhase, o client.Object) func() {
	return func() {
		if s := w.stage(); s != nil && s.Status.Pod.Phase == phase {
			w.must(client.IgnoreNotFound(w.store.Delete(context.Background(), o)))
		}
	}
}

func (s story) begin(t *testing.T) *world {
	w := newWorld(t, subjects()...)
	s.setUp(w)
	return w
}

func (s story) check(w *world) {
	w.t.Helper()
	if !slices.Equal(w.made, s.wantMade) {
		w.t.Errorf("the pods made were %q, want %q", w.made, s.wantMade)
	}
}

func TestEveryStoryEndsWithNothingLeft(t *testing.T) {
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			w := s.begin(t)
			w.live()
			s.check(w)
		})
	}
}

func TestACacheThatIsBehindChangesNothing(t *testing.T) {
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			w := s.begin(t)
			w.behind = true
			w.live()
			s.check(w)
		})
	}
}

func TestAnErrorAtAnyWriteChangesNothing(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "x", errors.New("it has moved on"))
	for _, s := range stories {
		plain := s.begin(t)
		plain.live()
		for n := 1; n <= plain.Count; n++ {
			for name, fail := range map[string]func(int, bool) error{
				"killed before it":        func(i int, made bool) error { return errIf(i == n && !made, errKilled) },
				"killed after it":         func(i int, made bool) error { return errIf(i == n && made, errKilled) },
				"refused with a conflict": func(i int, made bool) error { return errIf(i == n && !made, conflict) },
			} {
				t.Run(fmt.Sprintf("%s/write %d %s", s.name, n, name), func(t *testing.T) {
					w := s.begin(t)
					w.Fail = fail
					w.live()
					s.check(w)
				})
			}
		}
	}
}

func errIf(yes bool, err error) error {
	if yes {
		return err
	}
	return nil
}

func TestTheIntentIsOnRecordWhenThePodIsMade(t *testing.T) {
	w := newWorld(t, subjects()...)
	w.refuse = func(p *corev1.Pod) bool {
		s := w.stage().Status.Pod
		if s.Name != p.Name || s.Namespace != p.Namespace || !s.Staged {
			t.Errorf("pod %s/%s is made while the record says %+v", p.Namespace, p.Name, s)
		}
		return false
	}
	w.live()
}

func TestTheFirstStatusWriteMeetsTheNodeAgents(t *testing.T) {
	for _, c := range []struct {
		name string
		// meanwhile runs between the controller's read and its first write.
		meanwhile func(*world, *tarnv1.PavStage)
		wantMade  []string
		wantSoon  bool
	}{
		{"a target that is added holds nothing up", func(w *world, s *tarnv1.PavStage) {
			s.Status.Node.Phase, s.Status.Node.Targets = tarnv1.StageWaiting, []string{"/target"}
			w.must(w.store.Status().Update(context.Background(), s))
		}, []string{staging}, false},
		{"an end that is requested makes no pod", func(w *world, s *tarnv1.PavStage) {
			w.must(w.store.Delete(context.Background(), s))
		}, nil, true},
		{"another controller that began makes no second pod", func(w *world, s *tarnv1.PavStage) {
			s.Status.Pod = starting()
			w.must(w.store.Status().Update(context.Background(), s))
		}, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, subjects()...)
			w.Fail = func(n int, made bool) error {
				if n == 1 && !made {
					c.meanwhile(w, w.stage())
				}
				return nil
			}
			result, err := w.r.Reconcile(context.Background(), requestFor(stageName))
			if err != nil || (result.RequeueAfter > 0) != c.wantSoon || !slices.Equal(w.made, c.wantMade) {
				t.Errorf("got %+v, %v, and pods %q, want pods %q", result, err, w.made, c.wantMade)
			}
			if targets := w.stage().Status.Node.Targets; c.wantMade != nil && len(targets) != 1 {
				t.Errorf("the node agent's targets are now %q", targets)
			}
		})
	}
}

// meanwhile does something right after the first read of the stage.
type meanwhile struct {
	client.Client
	do func()
}

func (m *meanwhile) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	err := m.Client.Get(ctx, key, into, opts...)
	if _, ok := into.(*tarnv1.PavStage); ok && m.do != nil {
		do := m.do
		m.do = nil
		do()
	}
	return err
}

func TestATargetThatIsAddedBeforeTheFirstStatusWriteCostsNoRefusedOne(t *testing.T) {
	w := newWorld(t, subjects()...)
	w.r.client = &meanwhile{w.r.client, func() {
		s := w.stage()
		s.Status.Node.Phase, s.Status.Node.Targets = tarnv1.StageWaiting, []string{"/target"}
		w.must(w.store.Status().Update(context.Background(), s))
	}}
	w.look()
	if w.Count != 2 || !slices.Equal(w.made, []string{staging}) || len(w.stage().Status.Node.Targets) != 1 {
		t.Errorf("%d writes made pods %q, want two, status and pod; targets %q", w.Count, w.made, w.stage().Status.Node.Targets)
	}
}

func TestAClaimThatIsGoneIsUnstagedByItsRecord(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data", UID: "uid-of-claim"}}
	raw, err := steppod.SnapshotClaim(claim)
	if err != nil {
		t.Fatal(err)
	}
	record := &tarnv1.PavVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	record.Spec.Claim.UID = "uid-of-claim"
	record.Spec.ClaimSnapshot.Raw = raw
	for name, c := range map[string]struct {
		recordOf string
		wantMade []string
		wantArgs []string
	}{
		"the record is of this claim":    {"uid-of-claim", []string{staging, unstaging}, []string{"handle-7", "data", "n1"}},
		"the record is of another claim": {"uid-of-filler", []string{staging}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			record := record.DeepCopy()
			record.Spec.Claim.UID = claim.UID
			if c.recordOf != "uid-of-claim" {
				record.Spec.Claim.UID = "uid-of-filler"
			}
			w := newWorld(t, append(subjects(), record)...)
			w.during = w.once(tarnv1.StagePodStopped, claim)
			var args []string
			w.end = func(p *corev1.Pod) corev1.PodPhase {
				if p.Name == unstaging {
					args = p.Spec.Containers[0].Args
				}
				return corev1.PodSucceeded
			}
			w.live()
			if !slices.Equal(w.made, c.wantMade) || !slices.Equal(args, c.wantArgs) {
				t.Errorf("made %q, unstaged with %q, want %q and %q", w.made, args, c.wantMade, c.wantArgs)
			}
		})
	}
}

// An attacker who controls a node can write what its node agent may write.
func TestAVolumeIsNotBroughtToANodeThatHasNoPodForIt(t *testing.T) {
	change := func(w *world, edit func(*corev1.Pod)) {
		pod := &corev1.Pod{}
		w.must(w.store.Get(context.Background(), client.ObjectKeyFromObject(consumer("app", "data", "")), pod))
		w.must(w.store.Delete(context.Background(), pod))
		pod.ResourceVersion = ""
		edit(pod)
		w.must(w.store.Create(context.Background(), pod))
	}
	for name, c := range map[string]struct {
		forge func(*world)
		want  string
	}{
		"no pod at all":                    {func(w *world) { w.must(w.store.Delete(context.Background(), consumer("app", "data", ""))) }, `no pod on node "n1" uses claim app/data`},
		"a pod elsewhere":                  {func(w *world) { change(w, func(p *corev1.Pod) { p.Spec.NodeName = "n2" }) }, `no pod on node "n1" uses claim app/data`},
		"a pod that was given to no node":  {func(w *world) { change(w, func(p *corev1.Pod) { p.Spec.NodeName = "" }) }, `no pod on node "n1" uses claim app/data`},
		"a pod with the claim of a tenant": {func(w *world) { change(w, func(p *corev1.Pod) { p.Namespace = "tenant" }) }, `no pod on node "n1" uses claim app/data`},
		"a pod that has ended":             {func(w *world) { change(w, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }) }, `no pod on node "n1" uses claim app/data`},
		"a volume of another driver's pods": {func(w *world) {
			vol := &corev1.PersistentVolume{}
			w.must(w.store.Get(context.Background(), client.ObjectKey{Name: "pv"}, vol))
			vol.Spec.CSI.Driver = "other"
			w.must(w.store.Update(context.Background(), vol))
		}, `PersistentVolume "pv" is of driver "other", not of PavProvisioner "slow"`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, subjects()...)
			c.forge(w)
			w.look()
			if got := w.stage().Status.Pod; got.Phase != tarnv1.StagePodFailed || !strings.HasPrefix(got.Message, c.want) || len(w.made) > 0 {
				t.Errorf("%s, %q, with pods %q, want Failed and %q", got.Phase, got.Message, w.made, c.want)
			}
		})
	}
}

func TestAStageWhoseStagingPodVanishesIsUnstaged(t *testing.T) {
	w := newWorld(t, subjects()...)
	vanished := false
	w.end = func(p *corev1.Pod) corev1.PodPhase {
		if !vanished {
			return corev1.PodRunning
		}
		return corev1.PodSucceeded
	}
	w.during = func() {
		if s := w.stage(); !vanished && s != nil && s.Status.Pod.Phase == tarnv1.StagePodRunning {
			vanished = true
			w.must(w.store.Delete(context.Background(), &w.pods()[0]))
		}
	}
	w.live()
	if want := []string{staging, unstaging}; !slices.Equal(w.made, want) {
		t.Errorf("made %q, want %q", w.made, want)
	}
}

func TestAFailureIsToldToStageAndClaim(t *testing.T) {
	w := stories[1].begin(t)
	w.live()
	close(w.events.Events)
	var got []string
	for e := range w.events.Events {
		got = append(got, e)
	}
	if want := []string{"Warning UnstagingFailed busy", "Warning UnstagingFailed busy"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAnUnstagingThatKeepsFailingIsNeverDropped(t *testing.T) {
	w := newWorld(t, subjects()...)
	w.end = func(p *corev1.Pod) corev1.PodPhase {
		if strings.HasPrefix(p.Name, "pav-unstaging-") && len(w.made) < 8 {
			return corev1.PodFailed
		}
		return corev1.PodSucceeded
	}
	w.during = func() {
		for _, p := range w.pods() {
			if len(w.pods()) > 1 {
				t.Errorf("%d pods at once, among them %s", len(w.pods()), p.Name)
			}
		}
	}
	w.live()
	if want := steppod.PodName(tarnv1.StepUnstaging, stageUID, 7); w.made[len(w.made)-1] != want {
		t.Errorf("the last pod made was %s, want %s", w.made[len(w.made)-1], want)
	}
	if waited := w.clock.Now().Sub(noon); waited < firstRetry*(1+2+4+8+16+32)*4/5 {
		t.Errorf("six failures took %s of waiting", waited)
	}
}

func TestAFlawOnTheWayToTheAPIServerIsNoFailureOfTheStage(t *testing.T) {
	w := newWorld(t, subjects()...)
	w.r.live = brokenReader{}
	w.must(w.store.Delete(context.Background(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data"}}))
	_, err := w.r.Reconcile(context.Background(), requestFor(stageName))
	if !errors.Is(err, errBroken) || w.stage().Status.Pod.Phase != "" {
		t.Errorf("got error %v and status %+v", err, w.stage().Status.Pod)
	}
}

func TestProvisionersAndNodesNameTheirStages(t *testing.T) {
	other := aStage(tarnv1.PavStagePodStatus{})
	other.Name, other.Spec.NodeName, other.Spec.Provisioner.Name = "stage-2", "n2", "fast"
	w := newWorld(t, append(subjects(), other)...)
	for index, value := range map[string]string{byNode: "n2", byProvisioner: "fast"} {
		var list tarnv1.PavStageList
		w.must(w.store.List(context.Background(), &list, client.MatchingFields{index: value}))
		if len(list.Items) != 1 || list.Items[0].Name != "stage-2" {
			t.Errorf("index %s of %s gives %d stages", index, value, len(list.Items))
		}
	}
}
