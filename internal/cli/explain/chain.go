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
