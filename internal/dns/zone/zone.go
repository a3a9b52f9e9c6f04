package zone

import (
	"math"
	"net/netip"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/trie"
)

// maxStaleTTL bounds the TTL of a stale answer, in seconds (RFC 8767 section 4
// recommends 30).
const maxStaleTTL = 30

// Zone is one version of everything that a server block answers. It is immutable, except that the
// first query for a shared name joins its services. Many goroutines may use it at once. It shares
// most of its memory with the versions before and after it.
type Zone struct {
	tree    precedence.Tree
	shared  trie.Map[sharedName] // by name, what owners share
	origins zoneOrigins
	owners  []ownerView // by index in Config.Owners
	timed   bool        // answers depend on the time
}

// ownerView is what answers need to know of an owner.
type ownerView struct {
	Status
	id      string
	ttl     uint32 // of live answers
	fullTTL uint32 // as configured
	admits  func(netip.Addr) bool
}

// Status is the state of an owner as far as it shows in answers.
type Status struct {
	// Live is the first generation that is not stale.
	Live uint64
	// Expires is when stale services are gone; zero is never. A service with less
	// than a second left is gone, because the smallest TTL is a second (RFC 8767
	// section 4) and no answer may be kept after that.
	Expires time.Time
	// Soonest is when the first of them are gone, if that is before Expires. No
	// stale answer outlives it, because a Status does not say which service goes
	// first.
	Soonest time.Time
	// Known reports whether a catalog of this owner was ever complete, or was
	// restored from its file.
	Known bool
	// Lost is since when an owner is lost whose services are stale or expired, so that names which
	// it publishes now may be missing. It is zero while the owner is connected.
	Lost time.Time
	// Grace is when queries stop waiting for an owner that is not Known: until then
	// the names that it may publish are Unsynced.
	Grace time.Time
}

// DependsOnTime reports whether Lookup depends on the time that it is given.
func (z *Zone) DependsOnTime() bool { return z.timed }

// HasName reports whether a name, lower case and absolute, is in one of the zones.
func (z *Zone) HasName(name string) bool { return z.origins.ofQuery(name) != nil }

// Faults returns how many names and records of an owner, by index in Config.Owners, are not
// published, by kind. The caller must not change it.
func (z *Zone) Faults(owner int) map[Fault]int { return z.tree.OwnerFaults(owner) }

// knownExtent says how far the names of an origin are known.
type knownExtent uint8

const (
	complete knownExtent = iota
	awaited              // an owner is not known, and its grace is not over
	unheard              // no owner is known, and the grace of all is over
)

// originExtent returns how far the names of the origin are known.
func (z *Zone) originExtent(o *zoneOrigin, now time.Time) knownExtent {
	known := unheard
	for _, i := range o.owners {
		if z.owners[i].Known {
			known = complete
		} else if now.Before(z.owners[i].Grace) {
			return awaited
		}
	}
	return known
}

// matchTTL returns the TTL of an answer from the service of a match, in seconds, at least 1, and a
// lost owner that the answer depends on, or nil if the answer is live. For a shared name, the TTL
// is the least of the members whose data is in the answer, and the answer is live if one of them
// is.
func (z *Zone) matchTTL(m *nameMatch, members subtree.MemberSet, now time.Time) (ttl uint32, stale *ownerView) {
	v := &z.owners[m.offer.Owner]
	s := m.offer.Subtree.SharedName()
	if s == nil {
		if z.tree.IsStale(m.offer) {
			stale = v
		}
		return v.answerTTL(stale != nil, now), stale
	}
	ttl, live := uint32(math.MaxUint32), false
	for i := range members.Each {
		v := &z.owners[s.Members[i].Owner]
		ttl = min(ttl, v.answerTTL(s.Members[i].Stale, now))
		if live = live || !s.Members[i].Stale; !live {
			stale = v
		}
	}
	if live {
		stale = nil
	}
	return ttl, stale
}

// staleMember returns the owner of a member that is stale, or nil.
func (z *Zone) staleMember(s *subtree.SharedName, m int) *ownerView {
	if !s.Members[m].Stale {
		return nil
	}
	return &z.owners[s.Members[m].Owner]
}

// staleSayer returns an owner of an endpoint if all owners of that endpoint are lost, or nil.
func (z *Zone) staleSayer(s *subtree.SharedName, i uint16) *ownerView {
	for m := range s.MembersSaying(i).Each {
		if s.EndpointRank(i).IsStale() {
			return z.staleMember(s, m)
		}
	}
	return nil
}

// answerTTL returns the TTL of the owner's live or stale answers at now.
func (v *ownerView) answerTTL(stale bool, now time.Time) uint32 {
	if !stale {
		return v.ttl
	}
	ttl := v.staleTTL()
	if end := v.staleEnd(); !end.IsZero() {
		ttl = min(ttl, uint32(max(min(end.Sub(now)/time.Second, maxStaleTTL), 1)))
	}
	return ttl
}

// isStale reports whether the owner has not confirmed an offer since it was lost.
func (v *ownerView) isStale(o *precedence.Offer) bool { return uint64(o.Generation) < v.Live }

// staleTTL returns the TTL of stale answers whose end is not near, in seconds.
func (v *ownerView) staleTTL() uint32 { return min(v.fullTTL, maxStaleTTL) }

// changesTTL reports whether an answer that becomes stale gets another TTL.
func (v *ownerView) changesTTL() bool { return v.ttl != v.staleTTL() }

// staleEnd returns when the first of the owner's stale services expire; zero is never.
func (v *ownerView) staleEnd() time.Time {
	if !v.Soonest.IsZero() {
		return v.Soonest
	}
	return v.Expires
}

// liveTTL returns the TTL of an owner's live answers, in seconds. A service that is lost now
// expires after the retention, and no resolver may keep an answer for longer than that.
func liveTTL(ttl uint32, retention time.Duration) uint32 {
	if seconds := int64(retention / time.Second); retention > 0 && seconds < int64(ttl) {
		return uint32(max(seconds, 1)) //nolint:gosec // less than ttl
	}
	return ttl
}
