package zone_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// reversing makes an owner of fed.example. whose addresses in some ranges have reverse names.
func reversing(id string, ranges ...string) zone.Owner {
	o := owner(id, "fed.example")
	for _, s := range ranges {
		o.Reverse = append(o.Reverse, netip.MustParsePrefix(s))
	}
	return o
}

// TestReverse has the reverse names of addresses, which are in none of the zones.
func TestReverse(t *testing.T) {
	const (
		one = "1.2.0.192.in-addr.arpa."
		two = "2.2.0.192.in-addr.arpa."
		six = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa."
		web = " PTR | NOERROR | 30 PTR v1.web.fed.example."
		no  = " PTR | OUTSIDE"
	)
	b := builder(reversing("o1", "192.0.2.0/24", "2001:db8::/32"), reversing("o2", "192.0.2.0/24"), owner("o3", "fed.example"))
	step := func(rows ...string) {
		t.Helper()
		expect(t, b.Publish(now), now, rows...)
	}
	b.Put(0, service("web web.fed.example 192.0.2.1@80 192.0.2.1@443 2001:db8::1@80 198.51.100.1@80 v1/HTTP"), 1)
	step(one+web, six+web, two+no, "1.100.51.198.in-addr.arpa."+no, one+" A ANY TXT | OUTSIDE", "v1.web PTR | NODATA", "web PTR | NODATA")

	b.Put(0, service("web web.fed.example 192.0.2.1@80[a] 192.0.2.1@443[b] 192.0.2.2@443[b] v1/HTTP[a] v2/HTTPS[b]"), 1)
	step(one+no, two+" PTR | NOERROR | 30 PTR v2.web.fed.example.", six+no)

	b.Put(0, service("web web.fed.example 192.0.2.1@80 v1/HTTP"), 1)
	b.Put(1, service("shop shop.fed.example 192.0.2.1@80 v1/HTTP"), 1)
	b.Put(2, service("other other.fed.example 192.0.2.1@80 192.0.2.2@80 v1/HTTP"), 1) // its block wants none
	step(one+no, two+no)
	b.Remove(1, "shop")
	step(one + web)

	// The name of the instance is another service's.
	b.Put(0, service("taker v1.web.fed.example 192.0.2.9@80 v1/HTTP"), 1)
	step(one+no, "9.2.0.192.in-addr.arpa. PTR | NOERROR | 30 PTR v1.v1.web.fed.example.")
	b.Remove(0, "taker")
	step(one + web)

	// Another owner's instance at the same name is the same name.
	b.Put(1, service("web web.fed.example 192.0.2.1@80 v1/HTTP"), 1)
	step(one + web)
	b.SetStatus(0, zone.Status{Live: 2, Known: true, Expires: now.Add(10 * time.Second)})
	b.Remove(1, "web")
	step(one + " PTR | NOERROR | 10 PTR v1.web.fed.example.")
	expect(t, b.Publish(now), now.Add(10*time.Second), one+no)
	b.Remove(0, "web")
	step(one + no)
}

// All blocks that share a name must want reverse names, whether or not they have a service there.
func TestReverseOfSharedNames(t *testing.T) {
	for _, both := range []bool{true, false} {
		first, second := sharer("a", "*", nil), sharer("b", "*", nil)
		first.Reverse = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		want := "1.2.0.192.in-addr.arpa. PTR | OUTSIDE"
		if both {
			second.Reverse = first.Reverse
			want = "1.2.0.192.in-addr.arpa. PTR | NOERROR | 30 PTR v1.web.fed.example."
		}
		b := builder(first, second)
		b.Put(0, service("web web.fed.example 192.0.2.1@443 v1/HTTPS"), 1)
		expect(t, b.Publish(now), now, want)
		b.Put(1, service("web web.fed.example 192.0.2.2@443 v1/HTTPS"), 1)
		expect(t, b.Publish(now), now, want)
		b.SetStatus(1, zone.Status{Live: 2, Known: true, Lost: now.Add(-time.Hour), Expires: now})
		expect(t, b.Publish(now), now, want)
	}
}

// TestReverseWalk changes services at random, and compares with all that there are after each
// change.
func TestReverseWalk(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	b := builder(reversing("o1", "192.0.2.0/24"), reversing("o2", "192.0.2.0/30"))
	there := make(map[string]*federation.Service) // by owner and name; each fqdn is of one service
	found := 0
	for range 2000 {
		owner, name := random.IntN(2), fmt.Sprintf("s%d", random.IntN(5))
		key := fmt.Sprintf("%d %s", owner, name)
		if random.IntN(3) == 0 {
			b.Remove(owner, name)
			delete(there, key)
		} else {
			text := fmt.Sprintf("%s %s%d.fed.example", name, name, owner)
			for range 1 + random.IntN(3) {
				text += fmt.Sprintf(" 192.0.2.%d@80[%d]", random.IntN(8), random.IntN(3))
			}
			for i := range 1 + random.IntN(2) {
				text += fmt.Sprintf(" i%d/HTTP[%d]", i, random.IntN(3))
			}
			there[key] = service(text)
			b.Put(owner, there[key], 1)
		}
		z := b.Publish(now)
		for n := range 8 {
			ip := netip.AddrFrom4([4]byte{192, 0, 2, byte(n)})
			instances := make(map[string]bool)
			for key, s := range there {
				if key[0] == '0' || n < 4 {
					maps.Copy(instances, holding(s, ip))
				}
			}
			want := "OUTSIDE"
			if names := slices.Collect(maps.Keys(instances)); len(names) == 1 {
				want = "30 PTR " + names[0]
				found++
			}
			reverse := must.Value(dns.ReverseAddr(ip.String()))
			got := ask(z, reverse, "PTR", now)
			if d := cmp.Diff(want, got[len(got)-1]); d != "" {
				t.Fatalf("%s (-want +got):\n%s\n%v", ip, d, there)
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d reverse names were found", found)
	}
}

// holding returns the names of the instances of a service that have an address.
func holding(s *federation.Service, ip netip.Addr) map[string]bool {
	names := make(map[string]bool)
	for _, in := range s.Instances {
		selects := func(ep federation.Endpoint) bool {
			return slices.ContainsFunc(in.EndpointSelector, func(l string) bool { return slices.Contains(ep.Labels, l) })
		}
		none := !slices.ContainsFunc(s.Endpoints, selects)
		for _, ep := range s.Endpoints {
			if own, _ := ep.Address.IP(); own == ip && (none || selects(ep)) {
				names[in.ID+"."+s.FQDN.String()] = true
			}
		}
	}
	return names
}
