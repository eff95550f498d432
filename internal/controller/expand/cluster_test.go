//go:build integration

package expand

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/steppod/steppodtest"
	"tarn.dev/tarn/internal/testkit"
)

func TestMain(m *testing.M) { testkit.QuietMain(m) }

// cluster is one bound claim with its volume and record. It also fakes the kubelet, which runs
// expansion pods and does the nodes' part.
type cluster struct {
	testkit.World
	growth  growth
	name    string
	claim   *corev1.PersistentVolumeClaim
	record  *tarnv1.PavVolume
	kubelet *steppodtest.Kubelet
	clock   testkit.PushedClock

	mu sync.Mutex
	// failures is how many pods will still fail.
	failures int
}

func newCluster(t *testing.T, config *rest.Config, name string, g growth) *cluster {
	t.Helper()
	c := &cluster{World: testkit.NewWorld(t, config), growth: g, name: name, failures: g.failures}
	c.PodsMayRun("default")
	p := c.makeProvisioner()
	c.Must(c.Client.Create(c.Ctx, testkit.Class(name, func(class *storagev1.StorageClass) { class.AllowVolumeExpansion = ptr.To(true) })))
	c.makeVolume(p)
	c.kubelet = &steppodtest.Kubelet{Provisioner: name, Client: c.Client, Ends: c.ends}
	c.kubelet.Start(c.Ctx, t) // Play ends the context
	c.Play(c.round)
	return c
}

func (c *cluster) makeProvisioner() *pavv1.PavProvisioner {
	c.T.Helper()
	const pod = `: {"spec": {"containers": [{"name": "c", "image": "i", "args": ["{{ newCapacity }}"]}]}}`
	p := testkit.Provisioner(c.name, func(p *pavv1.PavProvisioner) {
		section := `{"podTemplate"` + pod
		if c.growth.onNodes {
			section += `, "nodePodTemplate"` + pod
		}
		p.UID, p.Spec.VolumeExpansion = "", testkit.Section(section+"}")
		if c.growth.backed {
			p.Spec.Claims = []pavv1.VolumeClaim{{Name: "backing", Template: testkit.Section(`{"spec": {"storageClassName": "` + c.name + `"}}`)}}
		}
	})
	status := p.Status
	c.Must(c.Client.Create(c.Ctx, p))
	p.Status = status
	p.Status.Conditions[0].ObservedGeneration, p.Status.Conditions[0].LastTransitionTime = p.Generation, metav1.Now()
	c.Must(c.Client.Status().Update(c.Ctx, p))
	return p
}

// makeVolume creates claim, record and volume as they are after the binding.
func (c *cluster) makeVolume(p *pavv1.PavProvisioner) {
	c.T.Helper()
	c.claim = testkit.Claim("default", c.name, "", c.name)
	c.Must(c.Client.Create(c.Ctx, c.claim))
	c.record = testkit.Record(c.claim, c.name, tarnv1.VolumeCreated, func(r *tarnv1.PavVolume) { r.UID, r.Spec.Provisioner.UID = "", p.UID })
	status := c.record.Status
	c.Must(c.Client.Create(c.Ctx, c.record))
	status.Handle, status.Capacity = "handle", 1<<30
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionTrue, Reason: "Provisioned"})
	c.record.Status = status
	c.Must(c.Client.Status().Update(c.Ctx, c.record))
	if c.growth.backed {
		c.makeBacking()
	}
	c.Must(c.Client.Create(c.Ctx, testkit.Volume(c.record, func(v *corev1.PersistentVolume) { v.UID = "" })))
	c.claim.Spec.VolumeName = c.record.Name
	c.Must(c.Client.Update(c.Ctx, c.claim))
	c.claim.Status.Phase, c.claim.Status.Capacity = corev1.ClaimBound, corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	c.Must(c.Client.Status().Update(c.Ctx, c.claim))
}

// makeBacking makes the claim that the volume lies over.
func (c *cluster) makeBacking() {
	c.T.Helper()
	backing := testkit.Claim("default", steppod.ClaimName(c.record.Name, "backing"), "", c.name)
	backing.Labels = map[string]string{tarnv1.LabelRecord: string(c.record.UID), tarnv1.LabelVolume: c.record.Name}
	backing.Spec.VolumeName = "other"
	c.Must(c.Client.Create(c.Ctx, backing))
	backing.Status.Phase, backing.Status.Capacity = corev1.ClaimBound, corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	c.Must(c.Client.Status().Update(c.Ctx, backing))
	c.record.Status.Claims = []tarnv1.MadeClaim{{Namespace: backing.Namespace, Name: backing.Name}}
	c.Must(c.Client.Status().Update(c.Ctx, c.record))
}

