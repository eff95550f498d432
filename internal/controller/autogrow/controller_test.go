//go:build integration

package autogrow

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

const setting = "at=80% by=20% max=1Gi"

func TestOnlyNodesOfAnnotatedClaimsAreAskedAndTheFullestMountCounts(t *testing.T) {
	w := newWorld(t, "grow-asked")
	one, two, other := w.node("one"), w.node("two"), w.node("other")
	claim, plain := w.claim("shared", setting, "one", "two"), w.claim("plain", "", "other")
	one.measures("shared", 10, time.Now().Add(2*time.Second))
	two.measures("shared", 10, time.Now().Add(2*time.Second))
	other.measures("plain", 90, time.Now().Add(2*time.Second))
	defer w.run(w.Config)()
	one.askedAgain(2)
	two.askedAgain(2)
	two.measures("shared", 85, time.Now().Add(2*time.Second))
	w.grows(claim, "120Mi")
	w.isTold(claim, eventGrown, "from 100Mi to 120Mi: 85% of its file system is used")
	if n := other.times(); n > 0 || w.now(plain) != "100Mi" {
		t.Errorf("the node without annotated claims was asked %d times, its claim requests %s", n, w.now(plain))
	}
	// The setting of the class counts as soon as there is one, and "off" on a claim disables it.
	base := plain.DeepCopy()
	class := testkit.Class(w.name)
	w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(class), class))
	class.Annotations = map[string]string{tarnv1.AnnotationAutoGrow: "at=80% by=5Mi max=1Gi"}
	w.Must(w.Client.Update(w.Ctx, class))
	w.grows(plain, "105Mi")
	w.resized(plain)
	base = plain.DeepCopy()
	plain.Annotations[tarnv1.AnnotationAutoGrow] = "off"
	w.Must(w.Client.Patch(w.Ctx, plain, client.MergeFrom(base)))
	two.askedAgain(2)
	before := other.times()
	two.askedAgain(5)
	if n := other.times(); n > before+1 {
		t.Errorf("the node of a claim that is off was asked %d more times", n-before)
	}
}

func TestWhyAFullClaimDoesNotGrowIsSaidOnItOnce(t *testing.T) {
	w := newWorld(t, "grow-vain")
	node, two := w.node("one"), w.node("two")
	claim := w.claim("data", "at=80% by=20%", "one")
	node.measures("data", 85, time.Now().Add(2*time.Second))
	defer w.run(w.Config)()
	w.isTold(claim, eventInvalid, `annotation tarn.dev/auto-grow: "at=80% by=20%" has no max; add the largest size`)
	w.CreateWithStatus(testkit.Pod(w.namespace, "second", testkit.OnNode(w.name+"-two"), testkit.Using("data"), testkit.InPhase(corev1.PodRunning)))
	two.askedAgain(2)
	if notes := w.told(claim, eventInvalid); len(notes) != 1 {
		t.Errorf("with a pod on another node, told %q", notes)
	}

	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "storage"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	quota.Spec.Hard[corev1.ResourceRequestsStorage] = testkit.Storage("110Mi")[corev1.ResourceStorage]
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{corev1.ResourceRequestsStorage: testkit.Storage("100Mi")[corev1.ResourceStorage]}}
	w.CreateWithStatus(quota)
	base := claim.DeepCopy()
	claim.Annotations[tarnv1.AnnotationAutoGrow] = setting
	w.Must(w.Client.Patch(w.Ctx, claim, client.MergeFrom(base)))
	w.isTold(claim, eventRejected, "exceeded quota: storage")
	node.askedAgain(5)
	if notes := w.told(claim, eventRejected); len(notes) != 1 || w.now(claim) != "100Mi" {
		t.Errorf("told %q; it requests %s", notes, w.now(claim))
	}
}

func TestAKubeletThatNobodyVouchesForIsShownNoTokenAndTheFlagIsNamed(t *testing.T) {
	w := newWorld(t, "grow-self-signed")
	node := w.node("one")
	w.authority = nil
	claim := w.claim("data", setting, "one")
	defer w.run(w.Config)()
	w.isTold(claim, eventUnknown, "--kubelet-insecure-tls")
	if n := node.times(); n > 0 {
		t.Errorf("it was asked %d times", n)
	}
}

// life grows a claim twice. Between the two, the kubelet repeats the first reading, which must not
// be used again.
func (w *world) life(start func() (stop func())) {
	w.T.Helper()
	node := w.node("one")
	claim := w.claim("data", setting, "one")
	node.measures("data", 85, time.Now().Add(2*time.Second))
	stop := start()
	defer func() { stop() }()
	w.grows(claim, "120Mi")
	node.askedAgain(3)
	w.resized(claim)
	node.askedAgain(3)
	if size := w.now(claim); size != "120Mi" {
		w.T.Fatalf("by one reading it grew to %s", size)
	}
	node.measures("data", 99, time.Now().Add(4*time.Second))
	w.grows(claim, "144Mi")
	w.resized(claim)
	node.askedAgain(3)
	if size := w.now(claim); size != "144Mi" {
		w.T.Errorf("by two readings it grew to %s", size)
	}
}

func TestAReadingIsUsedOnceWhereverTheControllerIsKilled(t *testing.T) {
	whole := testkit.NewKiller(0)
	t.Run("whole", func(t *testing.T) {
		w := newWorld(t, "grow-whole")
		w.life(func() func() { return whole.Life(w.Config, w.run) })
	})
	if n := whole.Writes(); n != 3 {
		t.Fatalf("there were %d writes, want a token and two steps", n)
	}
	for n, name := range map[int]string{1: "grow-dead-1", 2: "grow-dead-2", 3: "grow-dead-3"} {
		t.Run("after write "+name[len(name)-1:], func(t *testing.T) {
			w := newWorld(t, name)
			w.life(func() func() { return testkit.NewKiller(n).Life(w.Config, w.run) })
		})
	}
	t.Run("before the step", func(t *testing.T) {
		w := newWorld(t, "grow-before")
		died := make(chan struct{})
		w.life(func() func() {
			config := *w.Config
			config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &dying{next: next, died: died} })
			stop := w.run(&config)
			<-died
			stop()
			return w.run(w.Config)
		})
	})
}

// dying is the connection of a process that is killed when it is about to write a claim.
type dying struct {
	next http.RoundTripper
	died chan struct{}
}

// RoundTrip implements http.RoundTripper.
func (d *dying) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-d.died:
		return nil, http.ErrServerClosed
	default:
	}
	if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/persistentvolumeclaims/") {
		close(d.died)
		return nil, http.ErrServerClosed
	}
	return d.next.RoundTrip(r)
}
