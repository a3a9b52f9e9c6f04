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
	missed uint64            // the number of a version before which there was more than is in seen; 0 without any
}

// seen is a service as it was under a policy, up to the version with that number at least, and
// not after it where it is former.
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
	past uint64 // the number of a version before which there was more; 0 without any
}

// maxFormerBytes bounds a service that is kept there.
const maxFormerBytes = 8 << 10

func (f *former) add(s seen) {
	if len(s.service.Resource().GetValue()) > maxFormerBytes {
		f.past = s.until
		return
	}
	f.past = max(f.past, f.ring[f.next].until)
	f.ring[f.next] = s
	f.next = (f.next + 1) % len(f.ring)
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
		s.since = shown.number
		for e := range shown.entries() {
			s.consider(e.service.Name(), e, shown)
		}
	} else {
		for _, p := range shown.pairs(s.shown) {
			s.consider(p.name(), p.after, shown)
		}
		if before != (len(s.found) > 0) {
			s.since = shown.number
		}
	}
	s.remember(shown)
	s.shown = shown
}

// remember takes what was there since the last Look, or before the first one, and finds out since
// when it is gone.
func (s *Sought) remember(shown *version) {
	var last uint64
	if s.shown != nil {
		last = s.shown.number
	}
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	former := &s.registry.former
	var gone uint64
	for _, e := range former.ring {
		if e.entry != nil && e.until > last && e.until <= shown.number && s.matches(e.service) {
			s.note(e)
			gone = max(gone, e.until)
		}
	}
	if former.past > last {
		s.missed = former.past
	}
	switch {
	case gone == 0 && s.missed <= last: // nothing that is sought has changed
	case gone > s.missed && len(s.found) == 0:
		s.since = gone
	default: // it may have been away meanwhile
		s.since = shown.number
	}
}

// note notes what was sought once.
func (s *Sought) note(e seen) {
	if len(s.seen) == maxSeen {
		s.missed = e.until
		return
	}
	s.seen = append(s.seen, e)
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
	s.note(seen{e, of.policy, of.number})
}

// Found returns what is sought and there, as of the last Look, and the number of the version
// since which that is so. A subscriber that has reached that version has been told.
func (s *Sought) Found() (services int, since uint64) { return len(s.found), s.since }

// Unavailable says why the catalog could not be told at the last Look, or "".
func (s *Sought) Unavailable() string { return s.shown.unavailable }

// Tells reports whether a consumer with these identities may have been told of what is
// sought. Of what was gone before the first Look nobody knows that, nor of a consumer without
// identities. Where it was not told, that holds from the version with the number since on:
// before it another policy may have told it, or another program.
func (s *Sought) Tells(ids []federation.ID) (tells bool, since uint64) {
	if len(s.seen) == 0 || len(ids) == 0 {
		return true, 0
	}
	tells = slices.ContainsFunc(s.seen, func(e seen) bool { return e.in(viewFor(e.policy, ids)) != nil })
	return tells, max(s.shown.since, s.missed)
}
