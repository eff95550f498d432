//go:build integration

package recycle

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/steppod/steppodtest"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

func TestMain(m *testing.M) { testkit.QuietMain(m) }

// world is one volume with its claim, and a stand-in for the binder, protection and the
// kubelet. The kubelet runs scrub pods, and fails as many as the test wants.
type world struct {
	testkit.World
	name string
	// vol is the volume as the test last saw it.
	vol   *corev1.PersistentVolume
	claim *corev1.PersistentVolumeClaim
	// failures is how many scrub pods are still to fail. wrongs is how often verification is
	// still to contradict the provisioner.
	failures, wrongs int
	// waits makes scrub pods wait for their image until the controller has recorded that.
	waits bool
	// unverified receives the version of a volume that a claim could draw before it was
	// scrubbed.
	unverified chan string
	// scrubbed are the UIDs of claims whose scrub pods succeeded. After that, nothing more may
	// be verified.
	scrubbed map[string]bool
	// policy is the volume's, and method is how it is to be recycled.
	policy corev1.PersistentVolumeReclaimPolicy
	method tarnv1.RecycleMethod
}

func newWorld(t *testing.T, config *rest.Config, name string, policy corev1.PersistentVolumeReclaimPolicy, method tarnv1.RecycleMethod) *world {
	t.Helper()
	w := &world{World: testkit.NewWorld(t, config), name: name, unverified: make(chan string, 1), scrubbed: map[string]bool{}, policy: policy, method: method}
	w.PodsMayRun(testNamespace)
	w.claim = testkit.Claim("default", name, "", "", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Spec.StorageClassName = name, ptr.To("")
	})
	w.Create(w.claim)
	w.vol = testkit.Volume(testkit.Record(w.claim, name, tarnv1.VolumeCreated), func(v *corev1.PersistentVolume) {
		v.ObjectMeta = metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			tarnv1.AnnotationRecycle: string(method), volume.AnnBoundByController: volume.AnnYes,
		}}
		v.Spec.PersistentVolumeReclaimPolicy = policy
		v.Spec.ClaimRef.UID = w.claim.UID
		if policy == corev1.PersistentVolumeReclaimRecycle { // Kubernetes has a recycler for this source
			v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv/" + name}}
		}
	})
	if method != tarnv1.RecycleFiles {
		w.provide()
	}
	w.Create(w.vol)
	w.Play(w.round)
	w.until("binding", phase(corev1.VolumeBound))
	return w
}

// provide makes a PavProvisioner the maker of the volume; it does Zero and Recreate itself.
func (w *world) provide() {
	w.T.Helper()
	pod := `{"podTemplate": {"metadata": {"namespace": "` + testNamespace + `"}, "spec": {"containers": [{"name": "c", "image": "scrubber"}]}}}`
	p := testkit.Provisioner(w.name, func(p *pavv1.PavProvisioner) {
		p.UID = ""
		p.Spec.VolumeRecycling, p.Spec.VolumeDeletion, p.Spec.VolumeCreation = testkit.Section(pod), testkit.Section(pod), testkit.Section(pod)
	})
	w.Create(p)
	record := testkit.Record(w.claim, w.name, tarnv1.VolumeCreated, func(r *tarnv1.PavVolume) {
		r.Name, r.UID, r.Spec.Provisioner.UID = w.name, "", p.UID
		r.Spec.RequestedMinCapacity = 1 << 30
	})
	record.Status.Handle, record.Status.Capacity = "h", 1<<30
	w.CreateWithStatus(record)
	w.vol.Annotations[tarnv1.AnnotationRecord] = string(record.UID)
}

// step ends a pod of the provisioner: first the node agent reports, then the kubelet.
func (w *world) step(pod *corev1.Pod) {
	if result := pod.Annotations[tarnv1.AnnotationResult]; result != "" {
		if phase := phaseOf(result); pod.Status.Phase != phase {
			pod.Status.Phase = phase
			_ = w.Client.Status().Update(w.Ctx, pod)
		}
		return
	}
	result := `{"succeeded": true, "handle": "h", "capacity": "1Gi"}`
	if w.failures > 0 {
		result = `{"succeeded": false, "error": "the array is busy"}`
	}
	base := pod.DeepCopy()
	pod.Annotations[tarnv1.AnnotationResult] = result
	if w.Client.Patch(w.Ctx, pod, client.MergeFrom(base)) == nil && w.failures > 0 {
		w.failures--
	}
}

