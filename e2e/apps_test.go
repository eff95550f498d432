//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// needsClasses skips a case on a cluster without the classes for applications.
func (s *scenario) needsClasses(names ...string) {
	s.t.Helper()
	for _, name := range names {
		err := suite.live.Get(s.ctx, client.ObjectKey{Name: name}, &storagev1.StorageClass{})
		if apierrors.IsNotFound(err) {
			s.t.Skipf("this cluster has no StorageClass %s, which the embedded one has", name)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// app is the App of a name, with only its name. At the end of the case it is deleted before
// anything else.
func (s *scenario) app(name string) *tarn.App {
	app := &tarn.App{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}}
	s.t.Cleanup(func() {
		if s.t.Failed() {
			if suite.live.Get(s.ctx, client.ObjectKeyFromObject(app), app) == nil {
				s.t.Logf("App %s: %+v", name, app.Status)
			}
		}
		s.deleteIfThere(app)
		s.gone(&tarn.App{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}})
	})
	return app
}

// volumeNamed gives the volume of the claim with a name.
func (s *scenario) volumeNamed(claim string) *corev1.PersistentVolume {
	s.t.Helper()
	return s.volumeOf(s.bound(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: claim}}))
}

// podOf gives the only pod of an App that is not being deleted.
func (s *scenario) podOf(app *tarn.App) *corev1.Pod {
	s.t.Helper()
	var found []corev1.Pod
	s.await("one pod of App "+app.Name, func() (bool, string) {
		var list corev1.PodList
		if err := suite.live.List(s.ctx, &list, client.InNamespace(s.name), client.MatchingLabels{tarn.LabelApp: app.Name}); err != nil {
			return false, err.Error()
		}
		found = nil
		for i := range list.Items {
			if list.Items[i].DeletionTimestamp == nil {
				found = append(found, list.Items[i])
			}
		}
		return len(found) == 1, fmt.Sprintf("there are %d", len(found))
	})
	return &found[0]
}

// tarnApp runs a command of `tarn` on the case's namespace.
func (s *scenario) tarnApp(wantStatus int, args ...string) string {
	s.t.Helper()
	stdout, stderr := mustTool(s.t, wantStatus, "", append(args, "--namespace", s.name)...)
	return stdout + stderr
}

// appReady waits until everything that the newest spec of an App requests exists. It reads from the
// API server, because the cache may have an earlier spec that was ready.
func (s *scenario) appReady(app *tarn.App) {
	s.t.Helper()
	s.await("App "+app.Name+" to be Ready", func() (bool, string) {
		if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(app), app); err != nil {
			return false, err.Error()
		}
		ready := meta.FindStatusCondition(app.Status.Conditions, "Ready")
		if ready == nil {
			return false, "nothing is said of it"
		}
		return ready.Status == metav1.ConditionTrue && app.Status.ObservedGeneration == app.Generation, ready.Reason + ": " + ready.Message
	})
}

// diary makes an application write what it finds of earlier pods, and of itself.
const diary = `
[app]
name = "diary"
image = "busybox:1.36"
command = ["sh", "-c", "trap exit TERM; cat /diary/pages; echo a page >> /diary/pages; echo written by $AUTHOR; while true; do sleep 1; done"]

[app.secrets]
AUTHOR = "diary/author"

[[volumes]]
name = "diary"
mountPath = "/diary"
size = "1Gi"
preserveOnDelete = %t
`

const drafts = `
[[volumes]]
name = "drafts"
mountPath = "/drafts"
size = "1Gi"
accessMode = "rwx"
`

