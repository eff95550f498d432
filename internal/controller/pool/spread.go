package pool

import tarnv1 "tarn.dev/tarn/api/v1alpha1"

// spread distributes the values of a template's topologyKey so that the spares, including those
// being made, are as even as possible.
type spread struct {
	domains []string
	volumes map[string]int
}

func newSpread(v *View) *spread {
	s := &spread{domains: v.Open, volumes: map[string]int{}}
	for i := range v.Volumes {
		if state := v.stateOf(&v.Volumes[i]); state == spare || state == joining {
			s.volumes[v.Volumes[i].Annotations[tarnv1.AnnotationPoolTopology]]++
		}
	}
	for i := range v.Claims {
		if vol := v.volume(v.Claims[i].Spec.VolumeName); vol == nil || !marked(vol) {
			s.volumes[v.Claims[i].Annotations[tarnv1.AnnotationPoolTopology]]++
		}
	}
	return s
}

// next returns the domain that has the fewest spares; empty if there is no domain.
func (s *spread) next() string {
	best := ""
	for _, domain := range s.domains {
		if best == "" || s.volumes[domain] < s.volumes[best] {
			best = domain
		}
	}
	s.volumes[best]++
	return best
}
