package registry

import (
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// maxSeen bounds the services of which a Sought knows that they were once what is sought.
const maxSeen = 1000

// Sought follows the services of a registry for which a function says that they are sought.
// One goroutine uses it.
type Sought struct {
	registry *Registry
	matches  func(*wire.Encoded) bool

	shown  *version          // that was looked at last; nil before
	found  map[string]*entry // what is sought in it
	since  uint64            // the number of the version since which it is there, or is gone
	seen   []seen            // what was ever found
	missed bool              // whether there was more than maxSeen
}

// seen is a service as it was under a policy, and is not any more in a version and those
// after it.
type seen struct {
	*entry

	policy *policy.Policy
	until  uint64
}

// former has what has changed or gone lately, so that somebody who asks afterwards learns since
// when that is so.
type former struct {
	ring [256]seen
	next int
	full bool // whether there was more
}

// maxFormerBytes bounds a service that is kept there.
const maxFormerBytes = 8 << 10

func (f *former) add(s seen) {
	if len(s.service.Resource().GetValue()) > maxFormerBytes {
		f.full = true
		return
	}
	f.ring[f.next] = s
	if f.next = (f.next + 1) % len(f.ring); f.next == 0 {
		f.full = true
	}
}

// Seek returns a Sought of which nothing is known before Look.
func (r *Registry) Seek(matches func(*wire.Encoded) bool) *Sought {
	return &Sought{registry: r, matches: matches, found: make(map[string]*entry)}
}

// Look looks at what the subscribers are told now. It takes time in proportion to the catalog
// at first, and then to what has changed.
func (s *Sought) Look() {
	shown := s.registry.shown.Load()
	if shown == s.shown {
		return
	}
	before := len(s.found) > 0
	if s.shown == nil {
		for e := range shown.entries() {
			s.consider(e.service.Name(), e, shown)
		}
		s.remember(shown)
	} else {
		for _, p := range shown.pairs(s.shown) {
			s.consider(p.name(), p.after, shown)
		}
	}
	if s.shown != nil && before != (len(s.found) > 0) {
		s.since = shown.number
	}
	s.shown = shown
}

// remember takes what was there before the first Look, and finds out since when it is gone.
func (s *Sought) remember(shown *version) {
	s.since = shown.number
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	former := &s.registry.former
	var gone uint64
	for _, e := range former.ring {
		if e.entry != nil && e.until <= shown.number && s.matches(e.service) {
			s.seen = append(s.seen, e)
			gone = max(gone, e.until)
		}
	}
	if gone > 0 && len(s.found) == 0 {
		s.since = gone
	}
	s.missed = s.missed || former.full // what else there was may have been told to others
}

// consider notes what a service is in a version.
func (s *Sought) consider(name string, e *entry, of *version) {
	if e == nil || !s.matches(e.service) {
		delete(s.found, name)
		return
	}
	if s.found[name] == nil && len(s.found) > 0 { // one more that consumers have to learn of
		s.since = of.number
	}
	s.found[name] = e
	if len(s.seen) == maxSeen {
		s.missed = true
		return
	}
	s.seen = append(s.seen, seen{entry: e, policy: of.policy})
}

// Found returns what is sought and there, as of the last Look, and the number of the version
// since which that is so. A subscriber that has reached that version has been told.
func (s *Sought) Found() (services int, since uint64) { return len(s.found), s.since }

// Unavailable says why the catalog could not be told at the last Look, or "".
func (s *Sought) Unavailable() string { return s.shown.unavailable }

// Seen reports whether something that is sought was ever there at a Look.
func (s *Sought) Seen() bool { return len(s.seen) > 0 }

// Was reports whether a service of that name is or was sought. Of what was gone before the
// first Look nobody knows that.
func (s *Sought) Was(name string) bool {
	return len(s.seen) == 0 || s.missed || slices.ContainsFunc(s.seen, func(e seen) bool { return e.service.Name() == name })
}

// Tells reports whether a consumer with these identities may have been told of what is
// sought. Of what was gone before the first Look nobody knows that, nor of a consumer without
// identities.
func (s *Sought) Tells(ids []federation.ID) bool {
	if len(s.seen) == 0 || s.missed || len(ids) == 0 {
		return true
	}
	return slices.ContainsFunc(s.seen, func(e seen) bool { return e.in(viewFor(e.policy, ids)) != nil })
}
