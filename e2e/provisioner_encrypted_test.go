//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

const plaintext = "what-nobody-may-read-below"

// encrypted begins a case with the provisioner encrypted, and with a class of xfs volumes, which are
// files of a directory.
func encrypted(t *testing.T) (s *scenario, below, dir string) {
	t.Helper()
	dir = t.TempDir() // first, and so removed last
	s = onTheShelf(t, "encrypted")
	s.needsClasses("ovh-csi-rbd") // whose provisioner is xfs
	below = s.classWith("-below", "xfs", late, func(c *storagev1.StorageClass) {
		c.Parameters, c.AllowVolumeExpansion = map[string]string{"folder": dir}, ptr.To(true)
	})
	return s, below, dir
}

// encryptedOver makes a class of the provisioner encrypted over another class. The Secret with the
// key is in a namespace.
func (s *scenario) encryptedOver(suffix, below, namespace string) string {
	s.t.Helper()
	secret := &corev1.Secret{StringData: map[string]string{"password": "key of " + s.name}}
	secret.Namespace, secret.Name = namespace, s.name
	s.create(secret)
	s.t.Cleanup(func() { s.deleteIfThere(secret) })
	return s.classWith(suffix, s.name, late, func(c *storagev1.StorageClass) {
		c.AllowVolumeExpansion = ptr.To(true)
		c.Parameters = map[string]string{
			"backingClass": below, "csi.storage.k8s.io/node-publish-secret-name": s.name, "csi.storage.k8s.io/node-publish-secret-namespace": namespace,
		}
	})
}

func once(request string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.AccessModes, claim.Spec.Resources.Requests = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, size(request)
	}
}

// keeper writes the plaintext, and then prints what it reads, with the size that df shows.
const keeper = `[ -e /data/plain ] || echo ` + plaintext + ` > /data/plain
sync
while true; do echo "$(cat /data/plain 2>&1) $(df -m /data 2>&1 | tail -n 1 | awk '{print ($2 > 400 ? "large" : "small")}')"; sleep 0.2; done`

