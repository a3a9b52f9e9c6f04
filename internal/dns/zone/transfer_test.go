package zone_test

import (
	gocmp "cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// transfer returns a whole zone, after it has checked its form: between two
// equal SOA one NS, the name server, and then every name once.
func transfer(t *testing.T, z *zone.Zone, origin string) []dns.RR {
	t.Helper()
	var all []dns.RR
	for rrs := range reply.FullTransfer(z, origin, now) {
		all = append(all, rrs...)
	}
	if len(all) < 3 || all[0].Header().Rrtype != dns.TypeSOA || all[0].String() != all[len(all)-1].String() || all[1].Header().Rrtype != dns.TypeNS {
		t.Fatalf("transfer of %s: %v", origin, all)
	}
	body, last := all[2:len(all)-1], ""
	for len(body) > 0 && body[0].Header().Name == all[1].(*dns.NS).Ns {
		body = body[1:]
	}
	seen, names := make(map[string]bool), make(map[string]bool)
	for _, rr := range body {
		h := rr.Header()
		switch {
		case h.Rrtype == dns.TypeSOA || h.Rrtype == dns.TypeNS && z.SOA(h.Name) == nil:
			t.Errorf("within the transfer of %s: %s", origin, rr)
		case last != h.Name && names[h.Name]:
			t.Errorf("%s comes again after %s", h.Name, last)
		case seen[rr.String()]:
			t.Errorf("twice: %s", rr)
		}
		seen[rr.String()], names[h.Name], last = true, true, h.Name
	}
	return all
}

// TestTransferIsWhatIsAnswered compares transfers of random catalogs with what
// Lookup says of every name.
func TestTransferIsWhatIsAnswered(t *testing.T) {
	for seed := range seeds(200) {
		c := newChaos(seed)
		b := zonetest.NewBuilder(c.config, nil)
		for range 20 {
			c.step(b)
		}
		z := b.Publish(now)
		for origin := range c.origins() {
			transferred := make(map[string][]string)
			for i, rr := range transfer(t, z, origin) {
				if key := setKey(rr.Header().Name, rr.Header().Rrtype); i == 0 || rr.Header().Rrtype != dns.TypeSOA {
					transferred[key] = append(transferred[key], rr.String())
				}
			}
			for name, at := range c.written() {
				if c.originOf(name) != origin {
					continue
				}
				for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeSOA, dns.TypeNS} {
					r := z.Lookup(name, qtype, now)
					var want []string
					if r.Kind == zone.Success || r.Kind == zone.Indirect {
						want = lines(reply.AppendAnswer(nil, &r, name, 0))
					}
					got := transferred[setKey(name, qtype)]
					delete(transferred, setKey(name, qtype))
					if r.Kind == zone.Unsynced || r.Kind == zone.Unheard {
						continue // never asked for: it is not transferred then
					}
					if at.addressed && (qtype == dns.TypeA || qtype == dns.TypeAAAA) && c.leaves(at.endpoints) {
						got, want = own(got, want, at.endpoints, qtype)
					}
					if qtype == dns.TypeSRV && c.leaves(at.endpoints) { // a target may be denied by what another zone has
						got = slices.DeleteFunc(got, func(rr string) bool { return !slices.Contains(want, rr) })
					}
					if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
						t.Fatalf("seed %d: %s %s (-answered +transferred):\n%s\n%s", seed, name, dns.Type(qtype), d, c)
					}
				}
			}
			for key, rrs := range c.delegations(origin) {
				if d := cmp.Diff(rrs, transferred[key]); d != "" {
					t.Fatalf("seed %d: delegation %s (-want +transferred):\n%s\n%s", seed, key, d, c)
				}
				delete(transferred, key)
			}
			for key, rrs := range transferred {
				t.Fatalf("seed %d: transfer of %s has %s, which is not answered: %v\n%s", seed, origin, key, rrs, c)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d:\n%s", seed, c)
		}
	}
}

func setKey(name string, qtype uint16) string { return name + " " + dns.Type(qtype).String() }

// delegations has row 8.3: what the transfer of an origin has of those right
// below it.
func (o *oracle) delegations(origin string) map[string][]string {
	all := make(map[string][]string)
	for inner := range o.origins() {
		if inner == origin || !isBelow(inner, origin) {
			continue
		}
		if _, above, _ := strings.Cut(inner, "."); o.originOf(gocmp.Or(above, ".")) != origin {
			continue
		}
		ns, ttl := join("ns.dns", inner), o.negativeTTL(inner)
		all[setKey(inner, dns.TypeNS)] = []string{fmt.Sprintf("%s\t%d\tIN\tNS\t%s", inner, ttl, ns)}
		for _, ip := range o.config.NameServer {
			all[setKey(ns, addressType(ip))] = []string{fmt.Sprintf("%s\t%d\tIN\t%s\t%s", ns, ttl, dns.Type(addressType(ip)), ip)}
		}
	}
	return all
}

