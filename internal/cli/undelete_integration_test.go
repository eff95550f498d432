//go:build integration

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// trashWorld is one volume in the trash, whose claim's namespace may be gone, and a fake binder.
type trashWorld struct {
	t      *testing.T
	ctx    context.Context
	config *rest.Config
	client client.WithWatch
	claim  client.ObjectKey
}

func newTrashWorld(t *testing.T, name string) *trashWorld {
	t.Helper()
	config := testkit.APIServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	w := &trashWorld{t: t, ctx: ctx, config: config, client: testkit.Client(t, config), claim: client.ObjectKey{Namespace: name, Name: "data"}}
	lost := testkit.Claim(name, "data", "lost", "fast", func(c *corev1.PersistentVolumeClaim) {
		c.Labels, c.Annotations["owner"] = map[string]string{"app": "shop"}, "me"
	})
	vol := inTrash(name, time.Now().Add(time.Hour), func(v *corev1.PersistentVolume) {
		text, err := volume.RememberClaim(lost)
		w.must(err)
		v.Annotations[tarnv1.AnnotationClaim], v.Spec.ClaimRef.Namespace = text, name
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "fast", VolumeHandle: name}}
	})
	w.must(w.client.Create(ctx, &vol))
	vol.Status.Phase = corev1.VolumeReleased
	w.must(w.client.Status().Update(ctx, &vol))
	done := make(chan struct{})
	go func() { defer close(done); w.bind() }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *trashWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// bind binds the claim to its volume, as a binder does with a reserved volume.
func (w *trashWorld) bind() {
	for w.ctx.Err() == nil {
		claim, err := kube.Get(w.ctx, w.client, w.claim, &corev1.PersistentVolumeClaim{})
		vol := &corev1.PersistentVolume{}
		if err == nil && claim != nil && claim.Status.Phase != corev1.ClaimBound && w.client.Get(w.ctx, client.ObjectKey{Name: w.claim.Namespace}, vol) == nil &&
			reservedFor(vol, w.claim) {
			vol.Spec.ClaimRef.UID = claim.UID
			if w.client.Update(w.ctx, vol) == nil {
				claim.Status.Phase = corev1.ClaimBound
				_ = w.client.Status().Update(w.ctx, claim)
			}
		}
		select {
		case <-w.ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// command runs tarn with arguments, through a killer if there is one.
func (w *trashWorld) command(k *testkit.Killer, change func(*undelete)) error {
	config := w.config
	if k != nil {
		config = k.Wrap(config)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: kube.Scheme()})
	w.must(err)
	u := &undelete{client: c, out: io.Discard, createNamespace: true, timeout: 10 * time.Second}
	if change != nil {
		change(u)
	}
	return u.volume(w.ctx, w.claim.Namespace, client.ObjectKey{})
}

// back checks that the claim is restored, bound to its volume.
func (w *trashWorld) back() {
	w.t.Helper()
	claim, vol := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	w.must(w.client.Get(w.ctx, w.claim, claim))
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: w.claim.Namespace}, vol))
	if claim.Labels["app"] != "shop" || claim.Annotations["owner"] != "me" || claim.Spec.VolumeName != vol.Name || vol.Spec.ClaimRef.UID != claim.UID {
		w.t.Errorf("claim %+v on volume %+v", claim, vol)
	}
	if _, trashed, _ := volume.TrashedUntil(vol); trashed || !volume.Held(vol) || vol.Labels[tarnv1.LabelTrashedUntil] != "" {
		w.t.Errorf("the volume has annotations %v and labels %v, want it held and out of the trash", vol.Annotations, vol.Labels)
	}
}

func TestAClaimIsBroughtBackWhereverTheCommandIsKilled(t *testing.T) {
	whole := testkit.NewKiller(0)
	t.Run("whole", func(t *testing.T) {
		w := newTrashWorld(t, "undelete-whole")
		w.must(w.command(whole, nil))
		w.back()
		w.must(w.command(nil, nil)) // a second time does no harm
		w.back()
	})
	for _, n := range testkit.Deaths(t, whole.Writes()) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := newTrashWorld(t, fmt.Sprintf("undelete-%d", n))
			if err := w.command(testkit.NewKiller(n), nil); err == nil {
				t.Error("a killed command has succeeded")
			}
			w.must(w.command(nil, nil))
			w.back()
		})
	}
}

func TestWhatIsRefusedLeavesTheTrashAsItWas(t *testing.T) {
	w := newTrashWorld(t, "undelete-refused")
	untouched := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		vol := &corev1.PersistentVolume{}
		w.must(w.client.Get(w.ctx, client.ObjectKey{Name: w.claim.Namespace}, vol))
		if unpurgeable(vol) != nil || vol.Spec.ClaimRef.UID != "u" {
			t.Errorf("the volume is %+v, want it in the trash", vol)
		}
	}
	untouched(w.command(nil, func(u *undelete) { u.createNamespace = false }), "--create-namespace")
	w.must(w.client.Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.claim.Namespace}}))
	other := testkit.Claim(w.claim.Namespace, "data", "", "fast")
	w.must(w.client.Create(w.ctx, other))
	untouched(w.command(nil, nil), "claim undelete-refused/data exists and uses another volume")

	var out bytes.Buffer
	untouched(purgeTrash(w.ctx, w.client, &out, []string{w.claim.Namespace}, false, time.Now()), "--yes")
	if !strings.Contains(out.String(), "would purge volume undelete-refused of claim undelete-refused/data") {
		t.Errorf("printed %q", out.String())
	}
	w.must(purgeTrash(w.ctx, w.client, &out, []string{w.claim.Namespace}, true, someNow))
	vol := &corev1.PersistentVolume{}
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: w.claim.Namespace}, vol))
	if until, known, err := volume.TrashedUntil(vol); !known || err != nil || !until.Equal(someNow) {
		t.Errorf("purged, it is kept until %s, %v", until, err)
	}
}

func TestANamespaceIsBroughtBackClaimByClaim(t *testing.T) {
	w := newTrashWorld(t, "undelete-namespace")
	for _, name := range []string{"undelete-twin-1", "undelete-twin-2"} { // two volumes of one claim
		vol := inTrash(name, time.Now().Add(time.Hour), func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name = w.claim.Namespace, "twins"
			v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "fast", VolumeHandle: name}}
		})
		w.must(w.client.Create(w.ctx, &vol))
		vol.Status.Phase = corev1.VolumeReleased
		w.must(w.client.Status().Update(w.ctx, &vol))
	}
	u := &undelete{client: w.client, out: io.Discard, createNamespace: true, timeout: 10 * time.Second}
	if err := u.namespace(w.ctx, w.claim.Namespace); err == nil || !strings.Contains(err.Error(), "choose one with tarn undelete volume NAME: undelete-twin-1, undelete-twin-2") {
		t.Errorf("got %v, want it to ask which of the two", err)
	}
	w.back()
	if err := u.namespace(w.ctx, "undelete-nobody"); err == nil || !strings.Contains(err.Error(), `"undelete-nobody"`) {
		t.Errorf("got %v, want it to say that there is nothing", err)
	}
}
