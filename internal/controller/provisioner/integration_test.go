//go:build integration

package provisioner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// server is a real API server with the controller running on it.
type server struct {
	t      *testing.T
	ctx    context.Context
	client client.Client
}

// newServer starts the controller with the account it has in a cluster.
func newServer(t *testing.T) *server {
	t.Helper()
	restConfig := testkit.APIServer(t)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	s := &server{t: t, ctx: ctx, client: testkit.Client(t, restConfig)}
	restConfig.Impersonate.UserName = "system:serviceaccount:tarn-system:tarn-controller"
	mgr, err := kube.NewManager(restConfig, ctrl.Options{
		Scheme: kube.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&storagev1.CSIStorageCapacity{}: {Namespaces: map[string]cache.Config{tarnv1.SystemNamespace: {}}}, // it may list no others
		}},
	})
	s.must(err)
	s.must(Register(mgr, Options{}))
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// provisioner creates a provisioner that no controller has judged.
func (s *server) provisioner(name, staging string, changes ...testkit.With[*pavv1.PavProvisioner]) *pavv1.PavProvisioner {
	s.t.Helper()
	p := testkit.Provisioner(name, changes...)
	p.UID, p.Status, p.Spec.VolumeStaging = "", pavv1.PavProvisionerStatus{}, testkit.Section(staging)
	s.must(s.client.Create(s.ctx, p))
	return p
}

// eventually waits until check returns an empty string for the object. check gets gone once the
// object is deleted.
func eventually[O client.Object](s *server, o O, check func(o O, gone bool) string) {
	s.t.Helper()
	for {
		err := s.client.Get(s.ctx, client.ObjectKeyFromObject(o), o)
		if client.IgnoreNotFound(err) != nil && s.ctx.Err() == nil {
			s.t.Fatal(err)
		}
		wrong := check(o, apierrors.IsNotFound(err))
		if wrong == "" {
			return
		}
		select {
		case <-s.ctx.Done():
			s.t.Fatal(wrong)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// condition checks that a provisioner has a condition with this reason, and this text within
// its message.
func condition(kind string, status metav1.ConditionStatus, reason, part string) func(*pavv1.PavProvisioner, bool) string {
	return func(p *pavv1.PavProvisioner, gone bool) string {
		c := meta.FindStatusCondition(p.Status.Conditions, kind)
		if gone || c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, part) || c.ObservedGeneration != p.Generation {
			return fmt.Sprintf("gone: %t; want %s=%s (%s) with %q, got %+v", gone, kind, status, reason, part, p.Status)
		}
		return ""
	}
}

func isGone[O client.Object](o O, gone bool) string {
	if gone {
		return ""
	}
	return fmt.Sprintf("%T %s is still there", o, o.GetName())
}

const rightStaging = `{"podTemplate": {"spec": {"containers": [{"name": "c", "image": "busybox:1.36", "command": ["echo", "{{ handle }}"]}]}}}`

func TestAProvisionerLivesOnARealAPIServer(t *testing.T) {
	s := newServer(t)
	p := s.provisioner("accept-life", rightStaging)
	eventually(s, p, condition("Accepted", "True", ReasonAccepted, ""))
	eventually(s, p, condition("Ready", "False", ReasonNoNode, "node agent"))

	joined := node("accept-node", "accept-life", "another")
	s.must(s.client.Create(s.ctx, joined))
	eventually(s, p, condition("Ready", "True", ReasonRegistered, "1 node serves the driver"))
	if p.Status.Nodes != 1 {
		t.Errorf("got %d nodes, want 1", p.Status.Nodes)
	}

	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: p.Name}}
	s.must(s.client.Get(s.ctx, client.ObjectKeyFromObject(driver), driver))
	driver.Spec.PodInfoOnMount, driver.Labels = ptr.To(false), nil
	s.must(s.client.Update(s.ctx, driver))
	eventually(s, driver, func(d *storagev1.CSIDriver, gone bool) string {
		if gone || !*d.Spec.PodInfoOnMount || d.Labels[tarnv1.LabelProvisioner] != p.Name {
			return fmt.Sprintf("the driver has not been mended: %+v", d)
		}
		return ""
	})
	old := driver.UID
	s.must(s.client.Delete(s.ctx, driver))
	eventually(s, driver, func(d *storagev1.CSIDriver, gone bool) string {
		if gone || d.UID == old {
			return "the driver has not been made again"
		}
		return ""
	})

	s.must(s.client.Delete(s.ctx, joined))
	eventually(s, p, condition("Ready", "False", ReasonNoNode, ""))
	s.must(s.client.Delete(s.ctx, p))
	eventually(s, p, isGone)
	eventually(s, driver, isGone)
}

