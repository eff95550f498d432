package bind

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"tarn.dev/tarn/internal/volume"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

type (
	claimWith  func(*corev1.PersistentVolumeClaim)
	volumeWith func(*corev1.PersistentVolume)
	classWith  func(*storagev1.StorageClass)
)

// claimOf builds a pending ReadWriteOnce claim "ns/c" with UID "u" that sets no class.
func claimOf(size string, with ...claimWith) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u", ResourceVersion: "1"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
			VolumeMode:  ptr.To(corev1.PersistentVolumeFilesystem),
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	for _, change := range with {
		change(c)
	}
	return c
}

func called(namespace, name string) claimWith {
	return func(c *corev1.PersistentVolumeClaim) { c.Namespace, c.Name = namespace, name }
}

func uid(u types.UID) claimWith { return func(c *corev1.PersistentVolumeClaim) { c.UID = u } }

func ofClass(name string) claimWith {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func names(volume string) claimWith {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = volume }
}

// noted sets annotations of a claim; one without "=" gets the value yes.
func noted(annotations ...string) claimWith {
	return func(c *corev1.PersistentVolumeClaim) { setNotes(&c.Annotations, annotations) }
}

func setNotes(on *map[string]string, annotations []string) {
	for _, a := range annotations {
		key, value, given := strings.Cut(a, "=")
		if !given {
			value = volume.AnnYes
		}
		annotate(on, key, value)
	}
}

// completed makes a claim one whose binding to a volume was completed.
func completed(volumeName string, phase corev1.PersistentVolumeClaimPhase) claimWith {
	return func(c *corev1.PersistentVolumeClaim) {
		names(volumeName)(c)
		noted(bbc, bc)(c)
		inState(phase)(c)
	}
}

const (
	bbc = volume.AnnBoundByController
	bc  = volume.AnnBindCompleted
)

func inState(phase corev1.PersistentVolumeClaimPhase) claimWith {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Status.Phase = phase
		if phase == corev1.ClaimBound {
			c.Status.AccessModes = c.Spec.AccessModes
			c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		}
	}
}

func asking(modes ...corev1.PersistentVolumeAccessMode) claimWith {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes = modes }
}

func selecting(labels map[string]string, expressions ...metav1.LabelSelectorRequirement) claimWith {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels, MatchExpressions: expressions}
	}
}

func blockClaim(c *corev1.PersistentVolumeClaim) {
	c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
}

func attributes(name string) claimWith {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &name }
}

func terminating(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }

// volumeOf builds an Available ReadWriteOnce volume without a claimRef or class.
func volumeOf(name, size string, with ...volumeWith) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			VolumeMode:                    ptr.To(corev1.PersistentVolumeFilesystem),
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example", VolumeHandle: name}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	for _, change := range with {
		change(v)
	}
	return v
}

// to makes a volume point at claim ns/NAME, with a UID unless it is empty.
func to(name string, uid types.UID) volumeWith {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "ns", Name: name, UID: uid}
	}
}

func in(phase corev1.PersistentVolumePhase) volumeWith {
	return func(v *corev1.PersistentVolume) { v.Status.Phase = phase }
}

func class(name string) volumeWith {
	return func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = name }
}

func marked(annotations ...string) volumeWith {
	return func(v *corev1.PersistentVolume) { setNotes(&v.Annotations, annotations) }
}

func labelled(key, value string) volumeWith {
	return func(v *corev1.PersistentVolume) { annotate(&v.Labels, key, value) }
}

func access(modes ...corev1.PersistentVolumeAccessMode) volumeWith {
	return func(v *corev1.PersistentVolume) { v.Spec.AccessModes = modes }
}

func block(v *corev1.PersistentVolume) { v.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }

func tuned(name string) volumeWith {
	return func(v *corev1.PersistentVolume) { v.Spec.VolumeAttributesClassName = &name }
}

func policy(p corev1.PersistentVolumeReclaimPolicy) volumeWith {
	return func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = p }
}

func deleting(v *corev1.PersistentVolume) { v.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }

// classOf builds a StorageClass of provisioner p.example that binds immediately.
func classOf(name string, with ...classWith) *storagev1.StorageClass {
	c := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(noon)}, Provisioner: "p.example",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate),
	}
	for _, change := range with {
		change(c)
	}
	return c
}

func waits(c *storagev1.StorageClass) {
	c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
}

func by(provisioner string) classWith {
	return func(c *storagev1.StorageClass) { c.Provisioner = provisioner }
}

func isDefault(since time.Duration) classWith {
	return func(c *storagev1.StorageClass) {
		c.CreationTimestamp = metav1.NewTime(noon.Add(since))
		c.Annotations = map[string]string{volume.AnnDefaultClass: "true"}
	}
}

