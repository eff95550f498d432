package explain

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// matter is a problem that a claim of a pod or an App may have.
type matter struct {
	name string
	of   func() *world
	// wantWaiting is the rank for a pod that has not started, wantRunning for one that runs. The
	// lower rank is the cause.
	wantWaiting, wantRunning rank
}

// matters returns all of them, and one claim without a problem.
func matters() []matter {
	return []matter{
		{"it is not there", func() *world {
			return with(newWorld(), func(w *world) { w.claimView = &claimView{Object: w.claimView.Object} })
		}, rankAbsent, rankAbsent},
		{"it is being deleted", func() *world { return deleted(newWorld().bound(), claimProtection) }, rankEnding, rankLeaving},
		{"it is being deleted, which a finalizer holds up", func() *world { return deleted(newWorld().bound(), "example.org/audit") }, rankEnding, rankLeaving},
		{"it is lost", func() *world {
			return with(newWorld().bound(), func(w *world) { w.claim.Status.Phase, w.volumeView.Volume = corev1.ClaimLost, nil })
		}, rankLost, rankLost},
		{"its class is not there", func() *world { return withoutClass(newWorld(), ptr.To("goldd")) }, rankStuck, rankStuck},
		{"its creation pod fails", func() *world { return newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepCreation, "no disk") }, rankStuck, rankStuck},
		{"its creation pod has no image", func() *world {
			return newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, waits("ErrImagePull", "no such image"), deadline(7200))
		}, rankStuck, rankStuck},
		{"its creation pod runs", func() *world {
			return newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, runs, deadline(7200))
		}, rankPassing, rankPassing},
		{"its volume is lost on the node", func() *world {
			return newWorld().bound().staged(func(g *tarnv1.PavStage) {
				g.Status.Node.Phase, g.Status.Node.Loss = tarnv1.StageLost, &tarnv1.StageLoss{Number: 1, Reason: tarnv1.ReasonServerDied, Message: "the server died", Time: began}
			})
		}, rankLost, rankLost},
		{"its stage is not ready", func() *world {
			return newWorld().bound().staged(func(g *tarnv1.PavStage) {
				g.Status.Node.Phase = tarnv1.StageWaiting
				g.Status.Pod = tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodRunning, Namespace: "default", Name: "pav-staging"}
			}).stagePod(waits("ErrImagePull", "no such image"))
		}, rankGrowing, rankBeside}, // about the node, which comes after all claims
		{"its volume is to go", func() *world { return doomed(newWorld().bound().staged(there), volumeProtection) }, rankDoomed, rankDoomed},
		{"it grows", func() *world { return grown(newWorld().bound().staged(there)) }, rankLeaving, rankLarger}, // which a kubelet does first
		{"it cannot grow", func() *world {
			return with(grown(newWorld().bound().staged(there)), func(w *world) {
				w.claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimControllerResizeInProgress
				w.record.Status.Expansion = &tarnv1.PavVolumeExpansion{TargetCapacity: 2 << 30, Failures: 2, NextAttemptTime: ahead(time.Minute),
					LastError: &tarnv1.PavVolumeError{Message: "no room", Reason: "PodFailed", Time: began}}
			})
		}, rankLarger, rankLarger},
		{"it waits for its pod to be placed", func() *world {
			return with(newWorld(), func(w *world) {
				w.class.Provisioner, w.class.VolumeBindingMode = noProvisioner, ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
				w.claim.Annotations, w.volumeView.Provisioner, w.claimView.Candidates = nil, nil, []corev1.PersistentVolume{freeVolume("small", "1Mi")}
			})
		}, rankBeside, rankStuck},
	}
}

func there(*tarnv1.PavStage) {}

// deleted deletes a world's claim, which finalizers keep.
func deleted(w *world, finalizers ...string) *world {
	w.claim.DeletionTimestamp, w.claim.Finalizers = &began, finalizers
	return w
}

// claimNamed returns a world's claim with its objects, under another name.
func claimNamed(name string, w *world) *claimView {
	c := w.claimView
	c.Object.Name = name
	if c.Claim == nil {
		return c
	}
	own := "pvc-" + name
	c.Claim.Name, c.Volume.Name = name, own
	if c.Claim.Spec.VolumeName != "" {
		c.Claim.Spec.VolumeName = own
	}
	if v := c.Volume.Volume; v != nil {
		v.Name, v.Spec.ClaimRef.Name = own, name
	}
	if r := c.Volume.Record; r != nil {
		r.Name, r.Spec.Claim.Name = own, name
	}
	for _, g := range c.Volume.Stages {
		g.Stage.Name, g.Stage.Spec.VolumeName = "stage-"+name, own
	}
	return c
}

// podOn returns a view of a pod shop/web that uses two claims, in the given order.
func podOn(change func(*corev1.Pod), claims ...*claimView) *View {
	w := newWorld().bound().askedPod(change, func(p *corev1.Pod) {
		p.Spec.Volumes = nil
		for _, c := range claims {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: c.Object.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Object.Name}}})
		}
	})
	w.view.Claims = claims
	for _, c := range claims {
		c.Users = []user{{Pod: w.pod}}
	}
	return w.view
}

