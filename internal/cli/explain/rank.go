package explain

import (
	"cmp"
	"fmt"
	"slices"
)

// rank says how much what a part of the chain tells keeps who waits for it. The part of the
// lowest is told as the cause; of two alike, that of the first name.
type rank int

const (
	rankWell rank = iota
	// rankAbsent is of what is not there: nothing begins before somebody makes it.
	rankAbsent
	// rankEnding is of what is being deleted, which nobody can take back.
	rankEnding
	// rankLost is of what was there and is gone.
	rankLost
	// rankStuck is of what has failed, or waits for what does not come by itself.
	rankStuck
	// rankPassing is of what somebody is at work on, and nothing is known to have failed.
	rankPassing
	// rankGrowing is of a claim that can be used as it is, and is to become larger.
	rankGrowing
	// From here on nobody waits for it, and it is told where nobody waits for anything:
	// a claim that is being deleted and waits for who uses it, a volume that does, and a
	// claim that grows under who uses it.
	rankLeaving
	rankDoomed
	rankLarger
	// rankBeside is never told but aside.
	rankBeside
)

// keeps says that somebody waits for it.
func (r rank) keeps() bool { return r > rankWell && r < rankLeaving }

// part begins a part of the chain that may be the cause, or aside.
func (s *story) part(name string) *story { return &story{view: s.view, name: name} }

// blame says what everything waits for. The last word counts: a part of the chain is
// followed from the object asked for, so what is blamed later is nearer to the cause.
func (s *story) blame(format string, args ...any) {
	s.cause, s.rank = fmt.Sprintf(format, args...), rankStuck
}

// awaits is blame for what passes by itself, as far as is known.
func (s *story) awaits(format string, args ...any) {
	s.cause, s.rank = fmt.Sprintf(format, args...), rankPassing
}

// weigh finds among parts what is waited for, and gives it, nil for nothing. Its links come
// last, so that the verdict, when it goes on and the command are all of it, in whatever
// order the parts come. The others are kept, to be told aside.
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

// leads says whether a part has a command, or says when it goes on.
func (s *story) leads() bool {
	return slices.ContainsFunc(s.links, func(l *Link) bool { return l.Command != "" || l.Next != "" })
}

// follow has a part be the cause.
func (s *story) follow(part *story) {
	s.cause, s.rank = cmp.Or(part.cause, part.doubt), part.rank
	s.links = append(s.links, part.links...)
	s.others = append(s.others, part.others...)
}

// followOther has that of the others be the cause which is the first of its kind, and says
// whether there is one.
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

// settle tells of what is wrong though nobody waits for it, where nobody waits for
// anything.
func (s *story) settle() {
	if s.cause == "" && s.doubt == "" && s.followOther(func(p *story) bool { return p.rank < rankBeside }) {
		s.cause, s.doubt = "", s.cause
	}
}

// asides are the links of what is not the cause. They have no commands: who wants one asks
// for that object.
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
