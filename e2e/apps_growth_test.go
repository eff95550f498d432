//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// leastKi is the least size, in KiB, that df may report for a volume of a size in GiB. A file
// system reserves some of it.
func leastKi(gi int64) int64 { return gi << 20 / 10 * 9 }

// hasGi is shell that fails unless df reports for /data the requested size.
func hasGi(gi int64) string {
	return fmt.Sprintf("has=$(df -k /data | awk 'END {print $2}') && echo /data has $has KiB && test $has -ge %d && test $has -le %d", leastKi(gi), gi<<20)
}

// countsUp is a program whose volume of 1 GiB grows to 2 while it runs. First it fills nearly all
// the space, and fails to write more. Then it writes numbers, one a line, until it is ended. In
// parallel it waits until df reports 2 GiB, and writes what did not fit before. It prints what it
// finds.
var countsUp = `trap exit TERM
cd /data
` + hasGi(1) + ` || exit 1
head -c 1000000 /dev/urandom > old && sha256sum old > old.sum || exit 1
left=$(df -k . | awk 'END {print $4}')
fallocate -l $(((left - 40960) * 1024)) ballast || exit 1
if dd if=/dev/zero of=more bs=1M count=80 2>&1; then echo "what is too large fits"; exit 1; fi
rm more
echo "it does not fit"
grows() {
until (` + hasGi(2) + `) > size; do sleep 0.5; done
cat size
dd if=/dev/zero of=more bs=1M count=80 && sync more && sha256sum -c old.sum && echo "it fits now" && touch fits
}
grows 2>&1 &
n=0
while true; do
n=$((n+1)); echo $n >> numbers || exit 1
if [ -e fits ] && [ ! -e told ]; then
touch told
awk -v n=$n 'NR != $1 {bad = 1} END {if (!bad && NR == n) print "no number is missing"}' numbers
fi
sleep 0.1
done`

func TestAnAppsVolumeGrowsWhileItsPodWrites(t *testing.T) {
	t.Parallel()
	s := begin(t, "app-grow")
	s.step = 2 * soon // an App takes many steps to become Ready
	s.needsClasses("ovh-csi-rbd")
	app := s.app("counter")
	app.Spec = tarn.AppSpec{
		Image: "busybox:1.36", Command: []string{"sh", "-c", countsUp},
		Volumes: []tarn.AppVolume{{Name: "data", MountPath: "/data", SizeGi: 1}},
	}
	s.create(app)
	s.appReady(app)
	volume, pod := s.volumeNamed("paas-app-counter-data"), s.podOf(app)
	s.says(s.prints(pod, "it does not fit"), "No space left on device")

	// The live claim decides: the volume's size in the spec has no effect.
	if err := suite.live.Patch(s.ctx, app, client.RawPatch(types.JSONPatchType, []byte(`[{"op": "replace", "path": "/spec/volumes/0/accessMode", "value": "ReadWriteMany"}]`))); err != nil {
		t.Fatal(err)
	}
	if said := s.tarnApp(1, "app", "scale", "counter", "3"); !strings.Contains(said,
		"cannot scale to 3 replicas: volume 'data' is ReadWriteOnce (max 1 replica). Re-create the volume with accessMode 'ReadWriteMany' to scale out.") {
		t.Errorf("scaling to 3 says %q", said)
	}

	s.tarnApp(0, "volume", "resize", "counter", "data", "2", "--wait=false")
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "paas-app-counter-data"}}
	s.told(claim, "FileSystemResizeRequired")
	s.nudge(pod)
	said := s.prints(pod, "no number is missing")
	s.says(said, "old: OK", "it fits now")
	if n := strings.Count(said, "/data has "); n != 2 {
		t.Errorf("the pod printed the size of its volume %d times, want before and after:\n%s", n, said)
	}
	s.appReady(app)
	if has := app.Status.Volumes[0].Capacity; has.String() != "2Gi" {
		t.Errorf("the volume has %s, want 2Gi", has)
	}
	s.neverRestarted(pod)

	s.remove(app)
	if !s.gone(claim) || !s.gone(volume) {
		t.FailNow()
	}
}

