package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// story is a chain, or a part of one, while it is being built.
type story struct {
	view  *View
	links []*Link
	// cause says in a few words what everything waits for; it is empty if all is well. rank says
	// how strongly the cause blocks whatever waits for it.
	cause string
	rank  rank
	// doubt says what is wrong although nothing waits for it. It is reported where there is no
	// cause.
	doubt string
	// name orders parts of equal rank.
	name string
	// first says that a kubelet does this part before it starts the pod. ends says that this part
	// is a stage that must end.
	first, ends bool
	// others are the parts that are not the cause, the lowest rank first.
	others []*story
	// fine is what the verdict of a healthy object says after the object's name.
	fine string
	// onController says that the answer depends on whether Tarn's controller runs.
	onController bool
	// again says that only a second read can tell what passes from what stays.
	again bool
}

// chain builds the answer. It reads only the View.
func chain(v *View) *Explanation {
	s := &story{view: v}
	var state string
	switch {
	case v.Claim != nil:
		state = s.ofClaim(v.Claim)
	case v.Volume != nil:
		state = s.ofVolume(v.Volume)
	case v.App != nil:
		state = s.ofApp(v.App)
	case v.Set != nil:
		state = s.ofSet(v.Set, v.Claims)
	default:
		state = s.ofPod(v.Pod, v.Claims)
	}
	s.settle()
	e := &Explanation{Object: v.Asked, Healthy: s.cause == "" && s.doubt == "" && s.fine != "", Links: []Link{}, again: s.again}
	e.tell(s)
	e.Verdict = fmt.Sprintf("%s is %s: %s", v.Asked, state, cmp.Or(s.cause, s.doubt, s.fine, "explain cannot tell what it waits for without the objects that it could not read"))
	for _, u := range v.Unread {
		if (u.Object.Kind == lease || u.Object.Kind == deployment) && !s.onController {
			continue
		}
		e.Links = append(e.Links, Link{Object: u.Object, State: notRead, Reason: "Forbidden", Message: "cannot read " + u.String() + ": " + u.Why})
		if !strings.HasPrefix(u.Why, needs) {
			e.Links[len(e.Links)-1].Reason = "Unreadable"
		}
	}
	return e
}

// heed copies from a part what concerns the whole chain.
func (s *story) heed(part *story) {
	s.onController = s.onController || part.onController
	s.again = s.again || part.again
}

// tell adds the links to an answer: those of the cause, then the other links that are not among
// them.
func (e *Explanation) tell(s *story) {
	for _, l := range s.links {
		link := *l
		if link.Command != "" {
			link.Message = strings.TrimPrefix(link.Message+"; "+link.offer, "; ")
			link.Message = strings.TrimSuffix(link.Message, "; ")
		}
		e.Links = append(e.Links, link)
	}
	for _, l := range s.asides() {
		if !slices.ContainsFunc(e.Links, func(told Link) bool {
			return told.Object == l.Object && told.State == l.State && told.Message == l.Message
		}) {
			e.Links = append(e.Links, *l)
		}
	}
}

// String names what could not be read.
func (u unread) String() string {
	switch {
	case u.Object.Name != "":
		return u.Object.String()
	case u.Object.Namespace != "":
		return fmt.Sprintf("each %s in namespace %s", u.Object.Kind, u.Object.Namespace)
	}
	return fmt.Sprintf("each %s", u.Object.Kind)
}

// add appends a link to the chain and returns it, to be completed.
func (s *story) add(l Link) *Link {
	s.links = append(s.links, &l)
	return &l
}

// ago words how long something has lasted.
func (s *story) ago(t time.Time) string { return duration.HumanDuration(s.view.Now.Sub(t)) }

// young says whether something is so new that its controller may not have seen it yet.
func (s *story) young(t time.Time) bool { return s.view.Now.Sub(t) < answerTime }

// answerTime is how long a running controller may take to react.
const answerTime = 5 * time.Second

// notRead is the state of an object that could not be read.
const notRead = "not read"

// rank says how strongly the state that a part describes blocks what waits for it. The part with
// the lowest rank is reported as the cause. Of two with equal rank, it is the first by name.
type rank int