func TestADriverThatCannotBeMendedIsMadeAnew(t *testing.T) {
	s := newServer(t)
	d := wantDriver(slow(func(p *pavv1.PavProvisioner) { p.Name = "accept-anew" }))
	d.OwnerReferences, d.Spec.AttachRequired = nil, ptr.To(true)
	s.must(s.client.Create(s.ctx, d))
	p := s.provisioner("accept-anew", rightStaging)
	eventually(s, d, func(d *storagev1.CSIDriver, gone bool) string {
		if gone || *d.Spec.AttachRequired || !ownedBy(d, p) {
			return fmt.Sprintf("the driver is %+v", d)
		}
		return ""
	})
	s.must(s.client.Delete(s.ctx, p))
	eventually(s, p, isGone)
}

func TestABrokenTemplateIsNamedByConditionAndEvent(t *testing.T) {
	s := newServer(t)
	p := s.provisioner("accept-broken", `{"podTemplate": {"spec": "line one\n{% if %}"}}`)
	const where = "spec.volumeStaging.podTemplate.spec: line 2, column"
	eventually(s, p, condition("Accepted", "False", ReasonTemplateInvalid, where))
	eventually(s, p, func(p *pavv1.PavProvisioner, _ bool) string {
		var list eventsv1.EventList
		s.must(s.client.List(s.ctx, &list))
		if slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Regarding.UID == p.UID && e.Reason == ReasonTemplateInvalid && strings.Contains(e.Note, where)
		}) {
			return ""
		}
		return "no Event tells of it"
	})
	p.Spec.VolumeStaging = testkit.Section(rightStaging)
	s.must(s.client.Update(s.ctx, p))
	eventually(s, p, condition("Accepted", "True", ReasonAccepted, ""))
	s.must(s.client.Delete(s.ctx, p))
	eventually(s, p, isGone)
}

func TestEveryBrokenTemplateIsNamed(t *testing.T) {
	s := newServer(t)
	p := s.provisioner("accept-all-broken", `{"podTemplate": {"metadata": {"labels": {"a": "{{ right }}", "b": "{{ 1 + }}"}}, "spec": "line one\n{% if %}{% endif %}"}}`, func(p *pavv1.PavProvisioner) {
		p.Spec.ProvisioningModes = []pavv1.ProvisioningMode{pavv1.ModeDynamic}
		p.Spec.VolumeCreation = testkit.Section(`{"handle": "{{ right }}", "capacity": "{{ requestedMinCapacity }}\n\n  {{ | }}"}`)
		p.Spec.VolumeDeletion = testkit.Section(`"{% for %}{% endfor %}"`)
	})
	eventually(s, p, func(p *pavv1.PavProvisioner, gone bool) string {
		for _, where := range []string{
			"spec.volumeCreation.capacity: line 3, column 6: ",
			"spec.volumeDeletion: line 1, column 8: ",
			"spec.volumeStaging.podTemplate.metadata.labels.b: line 1, column 8: ",
			"spec.volumeStaging.podTemplate.spec: line 2, column 7: ",
		} {
			if wrong := condition("Accepted", "False", ReasonTemplateInvalid, where)(p, gone); wrong != "" {
				return wrong
			}
		}
		if c := meta.FindStatusCondition(p.Status.Conditions, pavv1.ConditionAccepted); strings.Count(c.Message, ": line ") != 4 {
			return "it names others too: " + c.Message
		}
		return ""
	})
	s.must(s.client.Delete(s.ctx, p))
	eventually(s, p, isGone)
}

