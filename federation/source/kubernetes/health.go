package kubernetes

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// watched is what one watch is for: a kind, in one namespace or, where that is empty,
// in all of them.
type watched struct {
	kind      kind
	namespace string
}

func (w watched) String() string {
	if w.namespace == "" {
		return w.kind.String()
	}
	return w.kind.String() + " in " + w.namespace
}

func (w watched) compare(other watched) int {
	if w.kind != other.kind {
		return int(w.kind) - int(other.kind)
	}
	if w.namespace < other.namespace {
		return -1
	}
	return 1
}

// progress is how far a watch is.
type progress struct {
	synced  bool // it has read everything since it was started
	once    bool // an earlier one had
	problem problem
}

// problem is why something does not work, and since when. The zero value is none.
type problem struct {
	reason error
	since  time.Time
}

// set notes how the last attempt went, and reports whether that is news.
func (p *problem) set(reason error, now time.Time) bool {
	switch {
	case reason == nil:
		news := p.reason != nil
		*p = problem{}
		return news
	case p.reason == nil:
		*p = problem{reason, now}
		return true
	case reasonClass(reason) != reasonClass(p.reason):
		p.reason = reason
		return true
	}
	return false // an error with another port, or another pod, in it
}

// health is how reading the cluster goes. The mutex of world guards it.
type health struct {
	grace      time.Duration // before a problem is said
	server     problem
	definition [kinds]problem // of objects that are kept although their kind is not served
	discovered bool           // which kinds are served was known once
	watches    map[watched]*progress
	once       map[watched]bool // watches that have ended and had read everything
	away       error            // that was said last
}

func newHealth(grace time.Duration) health {
	return health{grace: grace, watches: make(map[watched]*progress), once: make(map[watched]bool)}
}

// standing is what the publisher has to know of the health.
type standing struct {
	partial bool      // some watches have not read yet what an earlier one had, and may soon
	missing []watched // those that have not, and cannot, in order
	current bool      // everything has been read, and is followed
	away    error     // why not, once that has lasted, or nil
	reasons []error   // all that have lasted
	recheck bool      // time alone may change this
}

// standing returns how reading the cluster goes. doubts says that it is not known of
// some objects whether they were deleted.
func (h *health) standing(now time.Time, doubts bool) standing {
	s := standing{current: h.discovered && !doubts}
	var problems []problem
	note := func(p problem) {
		if p.reason != nil {
			problems = append(problems, p)
			s.current = false
		}
	}
	note(h.server)
	order := make([]watched, 0, len(h.watches))
	for id := range h.watches {
		order = append(order, id)
	}
	slices.SortFunc(order, watched.compare)
	for _, id := range order {
		p := h.watches[id]
		if !p.synced {
			s.current = false
			switch lasts := h.server.reason == nil && p.problem.reason != nil && now.Sub(p.problem.since) >= h.grace; {
			case p.once && lasts:
				s.missing = append(s.missing, id)
			case p.once:
				s.partial = true
			}
		}
		note(p.problem)
	}
	for _, p := range h.definition {
		note(p)
	}
	for _, p := range problems {
		if now.Sub(p.since) >= h.grace {
			s.reasons = append(s.reasons, p.reason)
		} else {
			s.recheck = true
		}
	}
	if len(s.reasons) > 0 {
		s.away = s.reasons[0]
	}
	switch {
	case s.away != nil && h.away != nil && reasonClass(s.away) == reasonClass(h.away):
		s.away = h.away // the same reason in other words
	case s.away == nil && !s.current:
		s.away = h.away // until everything has been read
	}
	h.away = s.away
	return s
}

// classError is an error of a class: two of one class are the same state.
type classError struct {
	class string
	error
}

func classed(class, format string, args ...any) error {
	return classError{class, fmt.Errorf(format, args...)}
}

// reasonClass returns the class of an error.
func reasonClass(err error) string {
	if c, ok := errors.AsType[classError](err); ok {
		return c.class
	}
	return "other"
}