func (w *world) round() error {
	vol := &corev1.PersistentVolume{}
	claims, pods := &corev1.PersistentVolumeClaimList{}, &corev1.PodList{}
	_, err := kube.Get(w.Ctx, w.Client, client.ObjectKey{Name: w.name}, vol)
	if err = errors.Join(err, w.Client.List(w.Ctx, claims), w.Client.List(w.Ctx, pods, client.InNamespace(testNamespace))); err != nil {
		return err
	}
	used := false // the provisioner's own pods do not use the scrub claim
	for i := range pods.Items {
		w.pod(&pods.Items[i])
		used = used || pods.Items[i].Labels[tarnv1.LabelRecord] == ""
	}
	for i := range claims.Items {
		w.bind(&claims.Items[i], vol, used)
	}
	w.volume(vol, claims.Items)
	return nil
}

// pod runs a scrub pod.
func (w *world) pod(pod *corev1.Pod) {
	if w.Stop(pod) {
		return
	}
	if pod.Labels[tarnv1.LabelRecord] != "" {
		w.step(pod)
		return
	}
	state := &corev1.ContainerStateTerminated{Message: `{"method": "Files", "bytes": 0, "files": 3, "sampleSHA256": "00", "seconds": 0.1}`, FinishedAt: metav1.Now()}
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return
	case w.waits && !w.remembered(pod):
		if len(pod.Status.ContainerStatuses) == 0 {
			pod.Status = steppodtest.CannotPull(pod).Status
			_ = w.Client.Status().Update(w.Ctx, pod)
		}
		return
	case w.failures > 0:
		pod.Status.Phase = corev1.PodFailed
		state.ExitCode, state.Message = 1, "tarn: something is mounted there"
	case w.wrongs > 0:
		pod.Status.Phase = corev1.PodFailed
		state.ExitCode, state.Message = 1, "tarn: the volume is not empty"
	default:
		pod.Status.Phase = corev1.PodSucceeded
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{Terminated: state}}}
	if w.Client.Status().Update(w.Ctx, pod) != nil {
		return
	}
	switch {
	case w.failures > 0:
		w.failures--
	case w.wrongs > 0:
		w.wrongs--
	default:
		w.scrubbed[pod.Annotations[annClaim]] = true
	}
}

// remembered reports whether the scrub claim records what its pod waits for.
func (w *world) remembered(pod *corev1.Pod) bool {
	claim := &corev1.PersistentVolumeClaim{}
	return w.Client.Get(w.Ctx, client.ObjectKeyFromObject(pod), claim) == nil && claim.Annotations[annWaits] == steppodtest.NoImage
}

// bind binds a claim to the volume that points at it, or removes its finalizers.
func (w *world) bind(claim *corev1.PersistentVolumeClaim, vol *corev1.PersistentVolume, used bool) {
	if !used || claim.Namespace != testNamespace {
		w.Release(claim, "")
	}
	if ref := vol.Spec.ClaimRef; ref != nil && ref.UID == claim.UID {
		w.Bind(claim, vol.Name)
	}
}

// volume gives the volume its phase, and reports a claim that could draw it too early.
func (w *world) volume(vol *corev1.PersistentVolume, claims []corev1.PersistentVolumeClaim) {
	if vol.Name == "" {
		return
	}
	if vol.Spec.ClaimRef == nil {
		if cert := volume.CertificateOf(vol); cert == nil || !w.scrubbed[cert.Claim] {
			select {
			case w.unverified <- vol.ResourceVersion:
			default:
			}
		}
	}
	w.SetVolumePhase(vol, claims)
}

// Run starts the controller with the account it has in a cluster, and returns a function that
// stops it.
func (w *world) Run(restConfig *rest.Config) (stop func()) {
	w.T.Helper()
	return testkit.Run(w.Ctx, w.T, restConfig, func(mgr ctrl.Manager) error {
		pods, err := kube.AllPods(mgr)
		if err != nil {
			return err
		}
		return Register(mgr, Options{
			Namespace: testNamespace, Image: testImage, OwnBinder: true, Pods: pods,
			Steps: &steppod.Steps{Client: mgr.GetClient(), Reader: mgr.GetAPIReader()},
		})
	})
}

// until waits until check returns an empty string for the volume.
func (w *world) until(what string, check func(*corev1.PersistentVolume) string) {
	w.T.Helper()
	w.Eventually(what, func() string {
		w.Must(w.Client.Get(w.Ctx, client.ObjectKey{Name: w.name}, w.vol))
		if wrong := check(w.vol); wrong != "" {
			return fmt.Sprintf("%s: %+v %+v %v", wrong, w.vol.Spec.ClaimRef, w.vol.Status, w.vol.Annotations)
		}
		return ""
	})
}

// phase expects the volume in a phase, with or without a claim.
func phase(want corev1.PersistentVolumePhase) func(*corev1.PersistentVolume) string {
	return func(vol *corev1.PersistentVolume) string {
		if vol.Status.Phase != want {
			return "it is not " + string(want)
		}
		return ""
	}
}
