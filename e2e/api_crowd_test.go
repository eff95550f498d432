//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

const (
	crowd  = 200 // distinct applications that are deployed at once
	rivals = 50  // deploys of one application at once
)

// crowdFile is an application without pods. The case checks the other objects, and a node has room
// for only 110 pods.
func crowdFile(image, class string) string {
	return fmt.Sprintf("[app]\nimage = %q\nreplicas = 0\n\n[app.env]\nIMAGE = %q\n\n[[volumes]]\nname = \"data\"\nmountPath = \"/data\"\nsize = \"1Gi\"\nstorageClass = %q\n", image, image, class)
}

// crowdClass is a class whose volumes need no pods: that of the embedded cluster, or a class of the
// case. Where the controllers are pods, the chart need not give them a directory.
func (s *scenario) crowdClass() string {
	s.t.Helper()
	if !inPods() {
		s.needsClasses("local-path")
		return "local-path"
	}
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	return s.class(corev1.PersistentVolumeReclaimDelete).Name
}

// all makes calls in parallel. It wants the given status for each, and fails the case otherwise.
func (c *restCaller) all(n, want int, call func(i int) (method, path, kind, body string)) {
	c.s.t.Helper()
	var wait sync.WaitGroup
	wrong := make([]string, n)
	for i := range n {
		wait.Go(func() {
			response, err := c.send(call(i))
			if err != nil {
				wrong[i] = err.Error()
				return
			}
			defer response.Body.Close()
			if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != want {
				wrong[i] = fmt.Sprintf("%s: %s %v", response.Status, text, err)
			}
		})
	}
	wait.Wait()
	for i, what := range wrong {
		if what != "" {
			c.s.t.Errorf("call %d of %d: %s, want %d", i, n, what, want)
		}
	}
}

// The case is not parallel, because its burst would delay others.
func TestTheRESTAPITakesManyDeploysAtOnceAndAllEndConsistent(t *testing.T) {
	s := begin(t, "app-crowd")
	s.step = 3 * soon
	class := s.crowdClass()
	c := s.restCaller()
	s.endsApps()
	id := func(i int) string { return fmt.Sprintf("app-%d", i) }
	began := time.Now()
	c.all(crowd, http.StatusCreated, func(i int) (string, string, string, string) {
		return http.MethodPost, "/v1/apps", "application/json", `{"id": "` + id(i) + `"}`
	})
	c.all(crowd, http.StatusAccepted, func(i int) (string, string, string, string) {
		return http.MethodPost, "/v1/apps/" + id(i) + "/deploy", "application/toml", crowdFile(id(i)+":1", class)
	})
	t.Logf("%d deploys were answered after %s", crowd, time.Since(began))
	apps := s.allReady(crowd)
	t.Logf("all of them were Ready after %s", time.Since(began))
	s.consistent(apps, class)
	for i := range crowd {
		if app := apps[id(i)]; app == nil || app.Spec.Image != id(i)+":1" {
			t.Errorf("%s ended as %+v", id(i), app)
		}
	}

	c.all(rivals, http.StatusAccepted, func(i int) (string, string, string, string) {
		return http.MethodPost, "/v1/apps/" + id(0) + "/deploy", "application/toml", crowdFile(fmt.Sprintf("rival:%d", i), class)
	})
	apps = s.allReady(crowd)
	s.consistent(apps, class)
	if image := apps[id(0)].Spec.Image; !strings.HasPrefix(image, "rival:") {
		t.Errorf("after %d more deploys %s runs %s", rivals, id(0), image)
	}
	c.keepsTheHastyBack()
}

// keepsTheHastyBack makes calls as one account, faster than allowed, until one is rejected with a
// time to wait. Other accounts need not wait.
func (c *restCaller) keepsTheHastyBack() {
	c.s.t.Helper()
	const together = 16
	over := time.Now().Add(2 * soon)
	hasty := c.as("hasty", "")
	var wait sync.WaitGroup
	var calls atomic.Int32
	var refused atomic.Pointer[string]
	for range together {
		wait.Go(func() {
			for refused.Load() == nil && time.Now().Before(over) {
				response, err := hasty.send(http.MethodGet, shop, "", "")
				if err != nil {
					c.s.t.Error(err)
					return
				}
				calls.Add(1)
				text, err := io.ReadAll(response.Body)
				response.Body.Close()
				if response.StatusCode == http.StatusNotFound && err == nil {
					continue
				}
				said := fmt.Sprintf("%d, Retry-After %s: %s %v", response.StatusCode, response.Header.Get("Retry-After"), text, err)
				refused.Store(&said)
			}
		})
	}
	wait.Wait()
	said := refused.Load()
	if said == nil {
		c.s.t.Fatalf("none of %d calls was too many", calls.Load())
	}
	c.s.t.Logf("of %d calls one was answered %s", calls.Load(), *said)
	c.s.says(*said, "429, Retry-After 1: ", `"code":"too_many_requests"`, "that was too many calls: wait and try again")
	c.get("/v1/apps")
}