func TestAnAppsVolumesAreFoundAgainByItsNextDeploy(t *testing.T) {
	t.Parallel()
	s := begin(t, "app-again")
	s.needsClasses("ovh-csi-rbd", "ovh-csi-nfs")
	app := s.app("diary")
	s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "diary"}, StringData: map[string]string{"author": "anne"}})
	file := filepath.Join(t.TempDir(), "paas.toml")
	deploy := func(text string) string {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return s.tarnApp(0, "app", "deploy", "--file", file)
	}
	deploy(fmt.Sprintf(diary, true) + drafts)
	kept, gone := s.volumeNamed("paas-app-diary-diary"), s.volumeNamed("paas-app-diary-drafts")
	s.prints(s.podOf(app), "written by anne")

	if said := deploy(fmt.Sprintf(diary, true)); !strings.Contains(said, "detach") {
		t.Errorf("the second deploy does not say that it detaches a volume:\n%s", said)
	}
	if text := s.prints(s.podOf(app), "written"); strings.Count(text, "a page") != 1 {
		t.Errorf("the second pod found\n%s\nwant one page", text)
	}
	s.appReady(app)
	if d := app.Status.Detached; len(d) != 1 || d[0].Name != "drafts" || d[0].Phase != tarn.AppVolumeBound {
		t.Errorf("detached are %+v, want drafts, still Bound", d)
	}

	s.tarnApp(0, "app", "delete", "diary", "--yes")
	if !s.gone(gone) {
		t.FailNow()
	}
	deploy(fmt.Sprintf(diary, false))
	if text := s.prints(s.podOf(app), "written"); strings.Count(text, "a page") != 2 {
		t.Errorf("the pod of the new App found\n%s\nwant two pages", text)
	}
	if again := s.volumeNamed("paas-app-diary-diary"); again.UID != kept.UID {
		t.Errorf("the new App has volume %s, want %s", again.Name, kept.Name)
	}
	s.tarnApp(0, "app", "delete", "diary", "--yes")
	if !s.gone(kept) {
		t.FailNow()
	}
}

// hasGi is shell that fails unless df reports for /data a size in GiB, of which a file system may
// reserve a tenth.
func hasGi(gi int64) string {
	return fmt.Sprintf("has=$(df -k /data | awk 'END {print $2}') && echo /data has $has KiB && test $has -ge %d && test $has -le %d", gi<<20/10*9, gi<<20)
}

func TestAnExt4VolumeGrowsBeforeItsPodIsStarted(t *testing.T) {
	t.Parallel()
	s := begin(t, "app-ext4")
	s.needsClasses("ovh-csi-rbd")
	class := &storagev1.StorageClass{}
	if err := suite.live.Get(s.ctx, client.ObjectKey{Name: "ovh-csi-rbd"}, class); err != nil {
		t.Fatal(err)
	}
	class.ObjectMeta = named(s.name)
	class.Parameters["csi.storage.k8s.io/fstype"] = "ext4"
	class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
	s.create(class)
	claim := s.claimWith("data", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		claim.Spec.Resources.Requests = size("1Gi")
	})
	claim = s.bound(claim)
	volume := s.volumeOf(claim)
	first := s.consumer("first", claim.Name, "echo here > /data/note; grep ' /data ext4 ' /proc/mounts; "+hasGi(1))
	s.succeeded(first)
	s.remove(first)
	s.ask(claim, "2Gi")
	s.told(claim, "FileSystemResizeRequired")
	second := s.consumer("second", claim.Name, "test $(cat /data/note) = here; "+hasGi(2))
	s.succeeded(second)
	s.remove(second)
	s.remove(claim)
	if !s.gone(volume) {
		t.FailNow()
	}
}

func TestTheExamplesOfAppsWorkAsTheyAre(t *testing.T) {
	t.Parallel()
	s := begin(t, "app-examples")
	s.needsClasses("ovh-csi-rbd", "ovh-csi-nfs", "local-path")
	notes, board, guestbook := s.app("notes"), s.app("board"), s.app("guestbook")
	o := s.example("apps/app.yaml")
	o.SetNamespace(s.name)
	s.create(o)
	s.tarnApp(0, "app", "deploy", "--file", "../examples/apps/paas.toml")
	s.tarnApp(0, "app", "deploy", "--file", "../examples/apps/scaled.toml")
	volumes := []*corev1.PersistentVolume{s.volumeNamed("paas-app-notes-shared"), s.volumeNamed("paas-app-board-board"), s.volumeNamed("paas-app-notes-data")}
	for app, want := range map[*tarn.App]int32{notes: 1, board: 3, guestbook: 1} {
		s.appReady(app)
		if app.Status.ReadyReplicas != want {
			t.Errorf("%d pods of %s are ready, want %d", app.Status.ReadyReplicas, app.Name, want)
		}
	}
	for _, app := range []*tarn.App{notes, board, guestbook} {
		s.remove(app)
	}
	data := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "paas-app-notes-data"}}
	if err := s.get(data); err != nil || data.DeletionTimestamp != nil {
		t.Errorf("the claim that is to be preserved is not there any more (%v)", err)
	}
	s.remove(data)
	for _, volume := range volumes {
		s.gone(volume)
	}
}
