//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// fills writes until df shows 85%, and then waits until the file system is larger.
const fills = `
shows() { df -k /data | tail -1 | awk "{print $1}"; }
i=0
until [ $(shows '$5+0') -ge 85 ]; do head -c 4194304 /dev/zero > /data/$i; sync; i=$((i+1)); done
before=$(shows '$2'); echo "full at $before"
until [ $(shows '$2') -gt $before ]; do sleep 0.2; done
[ $(shows '$5+0') -lt 80 ]; echo "it has grown"
sleep 1d & wait`

func TestAFullClaimGrowsByItselfAndOnce(t *testing.T) {
	t.Parallel()
	s := begin(t, "autogrow")
	s.needsClasses("ovh-csi-rbd")
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: s.name, Annotations: map[string]string{tarn.AnnotationAutoGrow: "at=80% by=20% max=1Gi"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("ovh-csi-rbd"),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: size("300Mi")},
		},
	}
	s.create(claim)
	claim = s.bound(claim)
	pod := s.consumer("writer", claim.Name, fills)
	s.ready(pod)
	s.prints(pod, "full at")
	s.told(claim, "AutoGrown", "from 300Mi to 360Mi", "of its file system is used, and it grows at 80%")
	s.told(claim, "FileSystemResizeRequired")
	s.nudge(pod)
	s.resizedTo(claim, "360Mi")
	s.prints(pod, "it has grown")

	// Why a claim does not grow is said where its user looks.
	wrong := client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": {"`+tarn.AnnotationAutoGrow+`": "at=80% max=lots"}}}`))
	if err := suite.live.Patch(s.ctx, claim.DeepCopy(), wrong); err != nil {
		t.Fatal(err)
	}
	s.told(claim, "AutoGrowInvalid", `max="lots" is not a size; write for example max=100Gi`)
	s.explainsClaim(claim.Name, "it does not grow by itself", `max="lots" is not a size`)
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(claim), claim); err != nil {
		t.Fatal(err)
	}
	steps := 0
	for _, e := range s.events(claim.Namespace, claim.Name) {
		if e.Reason == "AutoGrown" {
			steps++
			if e.Series != nil {
				steps += int(e.Series.Count) - 1
			}
		}
	}
	if request := claim.Spec.Resources.Requests[corev1.ResourceStorage]; steps != 1 || request.String() != "360Mi" {
		t.Errorf("it grew in %d steps to %s, want one to 360Mi", steps, request.String())
	}
}
