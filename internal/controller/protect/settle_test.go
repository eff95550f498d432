//go:build integration

package protect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/testkit"
)

// TestProtectionSettles checks the cases of Kubernetes' behaviour one after the other, as
// controllers that run side by side would do each other's work.
func TestProtectionSettles(t *testing.T) {
	server := testkit.APIServer(t)
	for title, settle := range map[string]func(*world){
		"case143 what lost its finalizer gets it back":                            finalizersComeBack,
		"case143 a finalizer that cannot be written is tried again":               refusedWrites,
		"case143 a finalizer that is refused for good delays nobody":              refusedForGood,
		"case144 one list lets all claims of a namespace go":                      oneListANamespace,
		"case145 a list that fails is made again":                                 failedList,
		"case145 lists that fail put off what needs them alone":                   failedLists,
		"case146 a pod that only the API server knows keeps a claim":              behindCache,
		"case147 a pod that has ended keeps a claim while it may have it mounted": endedPod,
		"case148 an unscheduled pod counts once it is scheduled":                  scheduledMeanwhile,
		"case149 a pod of the same name keeps a claim":                            replacedPod,
		"case150 a claim goes with the pod that owns it":                          ephemeralClaims,
		"case151 a claim goes with the last of its pods":                          twoPods,
		"case152 a volume goes when its claim is gone":                            boundVolume,
	} {
		t.Run(title, func(t *testing.T) {
			number, _, _ := strings.Cut(title, " ")
			settle(newWorld(t, server, number))
		})
	}
}

func finalizersComeBack(w *world) {
	w.start()
	w.takenAndPutBack(w.claim("x"), FinalizerClaim)
	w.takenAndPutBack(w.volume("x", nil, corev1.VolumeAvailable), FinalizerVolume)
}

// takenAndPutBack removes the finalizers of an object and waits until its own is there again.
func (w *world) takenAndPutBack(o client.Object, finalizer string) {
	w.T.Helper()
	o.SetFinalizers(nil)
	w.Must(w.Client.Update(w.Ctx, o))
	w.protected(o, finalizer)
}

// protected waits until an object has its finalizer, and no other.
func (w *world) protected(o client.Object, finalizer string) {
	w.T.Helper()
	w.Eventually("the controllers", func() string {
		w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(o), o))
		if !slices.Equal(o.GetFinalizers(), []string{finalizer}) {
			return fmt.Sprintf("%T has finalizers %q after %d writes, want %s", o, o.GetFinalizers(), w.patched(o), finalizer)
		}
		return ""
	})
}

func refusedWrites(w *world) {
	w.refuses = func(_ string, nth int) bool { return nth == 1 }
	w.start()
	claim, vol := w.claim("x"), w.volume("x", nil, corev1.VolumeAvailable)
	for o, finalizer := range map[client.Object]string{claim: FinalizerClaim, vol: FinalizerVolume} {
		w.takenAndPutBack(o, finalizer)
		if got := w.patched(o); got < 2 {
			w.T.Errorf("%T was patched %d times, want once more than was refused", o, got)
		}
	}
}

// The backoff after errors has reached ten seconds and more when two claims are deleted. The second
// must wait for the next list.
func refusedForGood(w *world) {
	w.refuses = func(path string, _ int) bool { return strings.HasSuffix(path, "/bare") }
	bare, first, second := w.claim("bare"), w.claim("first"), w.claim("second")
	w.start()
	bare.SetFinalizers(nil)
	w.Must(w.Client.Update(w.Ctx, bare))
	w.Eventually("the controllers", func() string {
		if got := w.patched(bare); got < 12 {
			return fmt.Sprintf("%d patches that are refused, want more", got)
		}
		return ""
	})
	begun := time.Now()
	w.delete(first)
	w.gone(first)
	w.delete(second)
	w.gone(second)
	if took, lists := time.Since(begun), w.listed(w.namespace); took > 8*time.Second || lists != 2 {
		w.T.Errorf("two claims were let go after %s and %d lists, want 2, and no wait for a claim whose finalizer is refused", took, lists)
	}
	tried := w.patched(bare)
	w.Eventually("the controllers", func() string {
		if w.patched(bare) == tried {
			return "it is not tried again"
		}
		return ""
	})
}

func oneListANamespace(w *world) {
	other := w.namespace + "-other"
	w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}})
	a, b, c := w.claim("a"), w.claim("b"), w.claim("c", func(c *corev1.PersistentVolumeClaim) { c.Namespace = other })
	w.delete(a, b, c)
	w.start()
	for _, claim := range []*corev1.PersistentVolumeClaim{a, b, c} {
		w.gone(claim)
	}
	if here, there := w.listed(w.namespace), w.listed(other); here != 1 || there != 1 {
		w.T.Errorf("%d and %d lists for claims of two namespaces, want 1 each", here, there)
	}
}