// podOf builds a pod without a node that uses claims.
func podOf(name string, claims ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36"}}},
	}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	return pod
}

// deaf is a listener that ignores everything.
type deaf struct{}

func (deaf) claimSeen(*corev1.PersistentVolumeClaim) {}
func (deaf) volumeSeen(*corev1.PersistentVolume)     {}
func (deaf) gone(types.UID)                          {}
func (deaf) freeVolumes(string, int)                 {}
func (deaf) foreign(foreignWrite)                    {}

// booksOf stores objects in a new cache as a watch would.
func booksOf(objects ...any) *cache {
	b := newCache(false, deaf{})
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.PersistentVolumeClaim:
			b.claimChanged(o)
		case *corev1.PersistentVolume:
			b.volumeChanged(o)
		case *storagev1.StorageClass:
			b.classChanged(o)
		}
	}
	return b
}

// done is the outcome of a plan: the objects as written, and what was written and posted, in words.
type done struct {
	pair
	writes, events []string
	// notes are the texts of the events.
	notes []string
}

// carryOut applies the actions of a plan to a claim and a volume, as the API server does. A write
// of an object leaves its status; a status write leaves the rest.
func carryOut(p Plan, on pair) done {
	d := done{pair: on}
	for _, a := range p.Actions {
		switch a := a.(type) {
		case WriteVolume:
			v := a.Volume.DeepCopy()
			v.Status = d.volume.Status
			d.volume, d.writes = v, append(d.writes, "volume")
		case WriteVolumeStatus:
			v := d.volume.DeepCopy()
			v.Status = a.Volume.Status
			d.volume, d.writes = v, append(d.writes, "volume/status")
		case WriteClaim:
			c := a.Claim.DeepCopy()
			c.Status = d.claim.Status
			d.claim, d.writes = c, append(d.writes, "claim")
		case WriteClaimStatus:
			d.claim, d.writes = a.onto(d.claim).DeepCopy(), append(d.writes, "claim/status")
		case EnqueueClaim:
			d.writes = append(d.writes, "wake "+a.Key.Name)
		case Post:
			event := a.Type + " " + a.Reason
			if a.On == OnVolume {
				event += " on volume"
			}
			d.events, d.notes = append(d.events, event), append(d.notes, a.Note)
		}
	}
	return d
}

// syncClaim reconciles claim ns/c once. If it asks the API server, the answer agrees with the
// cache.
func syncClaim(t *testing.T, b *cache, pods ...string) (done, error) {
	t.Helper()
	key := claimKey{Namespace: "ns", Name: "c"}
	v, uncertain := b.readClaim(key)
	if uncertain != "" {
		t.Fatalf("volume %q is uncertain", uncertain)
	}
	if v == nil {
		return done{pair: pair{claim: b.claims[key]}}, nil
	}
	v.Pods = pods
	p := planClaim(v)
	if p.NeedsLiveRead {
		v.Asked = true
		p = planClaim(v)
	}
	return carryOut(p, pair{claim: v.Claim, volume: v.volume()}), p.Problem
}

// syncVolume reconciles a volume once. If it asks the API server, the answer is the claim live.
func syncVolume(b *cache, name string, live *corev1.PersistentVolumeClaim) done {
	v := b.readVolume(name)
	if v == nil {
		return done{}
	}
	p := planVolume(v)
	if p.NeedsLiveRead {
		v.Claim, v.Asked = live, true
		p = planVolume(v)
	}
	return carryOut(p, pair{claim: v.Claim, volume: v.Volume})
}

// bound says in which way a claim and a volume are not joined.
func (d *done) bound() string {
	c, v := d.claim, d.volume
	switch {
	case v == nil:
		return "no volume"
	case c.Spec.VolumeName != v.Name:
		return fmt.Sprintf("the claim names %q, the volume is %q", c.Spec.VolumeName, v.Name)
	case v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID || v.Spec.ClaimRef.Name != c.Name || v.Spec.ClaimRef.Namespace != c.Namespace:
		return fmt.Sprintf("the volume points at %+v", v.Spec.ClaimRef)
	case c.Status.Phase != corev1.ClaimBound || v.Status.Phase != corev1.VolumeBound:
		return fmt.Sprintf("the claim is %s, the volume %s", c.Status.Phase, v.Status.Phase)
	case c.Annotations[bc] == "":
		return "the claim is not marked as bound"
	case !slices.Equal(c.Status.AccessModes, v.Spec.AccessModes):
		return fmt.Sprintf("the claim says %v, the volume has %v", c.Status.AccessModes, v.Spec.AccessModes)
	}
	return ""
}

// capacity is the capacity in the claim's status.
func (d *done) capacity() string {
	q := d.claim.Status.Capacity[corev1.ResourceStorage]
	return q.String()
}
