package zone

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/record"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
)

// hostmaster stands before a zone in the mailbox of its SOA.
const hostmaster = "hostmaster"

// MaxOrigin is the longest zone with its final dot: with the labels that are put before it, of which
// hostmaster is the longest, it is still a name.
const MaxOrigin = domain.MaxName - len(hostmaster+".")

// zoneOrigin is the apex of one zone, in one version. Only the Builder changes its own, between two
// versions: the serial by moveSerial, and past by rememberVersion within the bounds of pastVersion.
type zoneOrigin struct {
	name        string
	dns         string       // dns.<name>, an empty non-terminal
	ns          string       // ns.dns.<name>, the name server
	addresses   []netip.Addr // of the name server
	mailbox     string       // of the SOA
	serial      uint32
	negativeTTL uint32
	owners      []int // those that may publish here, by index

	past      []*pastVersion // up to the version of the serial, the oldest first; never written
	followers []string       // fqdns of services with a host of this zone as an endpoint
}

func newOrigin(name string, nameServer []netip.Addr, negativeTTL, serial uint32) zoneOrigin {
	below := domain.JoinLabels("dns", name)
	return zoneOrigin{
		name: name, dns: below, ns: domain.JoinLabels("ns", below), mailbox: domain.JoinLabels(hostmaster, name),
		addresses: nameServer, serial: serial, negativeTTL: negativeTTL,
	}
}

// newSOA returns the start of authority, with the name as the client spelled it. Its TTL is the
// same everywhere (RFC 2308 section 5).
func (o *zoneOrigin) newSOA(name string) *dns.SOA {
	return record.SOA(name, o.ns, o.mailbox, o.serial, o.negativeTTL)
}

// addressesOf returns the addresses of the name server that are of the type.
func (o *zoneOrigin) addressesOf(qtype uint16) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(o.addresses), func(ip netip.Addr) bool { return !record.TypeHolds(qtype, ip) })
}

// zoneOrigins are the apexes of all zones, longest first, so that the first match is
// the right one.
type zoneOrigins []zoneOrigin

// originOf returns the longest origin that has the name, or nil.
func (os zoneOrigins) originOf(name string) *zoneOrigin {
	if i := os.indexOf(name); i >= 0 {
		return &os[i]
	}
	return nil
}

// indexOf returns the index of the longest origin that has the name, or -1.
func (os zoneOrigins) indexOf(name string) int {
	for i := range os {
		if domain.IsWithin(name, os[i].name) {
			return i
		}
	}
	return -1
}

// ofQuery returns the longest origin that has the name of a query, or nil.
func (os zoneOrigins) ofQuery(name string) *zoneOrigin {
	// An escaped dot is not the end of a label. None of our names has one, so only
	// the choice of the zone has to deal with them.
	if strings.IndexByte(name, '\\') < 0 {
		return os.originOf(name)
	}
	for i := range os {
		if dns.IsSubDomain(os[i].name, name) {
			return &os[i]
		}
	}
	return nil
}

// refuseInstance returns why an instance of the service at the fqdn cannot have a name, or "".
func (os zoneOrigins) refuseInstance(fqdn, name string) Fault {
	switch o := os.originOf(fqdn); {
	case os.originOf(name) != o:
		return subtree.FaultOutOfZone
	case domain.ReservedReason(name, o.name) != "":
		return subtree.FaultReservedName
	}
	return ""
}

// serialState is what the Builder keeps of one origin between two serials: whether the serial has
// to move, and what the history needs. Changes of the tree set pending and Publish clears it. It
// has no list of changes, because the difference of two trees is that.
type serialState struct {
	pending bool      // RRsets have changed since the serial moved
	moved   time.Time // when the serial moved
	due     time.Time // when it can move, if it could not yet

	begun     bool   // a serial has been published
	rival     uint32 // up to which serial another builder may have published versions
	cut       bool   // the next version cannot be compared with earlier ones
	octets    int    // memory that the last version holds and the next one will not, as an estimate
	followers followerCounts
}

// moveSerial gives the origin its next serial, and reports whether it could. If not, it sets due to
// when it can.
func (c *serialState) moveSerial(o *zoneOrigin, now time.Time) bool {
	serial := uint32(now.Unix()) //nolint:gosec // serial arithmetic wraps (RFC 1982)
	if c.moved.IsZero() {
		c.moved = now // an earlier builder may have moved the serial; when, is not known
	}
	switch ahead := int32(o.serial - serial); { //nolint:gosec // RFC 1982 section 3.2
	case o.serial == 0 || ahead < 0:
		o.serial = serial
	case ahead == 0:
		c.due = now.Truncate(time.Second).Add(time.Second)
		return false
	default:
		// The clock is behind the serial. The time since the last move is that of
		// the monotonic clock; without one it may be negative.
		if since := now.Sub(c.moved); 0 <= since && since < time.Second {
			c.due = c.moved.Add(time.Second)
			return false
		}
		o.serial++
	}
	c.pending, c.moved, c.due = false, now, time.Time{}
	return true
}
