package bind

import (
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"tarn.dev/tarn/internal/volume"
)

// population is how many names of claims, and of volumes, a history has.
const population = 6

var resourceName = schema.GroupResource{Resource: "objects"}

func claimNamed(i int) claimKey { return claimKey{Namespace: "ns", Name: fmt.Sprint("c", i)} }
func volumeNamed(i int) string  { return fmt.Sprint("v", i) }

// server keeps claims and volumes as an API server does. It accepts a write only of the current
// version, and delivers it on a watch.
type server struct {
	cache   *cache
	version int
	claims  map[claimKey]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	lag     [2][]func() requests // what the watches of claims and of volumes have not delivered yet
}

func newServer(b *cache) *server {
	return &server{cache: b, claims: map[claimKey]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{}}
}

func (s *server) next() string {
	s.version++
	return strconv.Itoa(s.version)
}

func (s *server) putClaim(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	c = c.DeepCopy()
	c.ResourceVersion = s.next()
	s.claims[keyOf(c)] = c
	s.lag[0] = append(s.lag[0], func() requests { return s.cache.claimChanged(c) })
	return c
}

func (s *server) putVolume(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	v = v.DeepCopy()
	v.ResourceVersion = s.next()
	s.volumes[v.Name] = v
	s.lag[1] = append(s.lag[1], func() requests { return s.cache.volumeChanged(v) })
	return v
}

func (s *server) removeClaim(key claimKey) {
	c := s.claims[key].DeepCopy()
	c.ResourceVersion = s.next()
	delete(s.claims, key)
	s.lag[0] = append(s.lag[0], func() requests { return s.cache.claimDeleted(c) })
}

func (s *server) removeVolume(name string) {
	v := s.volumes[name].DeepCopy()
	v.ResourceVersion = s.next()
	delete(s.volumes, name)
	s.lag[1] = append(s.lag[1], func() requests { return s.cache.volumeDeleted(v) })
}

func (s *server) updateVolume(v *corev1.PersistentVolume, version string, status bool) (*corev1.PersistentVolume, error) {
	has := s.volumes[v.Name]
	switch {
	case has == nil:
		return nil, apierrors.NewNotFound(resourceName, v.Name)
	case has.ResourceVersion != version || has.UID != v.UID:
		return nil, apierrors.NewConflict(resourceName, v.Name, errors.New("it has changed"))
	}
	now := has.DeepCopy()
	if status {
		now.Status = v.Status
	} else {
		now = v.DeepCopy()
		now.Status = has.Status
	}
	return s.putVolume(now), nil
}

func (s *server) updateClaim(c *corev1.PersistentVolumeClaim, version string, status bool) (*corev1.PersistentVolumeClaim, error) {
	has := s.claims[keyOf(c)]
	switch {
	case has == nil:
		return nil, apierrors.NewNotFound(resourceName, c.Name)
	case has.ResourceVersion != version || has.UID != c.UID:
		return nil, apierrors.NewConflict(resourceName, c.Name, errors.New("it has changed"))
	}
	now := c.DeepCopy()
	if status {
		now.Spec = has.Spec // and nothing else: it accepts annotations, as the API server does
	} else {
		now.Status = has.Status
	}
	return s.putClaim(now), nil
}

