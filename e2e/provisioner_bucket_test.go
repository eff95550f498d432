//go:build e2e

package e2e

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// fillsABucket is a script that does in a volume what programs do with files.
const fillsABucket = `
echo one > /data/a; mv /data/a /data/b; echo two >> /data/b
mkdir /data/all; for i in $(seq 200); do echo $i > /data/all/$i; done
test $(ls /data/all | wc -l) = 200
echo "size $(df -Pk /data | awk 'NR == 2 {print $2}')"
echo filled
`

// closesFiles is a script that prints the number of each file that it has written and closed. It
// ends some files after its volume was lost and has come back. Then it reads those from before, when
// they are uploaded, and before the server lists them again.
const closesFiles = `
mkdir /data/load; i=0; after=0; lost=
until [ $after -ge 20 ]; do
	i=$((i+1)); echo "content of $i" > /tmp/file
	if cp /tmp/file /data/load/$i 2> /dev/null; then
		echo "closed $i"; [ -z "$lost" ] || after=$((after+1))
	else
		[ "$lost" ] || { echo "lost at $i"; lost=$i; }; sleep 0.1
	fi
done
sleep 3
for n in $(seq $((lost-1))); do [ "$(cat /data/load/$n)" = "content of $n" ] || echo "changed $n"; done
echo all closed
`

// deletesContents lets the deletion of the class' volumes destroy what they contain.
func deletesContents(parameters map[string]string) map[string]string {
	parameters["deleteContents"] = "true"
	return parameters
}

// emptyLast empties what rclone knows of the file in a directory that it has written last, as a kill
// in the moment of that write does.
func (s *scenario) emptyLast(dir string) {
	s.t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		s.t.Fatal(err)
	}
	var last fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && (last == nil || info.ModTime().After(last.ModTime())) {
			last = info
		}
	}
	if last == nil {
		s.t.Fatalf("%s is empty", dir)
	}
	if err := os.Truncate(filepath.Join(dir, last.Name()), 0); err != nil {
		s.t.Fatal(err)
	}
}

// bucketOf gives the bucket, or the prefix of one, of a claim's volume.
func (s *scenario) bucketOf(claim *corev1.PersistentVolumeClaim) string {
	s.t.Helper()
	vol := s.volumeOf(claim)
	return vol.Spec.CSI.VolumeHandle
}

func TestABucketServesAClaimAndLosesNoClosedFileWhenItsServerIsKilled(t *testing.T) {
	t.Parallel()
	parameters, object := s3InMemory(t)
	s := onTheShelfWith(t, "bucket", deletesContents(parameters))
	refusing := s.classWith("-refusing", s.name, func(class *storagev1.StorageClass) {
		class.Parameters = map[string]string{"size": "unlimited", "endpoint": parameters["endpoint"], "secret": parameters["secret"]}
	})
	kept := s.claimWith("kept", ofClass(refusing))
	t.Cleanup(func() { object(http.MethodDelete, "pvc-"+string(kept.UID)+"/file") }) // or else the case could not end after a failure
	writer := s.consumer("writer", "kept", "echo kept > /data/file")
	claim := s.bound(s.claim("data"))
	bucket := s.bucketOf(claim)
	pod := s.consumer("filler", claim.Name, fillsABucket+closesFiles+stays)
	s.ready(pod)
	if text := s.prints(pod, "filled"); !strings.Contains(text, "size 1024\n") {
		t.Errorf("the pod said %q, want the size of the claim in KiB", text)
	}
	s.prints(pod, "closed 30")
	staging := s.stepPods(tarn.StepStaging)
	s.keepsItsSecret(staging, s.volumeOf(claim))
	for i := range staging {
		if strings.Contains(fmt.Sprint(staging[i].Spec.Containers[0].Args), bucket) {
			s.emptyLast("/var/lib/tarn/bucket/" + claim.Spec.VolumeName + "/vfsMeta/bucket/" + bucket + "/load")
			s.killIn(&staging[i], "rclone")
		}
	}
	text := s.prints(pod, "all closed")
	if !strings.Contains(text, "lost at") {
		t.Errorf("the server was killed and the pod has not noticed: %s", text)
	}
	if strings.Contains(text, "changed ") {
		t.Errorf("a file that was closed before the kill has another content: %s", text)
	}
	s.neverRestarted(pod)

	// The pod is gone only after all is uploaded.
	s.remove(pod)
	want := map[string]string{"/b": "one\ntwo\n", "/all/1": "1\n", "/all/200": "200\n"}
	for line := range strings.Lines(text) {
		if n, closed := strings.CutPrefix(strings.TrimSpace(line), "closed "); closed {
			want["/load/"+n] = "content of " + n + "\n"
		}
	}
	for key, content := range want {
		if status, got := object(http.MethodGet, bucket+key); status != http.StatusOK || got != content {
			t.Errorf("the server has %s with status %d and content %q, want %q", key, status, got, content)
		}
	}
	s.remove(claim)
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
	if status, _ := object(http.MethodGet, bucket); status != http.StatusNotFound {
		t.Errorf("the bucket of a volume that is gone has status %d, want %d", status, http.StatusNotFound)
	}

	// Without the parameter only an empty bucket is deleted.
	s.succeeded(writer)
	kept = s.bound(kept)
	bucket = s.bucketOf(kept)
	vol := s.volumeOf(kept)
	s.remove(writer)
	s.remove(kept)
	s.told(vol, "VolumeFailedDelete", bucket+" is not empty", "deleteContents")
	if status, got := object(http.MethodDelete, bucket+"/file"); status != http.StatusNoContent {
		t.Fatalf("deleting the object has status %d: %s", status, got)
	}
	s.gone(vol)
}