// sharesAndCounts is a program that writes into a shared volume of 1 GiB. It prints the size that
// df reports whenever it changes. A file system mounted without project quotas limits no directory,
// and then it prints that.
var sharesAndCounts = fmt.Sprintf(`trap exit TERM
while true; do
echo here >> /data/$HOSTNAME || exit 1
options=$(awk '$2 == "/data" {print $4}' /proc/mounts)
has=$(df -k /data | awk 'END {print $2}')
case ,$options, in
*,prjquota,*|*,pquota,*)
if [ $has -ge %d ] && [ $has -le %d ]; then now="1Gi by quota"; elif [ $has -ge %d ] && [ $has -le %d ]; then now="2Gi by quota"; else now="$has KiB in spite of quotas"; fi ;;
,rw,*) now="no quotas, but $options" ;;
*) now="not to be written: $options" ;;
esac
[ "$now" = "$last" ] || echo "/data has $now"
last=$now
sleep 0.5
done`, leastKi(1), 1<<20, leastKi(2), 2<<20)

func TestASharedVolumeGrowsByTheRESTAPIUnderAllItsPods(t *testing.T) {
	t.Parallel()
	s := begin(t, "app-grow-shared")
	s.needsClasses("ovh-csi-nfs")
	app, c := s.app("board"), s.restCaller()
	c.post(http.StatusCreated, "/v1/apps", `{"id": "board"}`)
	file, err := json.Marshal(fields{
		"app":     fields{"image": "busybox:1.36", "command": []string{"sh", "-c", sharesAndCounts}, "replicas": 2},
		"volumes": []fields{{"name": "data", "mountPath": "/data", "size": "1Gi", "accessMode": "rwx"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.s.says(c.post(http.StatusAccepted, "/v1/apps/board/deploy", string(file)), `"strategy":"RollingUpdate"`)
	s.says(c.follow("/v1/apps/board/events", "settled"), `"status":"Ready"`, `"ready_replicas":2`)
	var list corev1.PodList
	if err := suite.live.List(s.ctx, &list, client.InNamespace(s.name), client.MatchingLabels{tarn.LabelApp: app.Name}); err != nil || len(list.Items) != 2 {
		t.Fatalf("there are %d pods (%v), want 2", len(list.Items), err)
	}
	pods := []*corev1.Pod{&list.Items[0], &list.Items[1]}
	// The mount options decide, not the output of df: a quota that was not set is a failure.
	held := !strings.Contains(s.prints(pods[0], "/data has "), "no quotas")
	before, after := "/data has no quotas", "/data has no quotas"
	if held {
		before, after = "/data has 1Gi by quota", "/data has 2Gi by quota"
	}
	for _, pod := range pods {
		s.prints(pod, before)
	}

	got := c.put(http.StatusOK, "/v1/apps/board/volumes/data", `{"new_size_gi": 2}`)
	if want := `{"data":{"name":"data","pvc_name":"paas-app-board-data","size_gi":2,"status":"Resizing","access_mode":"ReadWriteMany"}}`; strings.TrimSpace(got) != want {
		t.Errorf("a resize answered %s, want %s", got, want)
	}
	s.says(c.follow("/v1/apps/board/events", "settled"), `"status":"Ready"`, `"ready_replicas":2`)
	s.says(c.get("/v1/apps/board/volumes"), fmt.Sprintf(`"name":"data","pvc_name":"paas-app-board-data","size_gi":2,"capacity_bytes":%d`, 2<<30), `"status":"Bound","access_mode":"ReadWriteMany"`)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "paas-app-board-data"}}
	s.sized(s.resizedTo(claim, "2Gi"), "2Gi")
	if !held {
		t.Log("the file system of the shared folder is mounted without project quotas: nothing holds it to its size")
	}
	for _, pod := range pods {
		s.prints(pod, after)
		s.neverRestarted(pod)
	}
	s.fails(c.put(http.StatusUnprocessableEntity, "/v1/apps/board/volumes/data", `{"new_size_gi": 1}`), "invalid", "size must be strictly greater than current size (no shrink)")
}
