package reply

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/record"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
)

// limitRoom returns how many octets an RRset may have when room octets of a reply can reach the
// client. A room of zero is no limit.
func limitRoom(room int) int {
	if room > 0 {
		return min(room, record.MaxSet)
	}
	return record.MaxSet
}

// AppendAnswer returns rrs with the records of a Success appended. For an Indirect result these are
// the addresses that were found here, or all targets that are not barred. All records have the name
// as the client spelled it (RFC 4343).
//
// Room is how many octets of a reply can reach the client; zero is no limit. The records end with
// the first that does not fit, because the server must see that it has to truncate, and nobody
// would get the rest.
func AppendAnswer(rrs []dns.RR, r *zone.Result, name string, room int) []dns.RR {
	switch r.Type {
	case dns.TypeA, dns.TypeAAAA:
		return appendAddresses(rrs, r, name, limitRoom(room))
	case dns.TypeSRV:
		return appendSRV(rrs, r, name, limitRoom(room))
	case dns.TypeTXT:
		return appendTXT(rrs, r, name, limitRoom(room))
	}
	return otherTypes(rrs, r, name)
}

// otherTypes returns rrs with the records of types appended that few queries ask for.
func otherTypes(rrs []dns.RR, r *zone.Result, name string) []dns.RR {
	switch r.Type {
	case dns.TypeSOA:
		return append(rrs, r.SOA(name))
	case dns.TypeNS:
		ns, ttl := r.NameServer()
		return append(rrs, record.NS(name, ns, ttl))
	}
	return append(rrs, record.AnyAnswer(name, r.TTL))
}

// appendAddresses appends A or AAAA records.
func appendAddresses(rrs []dns.RR, r *zone.Result, name string, room int) []dns.RR {
	m := r.Match()
	switch m.Role {
	case domain.NameServer:
		return record.AppendAddresses(rrs, name, r.NameServerAddresses(r.Type), r.TTL)
	case domain.Address:
		return append(rrs, record.NewAddress(name, m.Address, r.TTL))
	}
	most := room/record.MinAddress + 1
	if ips, ok := r.FollowedAddresses(); ok {
		return record.AppendAddresses(rrs, name, ips[:min(len(ips), most)], r.TTL)
	}
	// The endpoints are in the order of their SRV targets, so equal addresses are
	// neighbours.
	t, _ := r.Subtree()
	ips := make([]netip.Addr, 0, 4)
	for _, i := range m.Endpoints {
		if len(ips) == most {
			break
		}
		ip, ok := t.Endpoint(i).Address.IP()
		if ok && record.TypeHolds(r.Type, ip) && (len(ips) == 0 || ips[len(ips)-1] != ip) {
			ips = append(ips, ip)
		}
	}
	return record.AppendAddresses(rrs, name, ips, r.TTL)
}

// appendSRV returns rrs with the SRV records of the endpoints appended that have a target, in the
// order of the result: as many as fit a message, and until there is one more than fits room.
func appendSRV(rrs []dns.RR, r *zone.Result, name string, room int) []dns.RR {
	t, fqdn := r.Subtree()
	endpoints := r.Match().Endpoints
	n, size, text := 0, 0, 0
	for _, i := range endpoints {
		length := t.TargetLen(i, fqdn)
		if length > domain.MaxName || r.IsBarred(i) {
			continue
		}
		if size += record.SRVHeader + length; size > record.MaxSet {
			break
		}
		n, text = n+1, text+length
		if size > room {
			break
		}
	}
	var targets strings.Builder
	targets.Grow(text)
	records := make([]dns.SRV, n)
	rrs = slices.Grow(rrs, n)
	n = 0
	for _, i := range endpoints {
		if n == len(records) {
			break
		}
		if t.HasTarget(i, fqdn) && !r.IsBarred(i) {
			records[n] = record.SRV(name, t.Target(&targets, i, fqdn), t.Endpoint(i).Port, t.SRVPriority(i), r.TTL)
			rrs = append(rrs, &records[n])
			n++
		}
	}
	return rrs
}

// appendTXT returns rrs with the TXT record of an instance appended, or with those of the service.
func appendTXT(rrs []dns.RR, r *zone.Result, name string, room int) []dns.RR {
	return record.TXT(rrs, name, r.TTL, r.Texts(room))
}