func failedList(w *world) {
	a, b := w.claim("a"), w.claim("b")
	w.delete(a, b)
	w.failing = 1
	w.start()
	w.gone(a)
	w.gone(b)
	if got := w.listed(w.namespace); got < 2 {
		w.T.Errorf("%d lists of which the first failed, want one more", got)
	}
}

// While every list of a namespace fails, none of its claims is released, used or not, and nothing
// else waits. Once lists succeed, all claims that waited are handled, also those deleted meanwhile.
func failedLists(w *world) {
	other := w.namespace + "-other"
	w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}})
	first, second, used := w.claim("first"), w.claim("second"), w.claim("used")
	elsewhere := w.claim("elsewhere", func(c *corev1.PersistentVolumeClaim) { c.Namespace = other })
	pod := w.pod(podWith("p", "used"))
	w.delete(first, second, used, elsewhere)
	w.failing = math.MaxInt
	w.start()
	w.gone(elsewhere)
	w.takenAndPutBack(w.claim("bare"), FinalizerClaim)
	late := w.claim("late")
	w.delete(late)
	w.Eventually("the controllers", func() string {
		if lists := w.listed(w.namespace); lists < 3 {
			return fmt.Sprintf("%d lists, want one that fails to be made again", lists)
		}
		return ""
	})
	for _, claim := range []*corev1.PersistentVolumeClaim{first, second, late, used} {
		w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(claim), claim))
	}
	w.answer()
	for _, claim := range []*corev1.PersistentVolumeClaim{first, second, late} {
		w.gone(claim)
	}
	w.kept(used)
	w.kill(pod)
	w.gone(used)
}

// blind is a cache of pods that is far behind: it shows no pod.
type blind struct{ cache.Cache }

func (blind) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

func behindCache(w *world) {
	claim := w.claim("x")
	pod := w.pod(podWith("p", "x"))
	w.T.Cleanup(w.run(w.Config, func(c cache.Cache) cache.Cache { return blind{c} }))
	w.delete(claim)
	w.kept(claim)
	w.kill(pod)
	w.gone(claim)
}

// A pod that has ended keeps its claim while its volume is mounted, or if no object shows its
// mounts. The API server's state decides each time.
func endedPod(w *world) {
	driver := w.namespace
	w.Create(testkit.Provisioner(driver))
	w.start()
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		name := strings.ToLower(string(phase))
		unknown, path, staged := w.claim(name+"-unknown"), w.claim(name+"-path"), w.claim(name+"-staged")
		w.boundTo(unknown, corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "other.example.org", VolumeHandle: "h"}})
		w.boundTo(path, corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}})
		vol := w.boundTo(staged, corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h"}})
		pod := w.pod(podWith(name, unknown.Name, path.Name, staged.Name))
		stage := w.staged(vol, driver, pod)
		w.phase(pod, phase)
		w.delete(unknown, path, staged)
		w.gone(path)
		w.kept(unknown, staged)
		base := stage.DeepCopy()
		stage.Status.Node.Targets = nil
		w.Must(w.Client.Status().Patch(w.Ctx, stage, client.MergeFrom(base)))
		w.gone(staged)
		w.kept(unknown)
		w.kill(pod)
		w.gone(unknown)
		w.delete(stage)
	}
}

func scheduledMeanwhile(w *world) {
	w.start()
	claim, held := w.claim("x"), w.claim("held")
	w.pod(with(podWith("waits", "x"), unscheduled))
	w.delete(claim)
	w.gone(claim)

	first := w.pod(podWith("first", "held"))
	second := w.pod(with(podWith("second", "held"), unscheduled))
	w.delete(held)
	w.Must(w.Client.SubResource("binding").Create(w.Ctx, second, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}))
	w.kill(first)
	w.kept(held)
	w.kill(second)
	w.gone(held)
}

func replacedPod(w *world) {
	w.start()
	claim, other := w.claim("x"), w.claim("y")
	old, beside := w.pod(podWith("p", "x", "y")), w.pod(podWith("q", "x"))
	w.delete(claim, other)
	w.kept(claim, other)
	w.kill(old)
	next := w.pod(podWith("p", "x"))
	w.gone(other)
	w.kill(beside)
	w.kept(claim)
	w.kill(next)
	w.gone(claim)
}

