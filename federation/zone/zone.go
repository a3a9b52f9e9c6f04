package zone

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/zone/trie"
)

// maxStaleTTL bounds the TTL of a stale answer, in seconds (RFC 8767 section 4
// recommends 30).
const maxStaleTTL = 30

// Zone is one version of all that a server block answers. It is immutable, and
// a value that many goroutines may use at once.
type Zone struct {
	index   trie.Map[node]
	origins origins
	owners  []view // by index in Config.Owners
	timed   bool   // answers depend on the time
}

// origin is the apex of one zone.
type origin struct {
	name        string
	dns         string // dns.<name>, an empty non-terminal
	ns          string // ns.dns.<name>, the name server
	nameServer  []netip.Addr
	mailbox     string // of the SOA
	serial      uint32
	negativeTTL uint32
	owners      []int // those that may publish here, by index

	// The Builder's.
	dirty bool      // changed since the serial moved
	moved time.Time // when the serial moved
	due   time.Time // when it can move, if it could not yet
}

// move gives the origin its next serial, or says when it is due.
func (o *origin) move(now time.Time) bool {
	serial := uint32(now.Unix()) //nolint:gosec // serial arithmetic wraps (RFC 1982)
	if o.moved.IsZero() {
		o.moved = now // the serial may be that of an earlier builder: when that moved it is not known
	}
	switch ahead := int32(o.serial - serial); { //nolint:gosec // RFC 1982 section 3.2
	case o.serial == 0 || ahead < 0:
		o.serial = serial
	case ahead == 0:
		o.due = now.Truncate(time.Second).Add(time.Second)
		return false
	default:
		// The clock is behind. What has passed since is read off the monotonic
		// clock, unless there is none and the other was set back meanwhile.
		if since := now.Sub(o.moved); 0 <= since && since < time.Second {
			o.due = o.moved.Add(time.Second)
			return false
		}
		o.serial++
	}
	o.moved, o.due = now, time.Time{}
	return true
}

// origins are the apexes of all zones, longest first, so that the first match is
// the right one.
type origins []origin

// of returns the longest origin that name is in, or nil.
func (os origins) of(name string) *origin {
	for i := range os {
		if within(name, os[i].name) {
			return &os[i]
		}
	}
	return nil
}

// view is what answers need to know of an owner.
type view struct {
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
	// Expires is when stale services are gone; zero is never. A service whose
	// remaining life is under a second is gone, for no TTL is left to give it.
	Expires time.Time
	// Soonest is when the first of them are gone, if that is before Expires. No
	// answer outlives it: which service goes first is not known here.
	Soonest time.Time
	// Known reports whether a catalog of this owner was ever complete, or was
	// restored from its file.
	Known bool
	// Lost reports whether the owner is stale or expired: names that it would
	// publish now may be missing.
	Lost bool
	// Grace is until when answers wait for an owner that is not known.
	Grace time.Time
}

// Timed tells whether Lookup depends on the time it is given.
func (z *Zone) Timed() bool { return z.timed }

// Has tells whether a name, lower case and absolute, is in one of the zones.
func (z *Zone) Has(name string) bool { return z.origin(name) != nil }

// node stands for a name that is the fqdn of a service, or above one.
type node struct {
	first    *entry    // the offer that comes first in precedence; nil when there is none
	others   *[]*entry // the other ones, in order of precedence; nil when there are none, as mostly
	children uint32    // nodes one label below
	claim    uint32    // 1 + the first owner with a service above that has the name as well; 0 when none has
}

// item is a node with its name, as the index has it.
type item = trie.Item[node]

// claimed reports whether a service above, of an owner that comes before that of
// the offer, may have the name of the node: if it is published.
func (n *node) claimed(e *entry) bool { return n.claim != 0 && n.claim <= e.owner }

// rest returns the offers after the first, in order of precedence.
func (n *node) rest() []*entry {
	if n.others == nil {
		return nil
	}
	return *n.others
}