func TestAProvisionerInUseStaysUntilItsLastUserIsGone(t *testing.T) {
	s := newServer(t)
	p := s.provisioner("accept-used", rightStaging)
	eventually(s, p, condition("Accepted", "True", ReasonAccepted, ""))
	record := testkit.Record(testkit.Claim("default", "c", "accept-used", p.Name), p.Name, "")
	record.UID, record.Finalizers, record.Spec.Provisioner.UID = "", nil, p.UID
	s.must(s.client.Create(s.ctx, record))
	record.Status.Phase = tarnv1.VolumeCreating
	s.must(s.client.Status().Update(s.ctx, record))
	stage := &tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{Name: "accept-used"}, Spec: tarnv1.PavStageSpec{
		Provisioner: record.Spec.Provisioner, VolumeName: record.Name, VolumeUID: "u", NodeName: "n",
	}}
	s.must(s.client.Create(s.ctx, stage))

	s.must(s.client.Delete(s.ctx, p))
	eventually(s, p, condition("Accepted", "False", ReasonDeleting, "PavVolume pvc-accept-used (Creating), PavStage accept-used"))
	s.must(s.client.Delete(s.ctx, record))
	eventually(s, p, condition("Accepted", "False", ReasonDeleting, "waiting for the deletion of PavStage accept-used"))
	s.must(s.client.Delete(s.ctx, stage))
	eventually(s, p, isGone)
}

func TestCapacitiesExistForNodesAndClassesOnARealAPIServer(t *testing.T) {
	s := newServer(t)
	s.must(client.IgnoreAlreadyExists(s.client.Create(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tarnv1.SystemNamespace}})))
	machine, gold := machine("accept-n1", "accept-n1"), class("accept-gold", "accept-room", late, "/gold")
	s.must(s.client.Create(s.ctx, machine))
	s.must(s.client.Create(s.ctx, gold))
	t.Cleanup(func() {
		_, _ = s.client.Delete(context.Background(), gold), s.client.Delete(context.Background(), machine)
	})
	p := s.provisioner("accept-room", rightStaging, func(p *pavv1.PavProvisioner) {
		p.Spec.Topology, p.Spec.NodeCapacity = pavv1.TopologyNode, &pavv1.NodeCapacity{Path: "{{ params.folder }}", Reserve: "1Gi"}
	})
	one := room{class: gold.Name, node: machine.Name, hostname: machine.Name}.object(p)
	there := func(c *storagev1.CSIStorageCapacity, gone bool) string {
		if gone || c.StorageClassName != gold.Name || c.Annotations[tarnv1.AnnotationCapacityPath] != "/gold" || c.Annotations[tarnv1.AnnotationCapacityReserve] != "1Gi" {
			return fmt.Sprintf("the capacity (gone: %t) is %+v", gone, c)
		}
		return ""
	}
	eventually(s, one, there)
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: p.Name}}
	says := func(want bool) func(*storagev1.CSIDriver, bool) string {
		return func(d *storagev1.CSIDriver, gone bool) string {
			if gone || ptr.Deref(d.Spec.StorageCapacity, false) != want {
				return fmt.Sprintf("the driver (gone: %t) is %+v, want storageCapacity %t", gone, d.Spec, want)
			}
			return ""
		}
	}
	eventually(s, driver, says(true))

	// The agent's write is kept, and a deleted object comes back.
	measured := one.DeepCopy()
	measured.Capacity = resource.NewQuantity(7, resource.BinarySI)
	s.must(s.client.Patch(s.ctx, measured, client.MergeFrom(one)))
	s.must(s.client.Delete(s.ctx, one))
	old := one.UID
	eventually(s, one, func(c *storagev1.CSIStorageCapacity, gone bool) string {
		if gone || c.UID == old {
			return "it has not been made again"
		}
		return there(c, gone)
	})
	s.must(s.client.Delete(s.ctx, gold))
	eventually(s, one, isGone)
	s.must(s.client.Create(s.ctx, class(gold.Name, p.Name, late, "/gold")))
	eventually(s, one, there)
	s.must(s.client.Get(s.ctx, client.ObjectKeyFromObject(p), p))
	without := p.DeepCopy()
	without.Spec.NodeCapacity = nil
	s.must(s.client.Patch(s.ctx, without, client.MergeFrom(p)))
	eventually(s, one, isGone)
	eventually(s, driver, says(false))
	s.must(s.client.Delete(s.ctx, p))
	eventually(s, p, isGone)
}