// allReady waits until n applications match their last request, including their volumes. It gives
// them by id.
func (s *scenario) allReady(n int) map[string]*tarn.App {
	s.t.Helper()
	var apps map[string]*tarn.App
	look := func(from client.Reader) (bool, string) {
		var list tarn.AppList
		if err := from.List(s.ctx, &list, client.InNamespace(s.name)); err != nil {
			return false, err.Error()
		}
		apps = map[string]*tarn.App{}
		for i := range list.Items {
			app := &list.Items[i]
			if status := &app.Status; status.ObservedGeneration == app.Generation && meta.IsStatusConditionTrue(status.Conditions, tarn.ConditionReady) &&
				len(status.Volumes) == 1 && status.Volumes[0].Phase == tarn.AppVolumeBound {
				apps[app.Name] = app
			}
		}
		return len(apps) == n, fmt.Sprintf("%d are", len(apps))
	}
	s.await(fmt.Sprintf("%d applications to be Ready", n), func() (bool, string) {
		// The cache may have an earlier spec, all of whose objects exist.
		if ready, state := look(suite.cached); !ready {
			return false, state
		}
		return look(suite.live)
	})
	return apps
}

// consistent wants each application to have one Deployment, one ConfigMap and one claim that match
// it, and no other objects.
func (s *scenario) consistent(apps map[string]*tarn.App, class string) {
	s.t.Helper()
	var workloads appsv1.DeploymentList
	var configs corev1.ConfigMapList
	var claims corev1.PersistentVolumeClaimList
	for _, list := range []client.ObjectList{&workloads, &configs, &claims} {
		if err := suite.live.List(s.ctx, list, client.InNamespace(s.name), client.HasLabels{tarn.LabelApp}); err != nil {
			s.t.Fatal(err)
		}
	}
	if len(workloads.Items) != len(apps) || len(configs.Items) != len(apps) || len(claims.Items) != len(apps) {
		s.t.Errorf("%d applications have %d Deployments, %d ConfigMaps and %d claims", len(apps), len(workloads.Items), len(configs.Items), len(claims.Items))
	}
	for i := range workloads.Items {
		d := &workloads.Items[i]
		app := apps[d.Labels[tarn.LabelApp]]
		pod := d.Spec.Template.Spec
		if app == nil || !metav1.IsControlledBy(d, app) || pod.Containers[0].Image != app.Spec.Image || pod.Containers[0].Env[0].Value != app.Spec.Image ||
			len(pod.Volumes) != 1 || pod.Volumes[0].PersistentVolumeClaim.ClaimName != "paas-app-"+app.Name+"-data" {
			s.t.Errorf("Deployment %s of %v runs %+v", d.Name, d.OwnerReferences, pod)
		}
	}
	for i := range configs.Items {
		config := &configs.Items[i]
		app := apps[config.Labels[tarn.LabelApp]]
		var says struct {
			Volumes []struct{ Name, ClaimName, MountPath, StorageClass string }
		}
		err := json.Unmarshal([]byte(config.Data["volumes.json"]), &says)
		if err != nil || app == nil || !metav1.IsControlledBy(config, app) || len(says.Volumes) != 1 || says.Volumes[0].ClaimName != "paas-app-"+app.Name+"-data" || says.Volumes[0].StorageClass != class {
			s.t.Errorf("ConfigMap %s of %v says %+v (%v)", config.Name, config.OwnerReferences, says, err)
		}
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		app := apps[claim.Labels[tarn.LabelApp]]
		if app == nil || claim.Name != "paas-app-"+app.Name+"-data" || claim.Labels[tarn.LabelAppVolume] != "data" || len(claim.OwnerReferences) > 0 ||
			claim.Annotations["tarn.dev/made-for"] != string(app.UID) || claim.Status.Phase != corev1.ClaimBound {
			s.t.Errorf("claim %s of %v is %s, and says %v %v", claim.Name, claim.OwnerReferences, claim.Status.Phase, claim.Labels, claim.Annotations)
		}
	}
}