// growBacking acts as the driver of the claim that the volume lies over.
func (c *cluster) growBacking() {
	backing := &corev1.PersistentVolumeClaim{}
	if c.Client.Get(c.Ctx, client.ObjectKey{Namespace: "default", Name: steppod.ClaimName(c.record.Name, "backing")}, backing) != nil {
		return
	}
	if backing.Status.Capacity.Storage().Cmp(*backing.Spec.Resources.Requests.Storage()) < 0 {
		backing.Status.Capacity[corev1.ResourceStorage] = *backing.Spec.Resources.Requests.Storage()
		_ = c.Client.Status().Update(c.Ctx, backing)
	}
}

// Run starts the controller with the account it has in a cluster.
func (c *cluster) Run(restConfig *rest.Config) (stop func()) {
	c.T.Helper()
	return testkit.Run(c.Ctx, c.T, restConfig, func(mgr ctrl.Manager) error {
		return Register(mgr, Options{Steps: &steppod.Steps{Namespaces: steppod.Namespaces{"default"}, Client: mgr.GetClient(), Reader: mgr.GetAPIReader()}, Clock: &c.clock})
	})
}

// sight is what exists of a growth.
type sight struct {
	claim  *corev1.PersistentVolumeClaim
	record *tarnv1.PavVolume
	volume *corev1.PersistentVolume
	pods   []corev1.Pod
}

// see reads live.
func (c *cluster) see() (sight, error) {
	claim, record, vol, pods := &corev1.PersistentVolumeClaim{}, &tarnv1.PavVolume{}, &corev1.PersistentVolume{}, &corev1.PodList{}
	key := client.ObjectKey{Name: c.record.Name}
	err := errors.Join(
		c.Client.Get(c.Ctx, client.ObjectKeyFromObject(c.claim), claim), c.Client.Get(c.Ctx, key, record), c.Client.Get(c.Ctx, key, vol),
		c.Client.List(c.Ctx, pods, client.InNamespace(c.claim.Namespace), client.MatchingLabels{tarnv1.LabelProvisioner: c.name}))
	return sight{claim, record, vol, pods.Items}, err
}

// ask makes the claim request a size.
func (c *cluster) ask(size string) {
	c.T.Helper()
	body := fmt.Sprintf(`{"spec": {"resources": {"requests": {"storage": %q}}}}`, size)
	c.Must(c.Client.Patch(c.Ctx, c.claim.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(body))))
}

// ends is the result of an expansion pod. Pods for the first requested size fail.
func (c *cluster) ends(pod *corev1.Pod) steppodtest.End {
	if c.growth.backed {
		backing := &corev1.PersistentVolumeClaim{}
		c.Must(c.Client.Get(c.Ctx, client.ObjectKey{Namespace: "default", Name: steppod.ClaimName(c.record.Name, "backing")}, backing))
		if has := backing.Status.Capacity.Storage(); has.Value() < c.record.Spec.RequestedMinCapacity*2 {
			c.T.Errorf("an expansion pod runs while the claim below has %s", has)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first := ptr.To(resource.MustParse(c.growth.asks[0])).Value()
	if c.failures > 0 && strings.Join(pod.Spec.Containers[0].Args, "") == fmt.Sprint(first) {
		c.failures--
		return steppodtest.End{Fails: true, Result: tarnv1.PodResult{Error: "the shelf is too short"}}
	}
	return steppodtest.End{}
}

// round removes pods that have ended and does the nodes' part. If only one size is requested, it
// sets the clock to the next attempt. The next round retries what the API server rejects.
func (c *cluster) round() error {
	s, err := c.see()
	if err != nil {
		return err
	}
	for i := range s.pods {
		if s.pods[i].DeletionTimestamp != nil && steppod.Ended(&s.pods[i]) {
			_ = c.Client.Delete(c.Ctx, &s.pods[i], client.GracePeriodSeconds(0))
		}
	}
	if c.growth.backed {
		c.growBacking()
	}
	if statusOf(s.claim) == corev1.PersistentVolumeClaimNodeResizePending {
		c.resizeOnNode(s.claim)
	}
	if j := s.record.Status.Expansion; len(c.growth.asks) == 1 && j != nil && j.NextAttemptTime != nil && c.clock.PushTo(j.NextAttemptTime.Time) {
		body := `{"metadata": {"annotations": {"looked": "` + j.NextAttemptTime.Format(time.RFC3339) + `"}}}`
		_ = c.Client.Patch(c.Ctx, s.record, client.RawPatch("application/merge-patch+json", []byte(body)))
	}
	return nil
}

// resizeOnNode does the kubelet's part, as in Kubernetes' protocol.
func (c *cluster) resizeOnNode(claim *corev1.PersistentVolumeClaim) {
	size := claim.Status.AllocatedResources[corev1.ResourceStorage]
	if size.String() == c.growth.tooMuch {
		setStatus(claim, corev1.PersistentVolumeClaimNodeResizeInfeasible)
		say(claim, corev1.PersistentVolumeClaimNodeResizeError, "", "no room on this node", time.Now())
	} else {
		claim.Status.Capacity[corev1.ResourceStorage] = size
		claim.Status.AllocatedResourceStatuses, claim.Status.Conditions = nil, nil
	}
	_ = c.Client.Status().Update(c.Ctx, claim)
}