const (
	rankWell rank = iota
	// rankAbsent: the object does not exist, so nothing can begin.
	rankAbsent
	// rankEnding: the object is being deleted, which cannot be undone.
	rankEnding
	// rankLost: the object existed and is gone.
	rankLost
	// rankStuck: it has failed, or waits for what does not happen by itself.
	rankStuck
	// rankPassing: it is in progress, and no failure is known.
	rankPassing
	// rankGrowing: the claim can be used as it is, and is being expanded.
	rankGrowing
	// Nothing waits for the ranks below, so they are reported only where nothing else is waited
	// for. They are a claim being deleted that waits for its consumers, a volume being deleted
	// likewise, and a claim that grows while it is used.
	rankLeaving
	rankDoomed
	rankLarger
	// rankBeside is only ever reported aside.
	rankBeside
)

// keeps says whether something waits for it.
func (r rank) keeps() bool { return r > rankWell && r < rankLeaving }

// part begins a part of the chain, which may become the cause or be reported aside.
func (s *story) part(name string) *story { return &story{view: s.view, name: name} }

// blame sets what everything waits for. A later call replaces an earlier one: the chain is followed
// from the object asked for, so later causes are nearer to the root.
func (s *story) blame(format string, args ...any) {
	s.cause, s.rank = fmt.Sprintf(format, args...), rankStuck
}

// awaits is blame for a state that passes by itself, as far as is known.
func (s *story) awaits(format string, args ...any) {
	s.cause, s.rank = fmt.Sprintf(format, args...), rankPassing
}

// weigh chooses among parts the one that is waited for, and returns it, nil for none. Its links are
// added last, so verdict, next step and command all come from it, whatever the order of parts. The
// other parts are kept, to be reported aside.
func (s *story) weigh(parts ...*story) *story {
	parts = slices.Clone(parts)
	slices.SortStableFunc(parts, byRank)
	var chosen *story
	if i := slices.IndexFunc(parts, func(p *story) bool { return p.rank.keeps() }); i >= 0 {
		chosen = parts[i]
	}
	for _, part := range parts {
		s.heed(part)
		switch {
		case part == chosen:
		case part.rank == rankWell && (chosen == nil || !part.leads()):
			s.links = append(s.links, part.links...)
			s.others = append(s.others, part.others...)
		case part.rank == rankWell:
			part.rank = rankBeside
			fallthrough
		default:
			s.others = append(s.others, part)
		}
	}
	if chosen != nil {
		s.follow(chosen)
	}
	slices.SortStableFunc(s.others, byRank)
	return chosen
}

func byRank(a, b *story) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.name, b.name))
}

// leads says whether a part has a command or a next step.
func (s *story) leads() bool {
	return slices.ContainsFunc(s.links, func(l *Link) bool { return l.Command != "" || l.Next != "" })
}

// follow makes a part the cause.
func (s *story) follow(part *story) {
	s.cause, s.rank = cmp.Or(part.cause, part.doubt), part.rank
	s.links = append(s.links, part.links...)
	s.others = append(s.others, part.others...)
}

// followOther makes the first of the others that matches the cause, and says whether there is one.
func (s *story) followOther(is func(*story) bool) bool {
	i := slices.IndexFunc(s.others, is)
	if i < 0 {
		return false
	}
	part := s.others[i]
	s.others = slices.Delete(s.others, i, i+1)
	s.follow(part)
	return true
}

// settle reports what is wrong although nothing waits for it, if nothing is waited for at all.
func (s *story) settle() {
	if s.cause == "" && s.doubt == "" && s.followOther(func(p *story) bool { return p.rank < rankBeside }) {
		s.cause, s.doubt = "", s.cause
	}
}

// asides returns the links of what is not the cause. They have no commands: the user can ask for
// that object to get one.
func (s *story) asides() []*Link {
	var all []*Link
	for _, part := range s.others {
		for _, l := range part.links {
			aside := *l
			aside.Aside, aside.Command = true, ""
			all = append(all, &aside)
		}
		all = append(all, part.asides()...)
	}
	return all
}
