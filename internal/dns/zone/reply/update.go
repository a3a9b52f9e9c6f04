package reply

import (
	"iter"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
)

// maxDifference bounds the memory of a difference while it is sent, in octets on the wire: its
// records take some four times as much.
const maxDifference = 16 << 20

// IncrementalTransfer returns the records of an origin for a secondary that has the zone with a
// serial, or has none where the serial is 0 (RFC 1995). It returns the SOA when nothing is newer.
// Otherwise it returns what has changed since, or the whole zone as FullTransfer does, when the
// changes are not known any more. The records are those of zone.Zone.PromisedVersion, so that all
// secondaries have the same records under one serial.
func IncrementalTransfer(z *zone.Zone, origin string, serial uint32, now time.Time) iter.Seq[[]dns.RR] {
	soa := z.SOA(origin)
	// RFC 1995 section 2, with the arithmetic of RFC 1982.
	if soa != nil && serial != 0 && int32(soa.Serial-serial) <= 0 { //nolint:gosec // serial arithmetic wraps
		return slices.Values([][]dns.RR{{soa}})
	}
	after, promised := z.PromisedVersion(origin, now)
	before, at, names := z.ChangesSince(origin, serial)
	if serial == 0 || before == nil {
		return FullTransfer(after, origin, promised)
	}
	d := zoneDifference{origin: origin, buf: make([]byte, dns.MaxMsgSize)}
	if !d.compareNames(before, at, after, promised, names) {
		return FullTransfer(after, origin, promised)
	}
	// All serials between the two in one sequence (RFC 1995 sections 4 and 6).
	was := before.SOA(origin)
	return slices.Values(slices.Concat([][]dns.RR{{soa}, {was}}, d.removed, [][]dns.RR{{soa}}, d.added, [][]dns.RR{{soa}}))
}

// zoneDifference is the difference of two versions of an origin.
type zoneDifference struct {
	origin         string
	removed, added [][]dns.RR
	octets         int // of the records, without compression
	buf            []byte
}

// compareNames adds the records of the names that only one of two versions has. It reports false if
// they are more than maxDifference.
func (d *zoneDifference) compareNames(before *zone.Zone, at time.Time, after *zone.Zone, now time.Time, names []string) bool {
	var had []dns.RR
	gone := make(map[string]bool) // by wire form
	for _, name := range names {
		var removed, added []dns.RR
		had = appendRecords(had[:0], before, d.origin, name, at)
		clear(gone)
		for _, rr := range had {
			gone[string(d.packRecord(rr))] = true
		}
		for _, rr := range appendRecords(nil, after, d.origin, name, now) {
			wire := d.packRecord(rr)
			if gone[string(wire)] {
				gone[string(wire)] = false
				continue
			}
			added = append(added, rr)
			d.octets += len(wire)
		}
		for _, rr := range had {
			if wire := d.packRecord(rr); gone[string(wire)] {
				removed = append(removed, rr)
				d.octets += len(wire)
			}
		}
		if len(removed) > 0 {
			d.removed = append(d.removed, removed)
		}
		if len(added) > 0 {
			d.added = append(d.added, added)
		}
		if d.octets > maxDifference {
			return false
		}
	}
	return true
}

// packRecord returns the wire form of a record, which is valid until the next call. It is empty for
// a record that cannot be sent.
func (d *zoneDifference) packRecord(rr dns.RR) []byte {
	n, err := dns.PackRR(rr, d.buf, 0, nil, false)
	if err != nil {
		return nil
	}
	return d.buf[:n]
}

// appendRecords returns rrs with the records of a name in a version appended.
func appendRecords(rrs []dns.RR, z *zone.Zone, origin, name string, now time.Time) []dns.RR {
	for r := range z.Records(origin, name, now) {
		rrs = AppendAnswer(rrs, r, name, 0)
	}
	return rrs
}