// leaves reports whether hosts among the endpoints may lead out of a zone and
// into another of ours.
func (o *oracle) leaves(endpoints []federation.Endpoint) bool {
	return len(o.origins()) > 1 && slices.ContainsFunc(endpoints, func(ep federation.Endpoint) bool {
		_, ok := ep.Address.Host()
		return ok
	})
}

// own checks that what was transferred is among what is answered, and has the
// endpoints that are addresses; it returns one thing twice then.
func own(transferred, answered []string, endpoints []federation.Endpoint, qtype uint16) (got, want []string) {
	data := func(rrs []string) map[string]bool {
		all := make(map[string]bool)
		for _, rr := range rrs {
			all[rr[strings.LastIndexByte(rr, '\t')+1:]] = true
		}
		return all
	}
	in, among := data(transferred), data(answered)
	for ip := range in {
		if !among[ip] {
			return transferred, answered
		}
	}
	for _, ep := range endpoints {
		if ip, ok := ep.Address.IP(); ok && addressType(ip) == qtype && !in[ip.String()] {
			return transferred, answered
		}
	}
	return answered, answered
}

// TestChangesMoveSerials takes random catalogs through changes: a transfer that
// differs from the last one has another serial.
func TestChangesMoveSerials(t *testing.T) {
	moved := 0
	for seed := range seeds(100) {
		c := newChaos(seed)
		c.lasting = true
		b := zonetest.NewBuilder(c.config, nil)
		var before map[string]string
		for step := range 30 {
			z := b.Publish(now.Add(time.Duration(step) * time.Second))
			after := make(map[string]string)
			for origin := range c.origins() {
				serial := z.SOA(origin).Serial
				content := strings.Join(slices.Sorted(slices.Values(lines(transfer(t, z, origin)))), "\n")
				content = strings.ReplaceAll(content, fmt.Sprint(serial), "SERIAL")
				after[origin] = content
				if before != nil && before[origin] != content {
					moved++
					if want := uint32(now.Unix()) + uint32(step); serial != want {
						t.Fatalf("seed %d: %s changed and has serial %d, want %d (-before +after)\n%s\n%s",
							seed, origin, serial, want, cmp.Diff(before[origin], content), c)
					}
				}
			}
			before = after
			c.step(b)
		}
	}
	if moved == 0 {
		t.Error("nothing changed")
	}
}

// TestLongestZone has a client read the SOA and the NS of a zone that is as long as can be. One that is longer by a
// character could not be read.
func TestLongestZone(t *testing.T) {
	for more := range 2 {
		name := strings.Repeat("l", 50+more) + "." + strings.Repeat(strings.Repeat("l", 63)+".", 3)
		if len(name) != zone.MaxOrigin+more {
			t.Fatalf("%d characters", len(name))
		}
		r := builder(owner("a", name)).Publish(now).Lookup(name, dns.TypeNS, now)
		m := new(dns.Msg)
		m.Answer, m.Ns = reply.AppendAnswer(nil, &r, name, 0), reply.AppendAuthority(nil, &r)
		wire := must.Value(m.Pack())
		if err := new(dns.Msg).Unpack(wire); (err == nil) != (more == 0) {
			t.Errorf("a zone of %d characters: %v", len(name), err)
		}
	}
}

// TestGraceEnds has an owner that never comes: when queries stop to wait for it, the zone is whole for secondaries.
// That is a version of its own, so that they are told.
func TestGraceEnds(t *testing.T) {
	b := builder(owner("a", "fed.example"), owner("b", "fed.example"), owner("c", "other.example"))
	grace := now.Add(30 * time.Second)
	b.SetStatus(1, zone.Status{Live: 1, Grace: grace})
	b.SetStatus(2, zone.Status{Live: 1, Grace: grace.Add(time.Second)})
	b.Put(0, service("web web.fed.example 192.0.2.1@80"), 1)
	z := b.Publish(now)
	for _, at := range []time.Time{now, grace.Add(-1)} {
		if _, synced := b.Publish(at).OriginSynced("fed.example.", at); synced || b.Publish(at) != z {
			t.Errorf("synced is %v after %s, or another version", synced, at.Sub(now))
		}
	}
	if due, ok := b.Due(); !ok || !due.Equal(grace) {
		t.Errorf("due after %s, %v", due.Sub(now), ok)
	}
	whole := b.Publish(grace)
	if _, synced := whole.OriginSynced("fed.example.", grace); !synced || whole == z || whole.SOA("fed.example.").Serial != z.SOA("fed.example.").Serial {
		t.Errorf("synced is %v, or not another version with the same serial", synced)
	}
	if due, ok := b.Due(); !ok || !due.Equal(grace.Add(time.Second)) {
		t.Errorf("due after %s, %v", due.Sub(now), ok)
	}
	b.SetStatus(2, zone.Status{Live: 1, Known: true})
	b.Publish(grace.Add(2 * time.Second))
	b.Publish(grace.Add(3 * time.Second))
	if due, ok := b.Due(); ok {
		t.Errorf("due after %s", due.Sub(now))
	}
}
