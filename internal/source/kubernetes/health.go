package kubernetes

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// watchID is what one watch is for: a kind, in one namespace or, where that is empty,
// in all of them.
type watchID struct {
	kind      objectKind
	namespace string
}

func (w watchID) String() string {
	if w.namespace == "" {
		return w.kind.String()
	}
	return w.kind.String() + " in " + w.namespace
}

func (w watchID) compareTo(other watchID) int {
	return cmp.Or(cmp.Compare(w.kind, other.kind), cmp.Compare(w.namespace, other.namespace))
}

// watchProgress is how far a watch is.
type watchProgress struct {
	begun   bool // there is something to watch
	synced  bool // it has read everything since it was started
	once    bool // an earlier one had
	problem lastingProblem
}

// lastingProblem is why something does not work, and since when. The zero value is none.
type lastingProblem struct {
	reason error
	since  time.Time
}

// noteOutcome notes how the last attempt went, and reports whether that is news.
func (p *lastingProblem) noteOutcome(reason error, now time.Time) bool {
	switch {
	case reason == nil:
		news := p.reason != nil
		*p = lastingProblem{}
		return news
	case p.reason == nil:
		*p = lastingProblem{reason, now}
		return true
	case reasonClass(reason) != reasonClass(p.reason):
		p.reason = reason
		return true
	}
	return false // an error with another port, or another pod, in it
}

// clusterHealth is how reading the cluster goes. The mutex of clusterState guards it.
type clusterHealth struct {
	grace      time.Duration // before a problem is said
	server     lastingProblem
	definition [kinds]lastingProblem // of objects that are kept although their kind is not served
	discovered bool                  // which kinds are served was known once
	watches    map[watchID]watchProgress
}

// healthSummary is what the publisher has to know of the health.
type healthSummary struct {
	partial bool      // some watches have not read yet what an earlier one had, and may soon
	missing []watchID // those that have not, and cannot, in order
	current bool      // everything has been read, and is followed
	reason  error     // why not, if it has lasted
	recheck bool      // time alone may change this
}

// summaryAt returns how reading the cluster goes.
func (h *clusterHealth) summaryAt(now time.Time) healthSummary {
	s := healthSummary{current: h.discovered}
	lasts := func(p lastingProblem) bool { return p.reason != nil && now.Sub(p.since) >= h.grace }
	problems := []lastingProblem{h.server}
	for _, id := range slices.SortedFunc(maps.Keys(h.watches), watchID.compareTo) {
		p := h.watches[id]
		problems = append(problems, p.problem)
		if p.synced || !p.begun {
			continue
		}
		s.current = false
		if p.once && lasts(p.problem) && h.server.reason == nil {
			s.missing = append(s.missing, id)
		} else if p.once {
			s.partial = true
		}
	}
	for _, p := range append(problems, h.definition[:]...) {
		if lasts(p) {
			s.reason = cmp.Or(s.reason, p.reason)
		} else if p.reason != nil {
			s.recheck = true
		}
		s.current = s.current && p.reason == nil
	}
	return s
}

// awayReason returns why the cluster is away, where before is what was said last, or nil. It is
// before for the same reason in other words, and until everything has been read.
func (s *healthSummary) awayReason(before error) error {
	if s.reason == nil && !s.current || s.reason != nil && before != nil && reasonClass(before) == reasonClass(s.reason) {
		return before
	}
	return s.reason
}

// classError is an error of a class: two of one class are the same state.
type classError struct {
	class string
	error
}

func classErrorf(class, format string, args ...any) error {
	return classError{class, fmt.Errorf(format, args...)}
}

// reasonClass returns the class of an error.
func reasonClass(err error) string {
	if c, ok := errors.AsType[classError](err); ok {
		return c.class
	}
	return "other"
}
