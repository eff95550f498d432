package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// liveReads are, by role and resource, the lines below internal/ that read one object live from the
// API server. A cache lists and watches, and needs no right to get.
var liveReads = map[string]map[string]string{
	"tarn-controller": {
		"nodes":                  "controller/pavvolume/node.go: kube.Get(ctx, r.reader, client.ObjectKey{Name: name}, &corev1.Node{})",
		"persistentvolumeclaims": "controller/pavvolume/apply.go: kube.Get(ctx, r.reader, client.ObjectKeyFromObject(claim), &corev1.PersistentVolumeClaim{})",
		"persistentvolumes":      "controller/pavvolume/apply.go: kube.Get(ctx, r.reader, client.ObjectKey{Name: v.Name}, &corev1.PersistentVolume{})",
		"persistentvolumesets":   "controller/pool/gather.go: kube.Get(ctx, from, client.ObjectKey{Name: name}, &tarnv1.PersistentVolumeSet{})",
		"pods":                   "controller/stage/restart.go: kube.Get(ctx, r.live, client.ObjectKey{Namespace: due.Namespace, Name: due.Name}, &corev1.Pod{})",
		"pavprovisioners":        "controller/pavvolume/attempt.go: kube.Get(ctx, r.reader, client.ObjectKeyFromObject(v.Provisioner), &pavv1.PavProvisioner{})",
		"storageclasses":         "controller/pool/gather.go: kube.Get(ctx, from, client.ObjectKey{Name: name}, &storagev1.StorageClass{})",
		"pavstages":              "controller/stage/apply.go: r.live.Get(ctx, client.ObjectKeyFromObject(base), fresh)",
		"pavvolumes":             "controller/pavvolume/destroy.go: kube.Get(ctx, r.reader, client.ObjectKeyFromObject(v.Record), &tarnv1.PavVolume{})",
	},
	"tarn-apps": {
		"apps":                   "controller/apps/apply.go: kube.Get(ctx, r.reader, client.ObjectKeyFromObject(v.App), &tarnv1.App{})",
		"configmaps":             "controller/apps/gather.go: kube.Get(ctx, r.reader, own, &corev1.ConfigMap{})",
		"deployments":            "controller/apps/gather.go: kube.Get(ctx, r.reader, own, &appsv1.Deployment{})",
		"persistentvolumeclaims": "controller/apps/gather.go: kube.Get(ctx, from, client.ObjectKey{Namespace: v.App.Namespace, Name: name}, &corev1.PersistentVolumeClaim{})",
		"storageclasses":         "controller/apps/gather.go: kube.Get(ctx, from, client.ObjectKey{Name: name}, &storagev1.StorageClass{})",
	},
	"tarn-bind": {
		"persistentvolumeclaims": "controller/bind/gather.go: r.api.PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})",
		"persistentvolumes":      "controller/bind/uncertain.go: r.api.PersistentVolumes().Get(ctx, name, metav1.GetOptions{})",
		"storageclasses":         "controller/bind/uncertain.go: r.classes.Get(ctx, name, metav1.GetOptions{})",
	},
	"tarn-protect": {
		"persistentvolumeclaims": "controller/protect/gather.go: kube.Get(ctx, r.live, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.PersistentVolumeClaim{})",
	},
	"tarn-node": {
		"nodes":             "node/agent.go: live.Get(ctx, client.ObjectKey{Name: a.options.NodeName}, node)",
		"pavstages":         "node/stages/gather.go: kube.Get(ctx, s.Live, client.ObjectKeyFromObject(stage), &tarnv1.PavStage{})",
		"persistentvolumes": "node/stages/volume.go: s.Live.Get(ctx, client.ObjectKey{Name: name}, volume)",
	},
	// The API has no cache.
	"tarn-api": {
		"apps":                   "app/service/gather.go: c.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: id}, app)",
		"nodes":                  "kubelet/kubelet.go: k.reader.Get(ctx, client.ObjectKey{Name: name}, node)",
		"persistentvolumeclaims": "app/service/gather.go: kube.Get(ctx, c.Client, client.ObjectKey{Namespace: app.Namespace, Name: name}, &corev1.PersistentVolumeClaim{})",
		"storageclasses":         "app/service/gather.go: kube.Get(ctx, c.Client, client.ObjectKey{Name: name}, &storagev1.StorageClass{})",
	},
}

// Markers often grant get along with list and watch, so get is the verb most often granted in vain.
func TestNoGeneratedRoleMayGetWhatNothingReadsLive(t *testing.T) {
	paths, err := filepath.Glob("rbac/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no roles: %v", err)
	}
	may := map[string]bool{}
	for _, path := range paths {
		objects, err := readFile(os.DirFS("."), path)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			role := &rbacv1.ClusterRole{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, role); err != nil {
				t.Fatal(err)
			}
			for _, rule := range role.Rules {
				for _, resource := range rule.Resources {
					if !slices.Contains(rule.Verbs, "get") {
						continue
					}
					may[role.Name+" "+resource] = true
					if liveReads[role.Name][resource] == "" {
						t.Errorf("%s may get %s: take that off the markers, or name here the line that reads one live", role.Name, resource)
					}
				}
			}
		}
	}
	for role, reads := range liveReads {
		for resource, read := range reads {
			if !may[role+" "+resource] {
				t.Errorf("%s may not get %s, and here it is said to", role, resource)
			}
			path, line, _ := strings.Cut(read, ": ")
			if text, err := os.ReadFile(filepath.Join("../internal", path)); err != nil || !strings.Contains(string(text), line) {
				t.Errorf("%s may get %s: internal/%s does not say %s (%v)", role, resource, path, line, err)
			}
		}
	}
}
