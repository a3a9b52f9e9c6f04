package kubernetes

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/kube"
)

// watchID identifies a watch: a kind, in one namespace or, where that is empty, in all of them.
type watchID struct {
	kind      objectKind
	namespace string
}

func (w watchID) compareTo(other watchID) int {
	return cmp.Or(cmp.Compare(w.kind, other.kind), cmp.Compare(w.namespace, other.namespace))
}

// watchProgress says how far a watch is.
type watchProgress struct {
	begun   bool           // there is something to watch
	synced  bool           // the watch has read everything since it was started
	once    bool           // an earlier watch had read everything
	problem lastingProblem // also that there is nothing to watch any more, while objects are kept
}

// lastingProblem says why something does not work, and since when. The zero value says that it
// works.
type lastingProblem struct {
	reason error
	since  time.Time
}

// noteOutcome records how the last attempt ended, and reports whether that is news.
func (p *lastingProblem) noteOutcome(reason error, now time.Time) bool {
	switch {
	case reason == nil:
		news := p.reason != nil
		*p = lastingProblem{}
		return news
	case p.reason == nil:
		*p = lastingProblem{reason, now}
		return true
	case kube.ReasonClass(reason) != kube.ReasonClass(p.reason):
		p.reason = reason
		return true
	}
	return false // an error with another port, or another pod, in it
}

// clusterHealth keeps how reading the cluster goes: the last problem of the server and of each watch. The mutex of clusterState guards it, and the reader and its watches
// change it. It has one entry for each kind and namespace.
type clusterHealth struct {
	grace      time.Duration // before a problem is reported
	server     lastingProblem
	discovered bool // the reader knows which kinds are served
	watches    map[watchID]watchProgress
}

// healthSummary is what the publisher has to know of the health.
type healthSummary struct {
	partial bool      // some watches have yet to read what an earlier watch had read, and may do so soon
	missing []watchID // watches that have yet to read that and cannot, in order
	current bool      // everything has been read, and is followed
	reason  error     // why that is not so, once the reason has lasted
}

// summaryAt returns the health at now.
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
	for _, p := range problems {
		if lasts(p) {
			s.reason = cmp.Or(s.reason, p.reason)
		}
		s.current = s.current && p.reason == nil
	}
	return s
}

// awayReason returns why the cluster is away, or nil. Before is the reason that was reported last,
// and is returned again while the reason is the same in other words, and until everything has been
// read.
func (s *healthSummary) awayReason(before error) error {
	if s.reason == nil && !s.current || s.reason != nil && before != nil && kube.ReasonClass(before) == kube.ReasonClass(s.reason) {
		return before
	}
	return s.reason
}