// user does what users, administrators and the scheduler do.
func (s *story) user() {
	s.uids++
	i, j := s.random.Intn(population), s.random.Intn(population)
	key, name, id := claimNamed(i), volumeNamed(j), types.UID(fmt.Sprint("u", s.uids))
	c, v := s.claims[key], s.volumes[name]
	did := s.random.Intn(16)
	s.tell("a user does %d to %s and %s", did, key.Name, name)
	switch {
	case c == nil && did < 2:
		s.putClaim(s.someClaim(key, name, id))
	case v == nil && did < 4:
		s.putVolume(s.someVolume(name, key, id))
	case c != nil && did == 4:
		s.removeClaim(key)
	case v != nil && did == 5 && s.random.Intn(2) == 0:
		s.removeVolume(name)
	case v != nil && did == 6:
		s.putVolume(with(v, marked("touched="+string(id))))
	case c != nil && did == 7:
		touched := c.DeepCopy()
		noted("touched=" + string(id))(touched)
		s.putClaim(touched)
	case v != nil && did == 8 && v.Status.Phase == corev1.VolumeReleased:
		s.putVolume(with(v, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }))
	case v != nil && did == 8 && s.random.Intn(4) == 0:
		s.putVolume(with(v, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }))
	case v != nil && did == 9 && s.labels && v.Labels == nil:
		s.putVolume(with(v, labelled("l", "x")))
	case v != nil && did == 9 && s.labels:
		s.putVolume(with(v, func(v *corev1.PersistentVolume) { v.Labels = nil }))
	case v != nil && c != nil && did == 10 && volume.ClassOf(c) == "wait" && volume.Free(v) && volume.Suits(v, c) == volume.Fits && c.Spec.VolumeName == "":
		s.putVolume(with(v, to(c.Name, c.UID), marked(bbc)))
	case c != nil && did == 11 && c.DeletionTimestamp == nil:
		touched := c.DeepCopy()
		terminating(touched)
		s.putClaim(touched)
	case c != nil && v != nil && did == 12 && v.Spec.ClaimRef == nil:
		s.putVolume(with(v, to(c.Name, c.UID), marked(bbc)))
	case c != nil && did == 13 && c.Spec.VolumeName == "" && s.random.Intn(3) == 0:
		touched := c.DeepCopy()
		names(name)(touched)
		s.putClaim(touched)
	case v != nil && did == 15 && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID != "": // a careless user, whatever state the volume is in
		s.putVolume(with(v, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "" }))
	case did == 14 && s.classes && s.cache.classes["wait"] == nil:
		s.wake(s.cache.classChanged(classOf("wait", waits)))
	case did == 14 && s.classes:
		s.wake(s.cache.classDeleted(classOf("wait", waits)))
	}
}

func with(v *corev1.PersistentVolume, changes ...volumeWith) *corev1.PersistentVolume {
	v = v.DeepCopy()
	for _, change := range changes {
		change(v)
	}
	return v
}

func (s *story) someSize() string { return fmt.Sprintf("%dGi", 1+s.random.Intn(4)) }

func (s *story) someClass() string { return []string{"", "gold", "wait"}[s.random.Intn(3)] }

func (s *story) someClaim(key claimKey, vol string, id types.UID) *corev1.PersistentVolumeClaim {
	is := []claimWith{called(key.Namespace, key.Name), uid(id)}
	if !s.byDefault || s.random.Intn(2) == 0 {
		is = append(is, ofClass(s.someClass()))
	}
	if s.random.Intn(3) == 0 {
		is = append(is, selecting(map[string]string{"l": "x"}))
	}
	if s.random.Intn(6) == 0 {
		is = append(is, names(vol))
	}
	return claimOf(s.someSize(), is...)
}

func (s *story) someVolume(name string, key claimKey, id types.UID) *corev1.PersistentVolume {
	is := []volumeWith{class(s.someClass()), in(corev1.VolumePending), policy(corev1.PersistentVolumeReclaimRetain)}
	if s.random.Intn(2) == 0 {
		is = append(is, labelled("l", "x"))
	}
	if s.random.Intn(5) == 0 {
		is = append(is, to(key.Name, ""))
	}
	v := volumeOf(name, s.someSize(), is...)
	v.UID = id
	return v
}