// appOn returns a view of an App shop/web that is not ready. It has two volumes and a pod that
// cannot be scheduled.
func appOn(claims ...*claimView) *View {
	w := newWorld().bound().asApp(tarnv1.ReasonWaitingForPods, "0 of 1 pods are ready").appPod(unscheduled)
	w.view.Claims = claims
	for _, c := range claims {
		c.Users = []user{{Pod: w.view.Pods[0].Pod}}
	}
	return w.view
}

// said are the parts of an answer that must come from one cause.
type said struct {
	verdict, next, commands string
}

func saying(e *Explanation) said {
	return said{e.Verdict, e.next(), strings.Join(e.commands(), "\n")}
}

// A pod or an App may have any two claims, in any order. Verdict, next step and command must all
// come from the claim that blocks it most. The other one is reported aside, without a command.
func TestOfTwoTroublesOneIsTheCauseInWhateverOrderTheyCome(t *testing.T) {
	well := matter{"it is well", func() *world { return newWorld().bound().staged(there) }, rankWell, rankWell}
	terminating := func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &began, ptr.To[int64](1) }
	for name, view := range map[string]func(...*claimView) *View{
		"a pod without node": func(claims ...*claimView) *View { return podOn(unscheduled, claims...) },
		"a pod that starts":  func(claims ...*claimView) *View { return podOn(func(*corev1.Pod) {}, claims...) },
		"a pod that runs":    func(claims ...*claimView) *View { return podOn(runs, claims...) },
		"a pod that is to end": func(claims ...*claimView) *View {
			return podOn(func(p *corev1.Pod) { runs(p); terminating(p) }, claims...)
		},
		"an App that waits":       appOn,
		"an App that is in order": func(claims ...*claimView) *View { v := appOn(claims...); return readied(v) },
	} {
		all := append(matters(), well)
		for _, a := range all {
			for _, b := range all {
				t.Run(name+": "+a.name+"; "+b.name, func(t *testing.T) {
					two := func() (x, y *claimView) { return claimNamed("data", a.of()), claimNamed("other", b.of()) }
					x, y := two()
					e := chain(view(x, y))
					x, y = two()
					if turned := chain(view(y, x)); printed(t, turned) != printed(t, e) && !e.Healthy {
						t.Errorf("in one order:\n%s\nin the other:\n%s", printed(t, e), printed(t, turned))
					}
					first := chain(view(claimNamed("data", a.of()), claimNamed("other", well.of())))
					second := chain(view(claimNamed("data", well.of()), claimNamed("other", b.of())))
					if got := saying(e); !e.Healthy && got != saying(first) && got != saying(second) {
						t.Errorf("got\n%q\nwhich is neither what is said of the one alone\n%q\nnor of the other\n%q", got, saying(first), saying(second))
					}
					if e.Healthy != (first.Healthy && second.Healthy) {
						t.Errorf("healthy %t, of the one alone %t, of the other %t", e.Healthy, first.Healthy, second.Healthy)
					}
					for _, l := range e.Links {
						if l.Aside && l.Command != "" {
							t.Errorf("what is aside has a command: %+v", l)
						}
					}
					for _, c := range []struct {
						alone *Explanation
						claim string
					}{{first, "claim shop/data"}, {second, "claim shop/other"}} {
						named := func(l Link) bool { return l.Object.String() == c.claim }
						if strings.Contains(c.alone.Verdict, c.claim) && !c.alone.Healthy && !slices.ContainsFunc(e.Links, named) {
							t.Errorf("nothing is said of %s, of which alone: %s", c.claim, c.alone.Verdict)
						}
					}
				})
			}
		}
	}
}

// readied makes an App of a view Ready, with all its pods ready.
func readied(v *View) *View {
	of := newWorld().bound().asApp("", "").view
	v.App, v.Pods = of.App, nil
	return v
}

func printed(t *testing.T, e *Explanation) string {
	t.Helper()
	var out bytes.Buffer
	if err := e.Print(&out, now); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestWhatKeepsAPodMostIsTheCause(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*corev1.Pod)
		rank   func(matter) rank
	}{
		{"a pod without node", unscheduled, func(m matter) rank { return m.wantWaiting }},
		{"a pod that starts", func(*corev1.Pod) {}, func(m matter) rank { return m.wantWaiting }},
		{"a pod that runs", runs, func(m matter) rank { return m.wantRunning }},
	} {
		for _, a := range matters() {
			for _, b := range matters() {
				if c.rank(a) == rankBeside || c.rank(b) == rankBeside {
					continue // it is not a claim that is waited for
				}
				t.Run(c.name+": "+a.name+"; "+b.name, func(t *testing.T) {
					e := chain(podOn(c.change, claimNamed("other", b.of()), claimNamed("data", a.of())))
					want := "shop/data"
					if c.rank(b) < c.rank(a) {
						want = "shop/other"
					}
					if c.name == "a pod without node" && min(c.rank(a), c.rank(b)) > rankPassing {
						want = "the scheduler finds no node for it" // before what the node would do
					} else if c.name == "a pod that starts" && min(c.rank(a), c.rank(b)) > rankLeaving {
						want = "its containers have not started" // which is not for its claims
					}
					if !strings.Contains(e.Verdict, want) && !strings.Contains(e.Verdict, "pvc-"+strings.TrimPrefix(want, "shop/")) {
						t.Errorf("got %q, want the cause to be %s", e.Verdict, want)
					}
				})
			}
		}
	}
}