func TestAPrefixOfABucketIsDeletedAloneAndUploadsWhenItsServerIsBack(t *testing.T) {
	t.Parallel()
	server, dir, parameters := versitygw(t)
	parameters["bucket"] = "shared"
	if err := os.MkdirAll(filepath.Join(dir, "shared", "others"), 0o777); err != nil {
		t.Fatal(err)
	}
	s := onTheShelfWith(t, "bucket", deletesContents(parameters))
	claim := s.bound(s.claim("data"))
	prefix := s.bucketOf(claim)
	if prefix != "shared/pvc-"+string(claim.UID) {
		t.Errorf("the volume is %s", prefix)
	}
	pod := s.consumer("writer", claim.Name, "test -z \"$(ls -A /data)\"; echo before > /data/file; until test -e /data/go; do sleep 0.1; done; for i in 1 2 3; do echo $i > /data/$i; done; echo written; "+stays)
	s.ready(pod)
	s.await("the file to be uploaded", func() (bool, string) {
		text, err := os.ReadFile(filepath.Join(dir, prefix, "file"))
		return string(text) == "before\n", fmt.Sprint(err)
	})
	server.stop()
	s.kubectl("exec", "-n", s.name, pod.Name, "--", "sh", "-c", "echo again >> /data/file; touch /data/go")
	s.prints(pod, "written")
	s.delete(pod)
	stage := s.stageOf("unstaging", func(g *tarn.PavStage) bool { return true })
	s.told(stage, "UnstagingFailed", "files are not uploaded, and stay on the node until they are", "connection refused")
	server.start()
	s.step = 2 * soon // the pause between two attempts has grown meanwhile
	s.gone(pod)
	for name, want := range map[string]string{"file": "before\nagain\n", "1": "1\n", "3": "3\n"} {
		if text, err := os.ReadFile(filepath.Join(dir, prefix, name)); string(text) != want {
			t.Errorf("the server has %q in %s (%v), want %q", text, name, err, want)
		}
	}
	s.remove(claim)
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
	// The server keeps a directory of its own there.
	if left, err := filepath.Glob(filepath.Join(dir, "shared", "[^.]*")); err != nil || len(left) != 1 || filepath.Base(left[0]) != "others" {
		t.Errorf("the bucket contains %q (%v), want others", left, err)
	}
}

func TestABucketOfGoogleCloudStorageServesAClaim(t *testing.T) {
	t.Parallel()
	dir, parameters := fakeGCS(t)
	s := onTheShelfWith(t, "bucket", deletesContents(parameters))
	claim := s.bound(s.claim("data"))
	bucket := s.bucketOf(claim)
	pod := s.consumer("filler", claim.Name, fillsABucket+stays)
	s.ready(pod)
	s.prints(pod, "filled")
	s.remove(pod)
	for name, want := range map[string]string{"b": "one\ntwo\n", "all/200": "200\n"} {
		if text, err := os.ReadFile(filepath.Join(dir, bucket, name)); string(text) != want {
			t.Errorf("the server has %q in %s (%v), want %q", text, name, err, want)
		}
	}
	s.remove(claim)
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
	if _, err := os.Stat(filepath.Join(dir, bucket)); err == nil {
		t.Errorf("the bucket of a volume that is gone still exists")
	}
}

func TestABucketRejectsWhatItCannotHold(t *testing.T) {
	t.Parallel()
	s := onTheShelfWith(t, "bucket", map[string]string{"endpoint": "http://127.0.0.1:1"})
	s.told(s.claimWith("limited", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.Resources.Limits = size("4Mi") }),
		"ProvisioningFailed", "a bucket has no quota", "spec.resources.limits.storage")
	silent := s.classWith("-silent", s.name)
	s.told(s.claimWith("sized", ofClass(silent)), "ProvisioningFailed", "a bucket has no quota", "size: unlimited")
}
