package kube

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

const (
	// poolParts is how many different parts of a kind are remembered for sharing: many more than a
	// cluster has classes and sizes. A full pool is emptied. Objects that already share a part keep
	// it.
	poolParts = 1024
	// longestPart is the length in bytes up to which a part is remembered. A longer part contains
	// something that no other object has.
	longestPart = 2048
)

// Sharing makes the objects of a cache share parts that thousands of them have in common: sizes,
// classes, access modes, annotations. A map of one quantity alone takes 650 bytes: a bound claim
// has two and its volume a third. No part may be changed in place, like any object of a cache. It
// is safe for concurrent use.
type Sharing struct {
	mu        sync.Mutex
	texts     pool[string]
	pointers  pool[*string]
	modes     pool[*corev1.PersistentVolumeMode]
	access    pool[[]corev1.PersistentVolumeAccessMode]
	lists     pool[[]string]
	maps      pool[map[string]string]
	resources pool[corev1.ResourceList]
	bytes     pool[[]byte]
}

// Transforms are the transform functions for a cache of claims, volumes and records. They drop
// managedFields, which Tarn does not read.
func (s *Sharing) Transforms() map[client.Object]func(any) (any, error) {
	return map[client.Object]func(any) (any, error){
		&corev1.PersistentVolumeClaim{}: transform(s, s.claim),
		&corev1.PersistentVolume{}:      transform(s, s.volume),
		&tarnv1.PavVolume{}:             transform(s, s.record),
	}
}

func transform[T client.Object](s *Sharing, share func(T)) func(any) (any, error) {
	return func(object any) (any, error) {
		if o, ok := object.(T); ok {
			o.SetManagedFields(nil)
			s.mu.Lock()
			defer s.mu.Unlock()
			share(o)
		}
		return object, nil
	}
}

func (s *Sharing) claim(c *corev1.PersistentVolumeClaim) {
	c.Namespace = s.texts.same(c.Namespace, c.Namespace)
	c.Labels, c.Annotations, c.Finalizers = s.words(c.Labels), s.words(c.Annotations), s.list(c.Finalizers)
	c.Spec.AccessModes, c.Status.AccessModes = s.accessModes(c.Spec.AccessModes), s.accessModes(c.Status.AccessModes)
	c.Spec.Resources.Requests, c.Spec.Resources.Limits = s.sizes(c.Spec.Resources.Requests), s.sizes(c.Spec.Resources.Limits)
	c.Status.Capacity, c.Status.AllocatedResources = s.sizes(c.Status.Capacity), s.sizes(c.Status.AllocatedResources)
	if class := c.Spec.StorageClassName; class != nil {
		c.Spec.StorageClassName = s.pointers.same(*class, class)
	}
	c.Spec.VolumeMode = s.mode(c.Spec.VolumeMode)
}

// volume leaves the annotations alone, because they contain the UID of its record.
func (s *Sharing) volume(v *corev1.PersistentVolume) {
	v.Labels, v.Finalizers = s.words(v.Labels), s.list(v.Finalizers)
	v.Spec.Capacity = s.sizes(v.Spec.Capacity)
	v.Spec.AccessModes = s.accessModes(v.Spec.AccessModes)
	v.Spec.StorageClassName = s.texts.same(v.Spec.StorageClassName, v.Spec.StorageClassName)
	v.Spec.VolumeMode = s.mode(v.Spec.VolumeMode)
	if source := v.Spec.CSI; source != nil {
		source.Driver = s.texts.same(source.Driver, source.Driver)
		source.VolumeAttributes = s.words(source.VolumeAttributes)
	}
	if ref := v.Spec.ClaimRef; ref != nil {
		ref.Kind = s.texts.same(ref.Kind, ref.Kind)
		ref.APIVersion = s.texts.same(ref.APIVersion, ref.APIVersion)
		ref.Namespace = s.texts.same(ref.Namespace, ref.Namespace)
	}
}

func (s *Sharing) record(r *tarnv1.PavVolume) {
	r.Labels, r.Finalizers = s.words(r.Labels), s.list(r.Finalizers)
	r.Spec.AccessModes = s.accessModes(r.Spec.AccessModes)
	r.Spec.Claim.Namespace = s.texts.same(r.Spec.Claim.Namespace, r.Spec.Claim.Namespace)
	r.Spec.Provisioner.Name = s.texts.same(r.Spec.Provisioner.Name, r.Spec.Provisioner.Name)
	r.Spec.ClassSnapshot.Raw = s.bytes.same(string(r.Spec.ClassSnapshot.Raw), r.Spec.ClassSnapshot.Raw)
	r.Status.PodNamespace = s.texts.same(r.Status.PodNamespace, r.Status.PodNamespace)
}

func (s *Sharing) words(m map[string]string) map[string]string {
	if len(m) == 0 {
		return m
	}
	var key text
	for _, name := range slices.Sorted(maps.Keys(m)) {
		key.add(name)
		key.add(m[name])
	}
	return s.maps.same(key.String(), m)
}

func (s *Sharing) list(l []string) []string {
	var key text
	for _, entry := range l {
		key.add(entry)
	}
	return s.lists.same(key.String(), l)
}

func (s *Sharing) accessModes(l []corev1.PersistentVolumeAccessMode) []corev1.PersistentVolumeAccessMode {
	var key text
	for _, mode := range l {
		key.add(string(mode))
	}
	return s.access.same(key.String(), l)
}

func (s *Sharing) mode(m *corev1.PersistentVolumeMode) *corev1.PersistentVolumeMode {
	if m == nil {
		return nil
	}
	return s.modes.same(string(*m), m)
}

func (s *Sharing) sizes(l corev1.ResourceList) corev1.ResourceList {
	if len(l) == 0 {
		return l
	}
	var key text
	for _, name := range slices.Sorted(maps.Keys(l)) {
		quantity := l[name]
		key.add(string(name))
		key.add(quantity.String())
	}
	return s.resources.same(key.String(), l)
}

// text is the key of a part that is made of words. Each word has its length before it, so that no
// word that a user has chosen can read as two.
type text struct{ strings.Builder }

func (t *text) add(word string) {
	t.WriteString(strconv.Itoa(len(word)) + ":" + word)
}

// pool remembers parts of objects by their content.
type pool[T any] struct{ known map[string]T }

// same gives the part that was remembered under a key, or remembers this one. A part with an empty
// key is empty and need not be shared.
func (p *pool[T]) same(key string, part T) T {
	if key == "" || len(key) > longestPart {
		return part
	}
	if known, ok := p.known[key]; ok {
		return known
	}
	if p.known == nil || len(p.known) == poolParts {
		p.known = make(map[string]T)
	}
	// The key may be a slice of decoded text: copy it, so as not to keep all of that text.
	p.known[strings.Clone(key)] = part
	return part
}