// origin returns the longest origin that name is in, or nil.
func (z *Zone) origin(name string) *origin {
	// An escaped dot is not the end of a label. No name of ours has one, so
	// only the choice of the zone must know of it.
	if strings.IndexByte(name, '\\') < 0 {
		return z.origins.of(name)
	}
	for i := range z.origins {
		if dns.IsSubDomain(z.origins[i].name, name) {
			return &z.origins[i]
		}
	}
	return nil
}

// extent says how far the names of an origin are known.
type extent uint8

const (
	complete extent = iota
	awaited         // an owner is not known, and still gets the time to be
	unheard         // no owner is known, and none is waited for
)

// extent returns how far the names of the origin are known.
func (z *Zone) extent(o *origin, now time.Time) extent {
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

// holders appends the services that are published at the name and above it, the
// uppermost first.
//
// Of one owner, a service has its fqdn, and an instance of another one is left
// without a name of its own there. Of two owners, the first in the Corefile has
// the name, also where it is derived from a service further up: one of its
// instances, or an empty non-terminal above an instance or an address. The
// service of the later owner is then published nowhere, as if its fqdn were the
// fqdn of the other: neither are the names derived from it. Services further down
// are services of their own. Everything follows from who is alive, so the later
// owner has the name once the other service is gone.
func (z *Zone) holders(list []*entry, o *origin, name string, now time.Time) []*entry {
	if name != o.name {
		list = z.holders(list, o, parent(name), now)
	}
	n := z.index.Get(name)
	e := z.winner(n, now)
	if e == nil || n.claimed(e) && slices.ContainsFunc(list, func(above *entry) bool {
		return above.owner < e.owner && above.claims(relative(name, above.fqdn()))
	}) {
		return list
	}
	return append(list, e)
}

// holder returns the service that is published at a name, or nil. There may be
// no node n for it.
func (z *Zone) holder(o *origin, name string, n *node, now time.Time) *entry {
	e := z.winner(n, now)
	if e == nil || !n.claimed(e) {
		return e // as mostly
	}
	all := z.holders(nil, o, name, now)
	if len(all) > 0 && all[len(all)-1] == e {
		return e
	}
	return nil
}

// winner returns the first offer at the node that is alive, or nil. There may be
// no node.
func (z *Zone) winner(n *node, now time.Time) *entry {
	if n == nil || n.first == nil {
		return nil
	}
	if z.alive(n.first, now) {
		return n.first
	}
	for _, e := range n.rest() {
		if z.alive(e, now) {
			return e
		}
	}
	return nil
}

// alive tells whether an offer has not expired.
func (z *Zone) alive(e *entry, now time.Time) bool {
	return !z.stale(e) || !z.owners[e.owner].gone(now)
}

func (z *Zone) stale(e *entry) bool { return e.generation < z.owners[e.owner].Live }

// gone tells whether the stale services of the owner have expired.
func (v *view) gone(now time.Time) bool {
	return !v.Expires.IsZero() && v.Expires.Sub(now) < time.Second
}

// entryTTL returns the TTL of an answer from e, in seconds, at least 1.
func (z *Zone) entryTTL(e *entry, now time.Time) uint32 {
	v := &z.owners[e.owner]
	if !z.stale(e) {
		return v.ttl
	}
	ttl := min(v.fullTTL, maxStaleTTL)
	end := v.Expires
	if !v.Soonest.IsZero() {
		end = v.Soonest
	}
	if !end.IsZero() {
		ttl = min(ttl, uint32(max(min(end.Sub(now)/time.Second, maxStaleTTL), 1)))
	}
	return ttl
}

// liveTTL is the TTL of an owner's live answers, in seconds. The earliest that
// a service can expire is the retention from now, and no resolver may keep an
// answer beyond that.
func liveTTL(ttl uint32, retention time.Duration) uint32 {
	if seconds := int64(retention / time.Second); retention > 0 && seconds < int64(ttl) {
		return uint32(max(seconds, 1)) //nolint:gosec // less than ttl
	}
	return ttl
}
