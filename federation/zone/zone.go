package zone

import (
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// maxStaleTTL bounds the TTL of a stale answer, in seconds (RFC 8767 section 4
// recommends 30).
const maxStaleTTL = 30

// Zone is one version of all that a server block answers. It is immutable, and
// a value that many goroutines may use at once.
type Zone struct {
	index   index
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
	dirty       bool  // changed since the serial moved; the Builder's
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
}

// Status is the state of an owner as far as it shows in answers.
type Status struct {
	// Live is the first generation that is not stale.
	Live uint64
	// Expires is when stale services are gone; zero is never. A service whose
	// remaining life is under a second is gone, for no TTL is left to give it.
	Expires time.Time
	// Known tells whether a catalog of this owner was ever complete, or was
	// restored from its file.
	Known bool
	// Grace is until when answers wait for an owner that is not known.
	Grace time.Time
}

// Timed tells whether Lookup depends on the time it is given.
func (z *Zone) Timed() bool { return z.timed }

// Has tells whether a name, lower case and absolute, is in one of the zones.
func (z *Zone) Has(name string) bool { return z.origin(name) != nil }

// node is a name that is the fqdn of a service, or above one.
type node struct {
	name     string
	first    *entry    // the offer that comes first in precedence; nil when there is none
	others   *[]*entry // the other ones, in order of precedence; nil when there are none, as mostly
	children int       // nodes one label below
}

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

// unsynced tells whether names of the origin may exist that are not known
// yet: no owner of it ever had a complete catalog, or one has not and still
// gets the time to.
func (z *Zone) unsynced(o *origin, now time.Time) bool {
	known := false
	for _, i := range o.owners {
		if z.owners[i].Known {
			known = true
		} else if now.Before(z.owners[i].Grace) {
			return true
		}
	}
	return !known
}

// winner returns the offer that is answered at the node, or nil. There may be no
// node.
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
	if !v.Expires.IsZero() {
		ttl = min(ttl, uint32(max(min(v.Expires.Sub(now)/time.Second, maxStaleTTL), 1)))
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
