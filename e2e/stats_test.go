//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestTheKubeletGivesAVolumeToItsPodsGroupAndTellsHowFullItIs(t *testing.T) {
	t.Parallel()
	const mebibyte = 1 << 20
	s := begin(t, "full")
	s.create(s.provisioner(fields{
		"volumeCreation": asRequested,
		"volumeStaging": script{text: "mkdir /pav/volume && mount -t tmpfs -o size=8m,nr_inodes=32 full /pav/volume && head -c 2097152 /dev/zero > /pav/volume/data",
			privileged: true}.section(nil),
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	rest, _ := s.restCallerIfAny()
	if rest != nil {
		s.endsApps()
		s.deploys("shop", s.name, stays, "--wait=false")
	}
	claim := s.bound(s.claim("data"))
	group := int64(4242)
	pod := s.consumer("reader", claim.Name, "echo group $(stat -c %g /data/data); sleep 1d & wait", func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	})
	s.ready(pod)
	s.prints(pod, "group 4242")
	s.measured(pod, claim, map[string]float64{
		"capacity_bytes": 8 * mebibyte, "used_bytes": 2 * mebibyte, "available_bytes": 6 * mebibyte, "inodes": 32, "inodes_used": 2, "inodes_free": 30,
	}, func() (missing string) {
		if rest == nil {
			return ""
		}
		// For the volume of an application, the REST API reports it.
		if told := rest.get("/v1/apps/shop/volumes"); !strings.Contains(told, fmt.Sprintf(`"used_bytes":%d,"status":"Bound"`, 2*mebibyte)) {
			return "so much to the REST API, which answers " + told
		}
		return ""
	})
}

// measured waits until a pod's kubelet reports numbers for the volume of a claim, and further finds
// nothing missing.
func (s *scenario) measured(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim, want map[string]float64, further func() (missing string)) {
	s.t.Helper()
	const within = soon + time.Minute
	if err := s.get(pod); err != nil {
		s.t.Fatal(err)
	}
	labels := fmt.Sprintf("{namespace=%q,persistentvolumeclaim=%q} ", claim.Namespace, claim.Name)
	// The kubelet measures the volumes of a new pod within a minute, and sends no event.
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for end := time.After(within); ; {
		page, err := suite.logs.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", pod.Spec.NodeName, "proxy/metrics").DoRaw(s.ctx)
		if err != nil {
			s.t.Fatal(err)
		}
		missing := ""
		for name, number := range want {
			if line := fmt.Sprintf("kubelet_volume_stats_%s%s%v\n", name, labels, number); !bytes.Contains(page, []byte(line)) {
				missing = line
			}
		}
		if missing == "" {
			missing = further()
		}
		if missing == "" {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			s.t.Fatalf("the kubelet does not say %s", missing)
		}
	}
}