// madeFor gives the claims that were made for a volume.
func (s *scenario) madeFor(volumeName string) []corev1.PersistentVolumeClaim {
	s.t.Helper()
	var list corev1.PersistentVolumeClaimList
	if err := suite.live.List(s.ctx, &list, client.MatchingLabels{tarn.LabelVolume: volumeName}); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

// emptied waits until the lowest volumes are gone, whose directory is removed next.
func (s *scenario) emptied(dir string) {
	s.t.Helper()
	s.await("all files below to be deleted", func() (bool, string) {
		files, err := filepath.Glob(filepath.Join(dir, "pvc-*"))
		return err == nil && len(files) == 0, fmt.Sprint(files, err)
	})
}

// fileContains tells whether a large file contains a text.
func fileContains(t *testing.T, path, text string) bool {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	part, kept := make([]byte, 1<<20), 0
	for {
		n, err := io.ReadFull(file, part[kept:])
		if bytes.Contains(part[:kept+n], []byte(text)) {
			return true
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		kept = copy(part, part[len(part)-len(text):]) // the text may begin there
	}
}

func TestAnEncryptedVolumeHasCiphertextAloneBelowItAndGrowsAndEndsWithIt(t *testing.T) {
	t.Parallel()
	s, below, dir := encrypted(t)
	claim := s.claimWith("data", once("400Mi"), ofClass(s.encryptedOver("-over", below, s.name)))
	pod := s.consumer("keeper", claim.Name, keeper)
	s.ready(pod)
	s.prints(pod, plaintext+" small")
	volume := s.bound(claim).Spec.VolumeName
	made := s.madeFor(volume)
	if len(made) != 1 || made[0].Namespace != tarn.StepNamespace {
		t.Fatalf("the claims %+v were made for the volume, want one", made)
	}
	s.refused(suite.live.Delete(s.ctx, made[0].DeepCopy()), "protected from deletion")
	files, err := filepath.Glob(filepath.Join(dir, "pvc-*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the files %q lie below the volume (%v), want one", files, err)
	}
	if !fileContains(t, files[0], "gocryptfs.conf") || fileContains(t, files[0], plaintext) {
		t.Errorf("%s has not gocryptfs' files, or has the plaintext", files[0])
	}

	// Its server is killed.
	server := s.stepPods(tarn.StepStaging)[0]
	s.killIn(&server, "gocryptfs")
	s.stageOf("healthy again", healthy(tarn.ReasonRebound))
	s.prints(pod, plaintext+" small")

	// The claim below grows first.
	s.ask(claim, "500Mi")
	s.await("the claim below to grow", func() (bool, string) {
		below := s.madeFor(volume)[0]
		request, has := below.Spec.Resources.Requests[corev1.ResourceStorage], below.Status.Capacity[corev1.ResourceStorage]
		for _, server := range s.stepPods(tarn.StepStaging) {
			s.nudge(&server)
		}
		return has.Value() == 500<<20, request.String() + " requested, has " + has.String()
	})
	vol := s.resizedTo(claim, "500Mi")
	s.prints(pod, plaintext+" large")
	s.neverRestarted(pod)
	s.remove(pod)

	// Another key opens nothing.
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = s.name, s.name
	if err := s.get(secret); err != nil {
		t.Fatal(err)
	}
	right := secret.Data["password"]
	for _, key := range [][]byte{[]byte("another"), right} {
		secret.Data["password"] = key
		if err := suite.live.Update(s.ctx, secret); err != nil {
			t.Fatal(err)
		}
		again := s.consumer("again", claim.Name, keeper)
		if bytes.Equal(key, right) {
			s.ready(again)
			s.prints(again, plaintext+" large")
		} else {
			s.told(again, "FailedMount", "wrong key: the password in the Secret does not open this volume")
		}
		s.remove(again)
	}

	s.remove(claim)
	s.gone(vol)
	if left := s.madeFor(volume); len(left) > 0 {
		t.Errorf("claim %s is left of the volume", left[0].Name)
	}
	s.emptied(dir)
}

func TestAnEncryptedVolumeLiesOverAnEncryptedVolume(t *testing.T) {
	t.Parallel()
	s, below, dir := encrypted(t)
	inner := s.encryptedOver("-inner", below, tarn.StepNamespace)
	claim := s.claimWith("data", once("400Mi"), ofClass(s.encryptedOver("-outer", inner, s.name)))
	pod := s.consumer("keeper", claim.Name, keeper)
	s.ready(pod)
	s.prints(pod, plaintext+" small")
	outer := s.bound(claim).Spec.VolumeName
	middle := s.madeFor(outer)
	if len(middle) != 1 || len(s.madeFor(middle[0].Spec.VolumeName)) != 1 {
		t.Fatalf("the claims %+v were made for the volume, want one that lies over another", middle)
	}
	vol := &corev1.PersistentVolume{ObjectMeta: named(outer)}
	if err := s.get(vol); err != nil || vol.Spec.NodeAffinity == nil {
		t.Errorf("the volume is for the nodes %+v (%v), want those of the lowest one", vol.Spec.NodeAffinity, err)
	}
	// Whichever server is killed, the pod reads again. The lower one takes the upper one with it.
	for _, killed := range []string{outer, middle[0].Spec.VolumeName} {
		servers := s.stepPods(tarn.StepStaging)
		at := slices.IndexFunc(servers, func(p corev1.Pod) bool {
			return p.Labels[tarn.LabelVolume] == killed && p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning
		})
		if at < 0 {
			t.Fatalf("volume %s has no server among %d staging pods", killed, len(servers))
		}
		s.killIn(&servers[at], "gocryptfs")
		s.await("pod "+servers[at].Name+" to be replaced", func() (bool, string) {
			err := s.get(servers[at].DeepCopy())
			return apierrors.IsNotFound(err), fmt.Sprint(err)
		})
		before := strings.Count(s.printed(pod), plaintext+" small")
		s.await("the volume to be read again", func() (bool, string) {
			text := s.printed(pod)
			return strings.Count(text, plaintext+" small") > before+3, text
		})
	}
	s.ask(claim, "500Mi")
	s.await("the lowest claim to grow", func() (bool, string) {
		lowest := s.madeFor(middle[0].Spec.VolumeName)[0]
		for _, server := range s.stepPods(tarn.StepStaging) {
			s.nudge(&server)
		}
		has := lowest.Status.Capacity[corev1.ResourceStorage]
		return has.Value() == 500<<20, "it has " + has.String()
	})
	vol = s.resizedTo(claim, "500Mi")
	s.prints(pod, plaintext+" large")
	s.remove(pod)
	s.remove(claim)
	s.gone(vol)
	s.emptied(dir)
}
