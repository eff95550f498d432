package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/mounts"
)

// withSecret names a Secret. The test's calls carry its keys, as the kubelet's do.
func withSecret(v *corev1.PersistentVolume) {
	v.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: "shop", Name: "login"}
}

func keys(secret map[string]string) func(*csi.NodePublishVolumeRequest) {
	return func(r *csi.NodePublishVolumeRequest) { r.Secrets = secret }
}

// sayingSecrets are staging pods that write into the volume what they find in /pav/secrets.
func sayingSecrets(pav string) (tarnv1.StagePodPhase, string) {
	said, err := secretsIn(filepath.Join(pav, "secrets"))
	volume := filepath.Join(pav, "volume")
	return played(tarnv1.StagePodSucceeded, err, os.Mkdir(volume, 0o755), unix.Mount("tarn-test", volume, "tmpfs", 0, ""), os.WriteFile(filepath.Join(volume, "greeting"), []byte(said), 0o600))
}

// secretsIn gives the files of a directory as "KEY=VALUE", and fails for one that others may read.
func secretsIn(folder string) (string, error) {
	entries, err := os.ReadDir(folder)
	var said []string
	for _, e := range entries {
		data, readErr := os.ReadFile(filepath.Join(folder, e.Name()))
		info, statErr := e.Info()
		if err = errors.Join(err, readErr, statErr); err == nil && info.Mode() != fs.FileMode(0o400) {
			err = fmt.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
		said = append(said, e.Name()+"="+string(data))
	}
	return strings.Join(said, " "), err
}

// wantOnlyInMemory checks that no file of the agent, its stages or their status has the text, but
// those of a tmpfs.
func (w *world) wantOnlyInMemory(text string) {
	w.Helper()
	table, err := mounts.Kernel{}.List()
	w.must(err)
	w.must(filepath.WalkDir(w.state, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if found := mounts.At(table, path); e.IsDir() && e.Name() == "secrets" && len(found) > 0 && found[0].Type == "tmpfs" {
			return fs.SkipDir
		}
		if data, _ := os.ReadFile(path); strings.Contains(string(data), text) && filepath.Base(path) != "greeting" {
			w.Errorf("%s has the Secret", path)
		}
		return nil
	}))
	if said := fmt.Sprintf("%+v", w.stages()); strings.Contains(said, text) {
		w.Errorf("a PavStage has the Secret: %s", said)
	}
	logs.mu.Lock()
	defer logs.mu.Unlock()
	if strings.Contains(strings.Join(logs.lines, "\n"), text) {
		w.Error("the log has the Secret")
	}
}

func TestAStagingPodHasTheSecretOfItsVolume(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.player.set(sayingSecrets)
	volume := w.volume(w.provisioner(), "pv-"+w.id, withSecret)
	first, err := w.publish(volume, "pod-1", keys(map[string]string{"user": "ada", "password": "hush-" + w.id}))
	w.must(err)
	w.wantFile(filepath.Join(first, "greeting"), "password=hush-"+w.id+" user=ada")
	w.wantOnlyInMemory("hush-" + w.id)

	// A pod that comes later brings the present keys, for the next staging.
	second, err := w.publish(volume, "pod-2", keys(map[string]string{"password": "hush2-" + w.id, ".dot": ""}))
	w.must(err)
	w.wantFile(filepath.Join(second, "greeting"), "password=hush-"+w.id+" user=ada")
	folder := filepath.Join(w.state, "stages", string(w.stages()[0].UID), "pav", "secrets")
	if said, err := secretsIn(folder); said != ".dot= password=hush2-"+w.id || err != nil {
		t.Errorf("/pav/secrets has %q (%v)", said, err)
	}
	if err := os.WriteFile(filepath.Join(folder, "x"), nil, 0o600); err == nil {
		t.Error("a pod can write to /pav/secrets")
	}

	// The agent may die, and the volume be lost: nobody calls, and the next staging pod has them.
	w.stop()
	w.start()
	w.unmountVolume(w.healthy(metav1.ConditionTrue, tarnv1.ReasonStaged))
	w.eventually("it is staged again with the Secret", func() error {
		if data, err := os.ReadFile(filepath.Join(first, "greeting")); string(data) != ".dot= password=hush2-"+w.id {
			return fmt.Errorf("it has %q (%w)", data, err)
		}
		return nil
	})
	w.healthy(metav1.ConditionTrue, tarnv1.ReasonRebound)
	w.wantOnlyInMemory("hush2-" + w.id)

	// Where all mounts are lost, the Secret is, too: the kubelet's next call brings it.
	w.stop()
	stage := w.stages()[0]
	for _, folder := range []string{filepath.Join(w.state, "stages", string(stage.UID)), first, second} {
		w.must(mounts.UnmountTree(mounts.Kernel{}, folder, func(string, error) {}))
	}
	w.start()
	w.healthy(metav1.ConditionFalse, tarnv1.ReasonMountGone)
	w.eventually("it is staged again by a call with the Secret", func() error {
		_, err := w.publish(volume, "pod-1", keys(map[string]string{"password": "hush3-" + w.id}))
		return err
	})
	w.wantFile(filepath.Join(first, "greeting"), "password=hush3-"+w.id)
	w.wantOnlyInMemory("hush3-" + w.id)
	w.ends(volume, first, second)
}

func TestNoStagingPodStartsBeforeItsSecretIsThere(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.player.set(sayingSecrets)
	volume := w.volume(w.provisioner(), "pv-"+w.id, withSecret)
	for key, want := range map[string]string{"..": "cannot be the name of a file", "a/b": `key "a/b"`, "": `key ""`, "..data": "rename the key"} {
		if _, err := w.publish(volume, "pod-1", keys(map[string]string{key: "hush-" + w.id})); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("key %q: %v", key, err)
		}
	}
	many := map[string]string{}
	for n := range 65 {
		many[fmt.Sprint("key", n)] = "v"
	}
	if _, err := w.publish(volume, "pod-1", keys(many)); err == nil || !strings.Contains(err.Error(), "65 keys; the limit is 64") {
		t.Errorf("many keys: %v", err)
	}
	w.nothingIsLeft()

	// A Secret of the greatest size fits, also while it is replaced.
	var targets []string
	for _, letter := range []string{"a", "b"} {
		target, err := w.publish(volume, "pod-"+letter, keys(map[string]string{"large": strings.Repeat(letter, 1<<20)}))
		w.must(err)
		targets = append(targets, target)
	}
	w.ends(volume, targets...)
}
