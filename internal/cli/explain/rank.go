package explain

import (
	"cmp"
	"fmt"
	"slices"
)

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