// check says what is wrong when a history is at rest.
func (s *story) check() []string {
	var wrong []string
	b := s.cache
	if n := len(b.locks) + len(b.uncertainVolumes) + len(b.uncertainClaims) + len(b.newlyFree); n > 0 {
		wrong = append(wrong, fmt.Sprintf("left over: locks %v, uncertain volumes %v, uncertain claims %v, newly free %v", b.locks, b.uncertainVolumes, b.uncertainClaims, b.newlyFree))
	}
	taken := map[string]string{}
	for i := range population {
		if c := s.claims[claimNamed(i)]; c != nil {
			wrong = append(wrong, s.checkClaim(c, taken)...)
		}
		v := s.volumes[volumeNamed(i)]
		if v == nil {
			continue
		}
		if p := planVolume(b.volumeView(v)); len(p.Actions) > 0 {
			if _, wakes := p.Actions[0].(EnqueueClaim); !wakes {
				wrong = append(wrong, fmt.Sprintf("volume %s has a %T to be done", v.Name, p.Actions[0]))
			}
		}
		if v.Spec.ClaimRef == nil && v.Status.Phase != corev1.VolumeAvailable {
			wrong = append(wrong, fmt.Sprintf("volume %s is nobody's and %s", v.Name, v.Status.Phase))
		}
	}
	return wrong
}

// checkClaim says what is wrong with a claim. taken maps volumes to their claims.
func (s *story) checkClaim(c *corev1.PersistentVolumeClaim, taken map[string]string) (wrong []string) {
	if known := s.cache.claims[keyOf(c)]; known == nil || known.ResourceVersion != c.ResourceVersion {
		wrong = append(wrong, fmt.Sprintf("the books do not have claim %s as it is", c.Name))
	}
	switch volume.StateOfClaim(c) {
	case volume.ClaimUnbound:
		if c.DeletionTimestamp != nil {
			break // it is not bound any more
		}
		selector, err := volume.Selector(c)
		waits, _ := volume.WaitsForConsumer(s.cache.classes[volume.ClassOf(c)])
		for _, v := range s.volumes {
			if !waits && volume.Free(v) && len(s.cache.preboundTo[v.Name]) == 0 && err == nil && volume.Match(v, c, selector) == volume.Fits {
				wrong = append(wrong, fmt.Sprintf("claim %s waits, and volume %s is free and fits", c.Name, v.Name))
			}
			if volume.Reserved(v, c) == volume.Fits {
				wrong = append(wrong, fmt.Sprintf("claim %s waits, and volume %s is reserved for it", c.Name, v.Name))
			}
		}
	case volume.ClaimPrebound:
		v := s.volumes[c.Spec.VolumeName]
		if v == nil || c.DeletionTimestamp != nil {
			break
		}
		link := volume.LinkOf(v, c)
		if link == volume.LinkReserved || link == volume.LinkHeld || link == volume.LinkNone && volume.Named(v, c) == volume.Fits {
			wrong = append(wrong, fmt.Sprintf("claim %s waits, and could have volume %s that it names (%s)", c.Name, v.Name, link))
		}
	case volume.ClaimCompleted:
		v := s.volumes[c.Spec.VolumeName]
		if v != nil && v.Spec.ClaimRef == nil {
			wrong = append(wrong, fmt.Sprintf("volume %s of claim %s, which is %s, points at nobody", v.Name, c.Name, c.Status.Phase))
		}
		if v == nil || !volume.HeldBy(v, c) {
			if c.Status.Phase != corev1.ClaimLost {
				wrong = append(wrong, fmt.Sprintf("claim %s is %s without its volume", c.Name, c.Status.Phase))
			}
			break
		}
		if c.Status.Phase != corev1.ClaimBound || v.Status.Phase != corev1.VolumeBound {
			wrong = append(wrong, fmt.Sprintf("claim %s is %s, its volume %s %s", c.Name, c.Status.Phase, v.Name, v.Status.Phase))
		}
		if another := taken[v.Name]; another != "" {
			wrong = append(wrong, fmt.Sprintf("claims %s and %s have volume %s", another, c.Name, v.Name))
		}
		taken[v.Name] = c.Name
	}
	return wrong
}