func ephemeralClaims(w *world) {
	w.start()
	pod := w.pod(with(ephemeral("p", "v"), func(p *corev1.Pod) { p.Finalizers = []string{"example.org/held"} }))
	owned, stray := w.claim("p-v", ownedBy(pod.UID)), w.claim("q-v")
	w.pod(ephemeral("q", "v"))
	w.delete(owned, stray)
	w.gone(stray)
	w.kept(owned)
	w.kill(pod)
	w.gone(owned)
	w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(pod), pod))
	pod.Finalizers = nil
	w.Must(w.Client.Update(w.Ctx, pod))
}

func twoPods(w *world) {
	w.start()
	claim := w.claim("x")
	first, second := w.pod(podWith("p", "x")), w.pod(podWith("q", "x"))
	w.delete(claim)
	w.kept(claim)
	w.kill(first)
	w.kept(claim)
	w.kill(second)
	w.gone(claim)
}

func boundVolume(w *world) {
	w.start()
	claim := w.claim("x")
	bound, half, free := w.volume("bound", claim, corev1.VolumeBound), w.volume("half", claim, corev1.VolumeAvailable), w.volume("free", nil, corev1.VolumeAvailable)
	w.delete(bound, half, free)
	w.gone(free)
	for _, vol := range []*corev1.PersistentVolume{bound, half} {
		w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(vol), vol))
	}
	w.delete(claim)
	w.gone(claim)
	w.gone(half)
	w.volumePhase(bound, corev1.VolumeReleased)
	w.gone(bound)
}

func TestNothingIsLostWhereverTheControllersAreKilled(t *testing.T) {
	server := testkit.OwnAPIServer(t) // no controllers but those that are killed
	whole := testkit.NewKiller(0)
	live(t, server, "whole", whole)
	if whole.Writes() < 4 {
		t.Fatalf("the life of a claim and its volume takes %d writes, want at least one to protect and one to release each", whole.Writes())
	}
	for _, n := range testkit.Deaths(t, whole.Writes()) {
		live(t, server, fmt.Sprintf("killed-%d", n), testkit.NewKiller(n))
	}
}

// TestManyDeletionsShareTheirLists deletes a thousand claims one by one, and fifty that pods use.
// The controllers' clock stands still, so the result does not depend on the test's duration.
// TestAThousandDeletionsShareAFewLists checks the number of pauses between lists.
func TestManyDeletionsShareTheirLists(t *testing.T) {
	claims, pods := testkit.Many(1000), 50
	now := testclock.NewFakePassiveClock(time.Unix(0, 0))
	w := newWorld(t, testkit.APIServer(t), "many")
	w.clock = now
	w.start()
	all := make([]*corev1.PersistentVolumeClaim, claims+pods)
	each := func(do func(*corev1.PersistentVolumeClaim) error) {
		t.Helper()
		failed := make([]error, len(all))
		workqueue.ParallelizeUntil(w.Ctx, 16, len(all), func(i int) { failed[i] = do(all[i]) })
		w.Must(errors.Join(failed...))
	}
	for i := range all {
		all[i] = testkit.Claim(w.namespace, fmt.Sprintf("claim-%d", i), "", "none")
	}
	each(func(claim *corev1.PersistentVolumeClaim) error { return w.Client.Create(w.Ctx, claim) })
	for i := range pods {
		w.pod(podWith(fmt.Sprintf("pod-%d", i), all[i].Name))
	}
	each(func(claim *corev1.PersistentVolumeClaim) error { return w.Client.Delete(w.Ctx, claim.DeepCopy()) })
	left := func(from client.Reader) []corev1.PersistentVolumeClaim {
		list := &corev1.PersistentVolumeClaimList{}
		w.Must(from.List(w.Ctx, list, client.InNamespace(w.namespace)))
		return list.Items
	}
	w.Eventually("the controllers", func() string {
		unheard := slices.ContainsFunc(left(w.known), func(c corev1.PersistentVolumeClaim) bool { return c.DeletionTimestamp == nil })
		if lists := w.listed(w.namespace); lists != 1 || unheard {
			return fmt.Sprintf("%d lists, want one; not all deletions heard of: %t", lists, unheard)
		}
		return ""
	})
	now.SetTime(now.Now().Add(firstPause))
	w.Eventually("the controllers", func() string {
		if n := len(left(w.Client)); n != pods {
			return fmt.Sprintf("%d claims are left with %d lists, want the %d that are used", n, w.listed(w.namespace), pods)
		}
		return ""
	})
	for _, claim := range left(w.Client) {
		if !slices.ContainsFunc(all[:pods], func(used *corev1.PersistentVolumeClaim) bool { return used.UID == claim.UID }) {
			t.Errorf("claim %s is left, and no pod uses it", claim.Name)
		}
	}
	if got := w.listed(w.namespace); got != 2 {
		t.Errorf("%d lists of pods for %d deletions of which the controllers heard within a pause, want one before it and one after", got, claims)
	}
}