// AppendResolved returns rrs with the records of an Indirect result appended, once its hosts are
// looked up: its own addresses and the others, each once. All have one TTL, which is the smallest
// (RFC 2181 section 5.2).
func AppendResolved(rrs []dns.RR, r *zone.Result, name string, others []netip.Addr, ttl uint32) []dns.RR {
	found, _ := r.FollowedAddresses()
	all := make([]netip.Addr, 0, len(found)+len(others))
	all = append(all, found...)
	for _, ip := range others {
		if record.TypeHolds(r.Type, ip) {
			all = append(all, ip)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return record.AppendAddresses(rrs, name, slices.Compact(all), min(r.TTL, ttl))
}

// AppendAuthority returns rrs with the SOA of a negative answer appended, which is exactly one
// record (RFC 2308 section 3).
func AppendAuthority(rrs []dns.RR, r *zone.Result) []dns.RR {
	return append(rrs, r.SOA(r.OriginName()))
}

// AppendGlue returns rrs with addresses appended: those of the targets in an SRV answer of this
// result, in the order of the answer, or those of the name server in an NS answer. Each RRset is
// whole, and its records are next to each other. AppendGlue makes no more than fits the room.
//
// A target that is a host has glue when it is in the same zone and its endpoints are no hosts in
// turn, or when zone.Target has its addresses.
func AppendGlue(rrs []dns.RR, r *zone.Result, answer []dns.RR, room int, now time.Time) []dns.RR {
	switch r.Type {
	case dns.TypeNS:
		ns, ttl := r.NameServer()
		rrs = record.AppendAddresses(rrs, ns, r.NameServerAddresses(dns.TypeA), ttl)
		return record.AppendAddresses(rrs, ns, r.NameServerAddresses(dns.TypeAAAA), ttl)
	case dns.TypeSRV:
		return targetGlue(rrs, r, answer, room, now)
	}
	return rrs
}

func targetGlue(rrs []dns.RR, r *zone.Result, answer []dns.RR, room int, now time.Time) []dns.RR {
	t, fqdn := r.Subtree()
	endpoints := r.Match().Endpoints
	rrs = slices.Grow(rrs, len(answer))
	most := len(rrs) + limitRoom(room)/record.MinAddress
	block := record.AddressBlock{Room: len(answer)}
	seen, n := newTargetSet(t), 0
	for _, i := range endpoints {
		if n == len(answer) || len(rrs) > most {
			break
		}
		if !t.HasTarget(i, fqdn) || r.IsBarred(i) {
			continue
		}
		target := answer[n].(*dns.SRV).Target
		n++
		if n > 1 && answer[n-2].(*dns.SRV).Target == target || !seen.addTarget(target) { // with several ports it has one set of addresses
			continue
		}
		if ip, ok := t.Endpoint(i).Address.IP(); ok {
			rrs = append(rrs, block.NewAddress(target, ip, r.TTL))
		} else {
			rrs = hostGlue(rrs, r, target, room, now)
		}
	}
	return rrs
}

// targetSet has the targets of a shared name so far, because one target may be in several ranks.
// For other names equal targets are next to each other, and the set is nil.
type targetSet map[string]bool

//go:noinline // the map would be in the frame of all answers
func newTargetSet(t *subtree.Subtree) targetSet {
	if t.SharedName() == nil {
		return nil
	}
	return make(targetSet)
}

// addTarget reports whether a target is not in the set, and adds it. A nil set stays empty.
//
//go:noinline // as above
func (s targetSet) addTarget(target string) bool {
	if s == nil {
		return true
	}
	known := s[target]
	s[target] = true
	return !known
}

// hostGlue returns rrs with the addresses of a host in the zone of the result appended. A host with
// an address that its owner may not publish is barred, and so does not come here.
func hostGlue(rrs []dns.RR, r *zone.Result, host string, room int, now time.Time) []dns.RR {
	found, ok := r.LookupTarget(host, now)
	if !ok {
		return elsewhereGlue(rrs, r, host)
	}
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		if found.ResolveAs(qtype, now); found.Kind == zone.Success {
			rrs = AppendAnswer(rrs, &found, host, room)
		}
	}
	return rrs
}

// elsewhereGlue returns rrs with those addresses of a host elsewhere appended that the caller
// knows.
func elsewhereGlue(rrs []dns.RR, r *zone.Result, host string) []dns.RR {
	targets := r.Targets()
	i, ok := slices.BinarySearchFunc(targets, host, func(t zone.Target, host string) int { return strings.Compare(t.Name, host) })
	for ok && targets[i].Addresses == nil && i+1 < len(targets) && targets[i+1].Name == host {
		i++ // another owner has the same host
	}
	if !ok {
		return rrs
	}
	ips := targets[i].Addresses
	slices.SortFunc(ips, netip.Addr.Compare)
	ips = slices.Compact(ips)
	v6 := slices.IndexFunc(ips, netip.Addr.Is6)
	if v6 < 0 {
		v6 = len(ips)
	}
	rrs = record.AppendAddresses(rrs, host, ips[:v6], targets[i].TTL)
	return record.AppendAddresses(rrs, host, ips[v6:], targets[i].TTL)
}
