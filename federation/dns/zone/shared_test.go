package zone_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// sharer makes an owner of fed.example. that shares the names, and of which change changes how.
func sharer(id, names string, change func(*zone.Sharing)) zone.Owner {
	o := owner(id, "fed.example")
	o.Sharing = zone.Sharing{Min: 1}
	for name := range strings.FieldsSeq(names) {
		o.Sharing.Names = append(o.Sharing.Names, must.Value(pattern.ParseName(name)))
	}
	if change != nil {
		change(&o.Sharing)
	}
	return o
}

// TestSharedName follows one name of two owners from the first to the last endpoint.
func TestSharedName(t *testing.T) {
	b := builder(sharer("a", "web.fed.example", nil), sharer("b", "*.fed.example", nil), owner("c", "fed.example"))
	b.Put(0, service("web web.fed.example 192.0.2.1@80 192.0.2.2@80 192.0.2.3@80 v1/HTTP"), 1)
	b.Put(1, service("shop web.fed.example 192.0.2.3@80 192.0.2.4@80 192.0.2.5@80 v1/HTTP v2/HTTP"), 1)
	b.Put(2, service("web web.fed.example 192.0.2.9@80 v9/HTTP"), 1)
	expect(t, b.Publish(now), now,
		"web A | NOERROR | 30 A 192.0.2.1 | 30 A 192.0.2.2 | 30 A 192.0.2.3 | 30 A 192.0.2.4 | 30 A 192.0.2.5",
		"v1.web A | NOERROR | 30 A 192.0.2.1 | 30 A 192.0.2.2 | 30 A 192.0.2.3 | 30 A 192.0.2.4 | 30 A 192.0.2.5",
		"v2.web A | NOERROR | 30 A 192.0.2.3 | 30 A 192.0.2.4 | 30 A 192.0.2.5",
		"v2.web SRV | NOERROR | 30 SRV 0 100 80 192-0-2-3.addr.web.fed.example. | 30 SRV 0 100 80 192-0-2-4.addr.web.fed.example. | 30 SRV 0 100 80 192-0-2-5.addr.web.fed.example.",
		"web AAAA | NODATA", "v9.web A | NXDOMAIN", "192-0-2-5.addr.web A | NOERROR | 30 A 192.0.2.5",
	)
	if n := faults(b, 2)["fqdn_conflict"]; n != 1 {
		t.Errorf("%d conflicts of the owner that does not share", n)
	}
	b.Put(1, service("shop web.fed.example 192.0.2.4@80 192.0.2.5@80 v1/HTTP v2/HTTP"), 1)
	expect(t, b.Publish(now), now, "web A | NOERROR | 30 A 192.0.2.1 | 30 A 192.0.2.2 | 30 A 192.0.2.3 | 30 A 192.0.2.4 | 30 A 192.0.2.5")
	b.Put(0, service("web web.fed.example 192.0.2.1@80 192.0.2.2@80 v1/HTTP"), 1)
	expect(t, b.Publish(now), now, "web A | NOERROR | 30 A 192.0.2.1 | 30 A 192.0.2.2 | 30 A 192.0.2.4 | 30 A 192.0.2.5")
	b.Remove(0, "web")
	expect(t, b.Publish(now), now, "web A | NOERROR | 30 A 192.0.2.4 | 30 A 192.0.2.5")
	b.Remove(1, "shop")
	expect(t, b.Publish(now), now, "web A | NOERROR | 30 A 192.0.2.9")
}

// TestSharedTiers has the near tier grow from nothing: what is far is answered while the near one is not
// enough, and only then.
func TestSharedTiers(t *testing.T) {
	enough := func(s *zone.Sharing) { s.Min = 3 }
	b := builder(
		sharer("near", "web.fed.example", enough),
		sharer("far", "web.fed.example", func(s *zone.Sharing) { enough(s); s.Tiers = []zone.Tier{{N: 1}} }),
	)
	near := func(n int) *federation.Service {
		s := "web web.fed.example v1/HTTP"
		for i := range n {
			s += fmt.Sprintf(" 10.0.0.%d@80", 1+i)
		}
		return service(s)
	}
	look := func(want int, far bool) {
		t.Helper()
		answer := ask(b.Publish(now), "web.fed.example.", "A", now)
		if got := slices.Contains(answer, "30 A 192.0.2.1"); got != far || len(answer)-1 != want {
			t.Errorf("far is answered: %v, of %d addresses; want %v of %d", got, len(answer)-1, far, want)
		}
	}
	b.Put(1, service("web web.fed.example 192.0.2.1@80 192.0.2.2@80 192.0.2.3@80 v1/HTTP"), 1)
	look(3, true)
	b.Put(0, near(1), 1)
	look(4, true)
	b.Put(0, near(2), 1)
	look(5, true)
	b.Put(0, near(30), 1)
	look(30, false)
	b.Put(0, near(2), 1)
	look(5, true)
}

// TestSharedLoss loses an owner, the other one, and gets one of them back. What is lost stands behind
// what is there at once, and is there at once again.
func TestSharedLoss(t *testing.T) {
	b := builder(sharer("a", "web.fed.example", nil), sharer("b", "web.fed.example", nil))
	b.Put(0, service("web web.fed.example 192.0.2.1@80 v1/HTTP"), 1)
	b.Put(1, service("web web.fed.example 192.0.2.2@80 v1/HTTP"), 1)
	at := now
	srv := func(of ...string) string { // in this order
		return "web SRV | NOERROR | 30 SRV " + of[0] + ".addr.web.fed.example. | 30 SRV " + of[1] + ".addr.web.fed.example."
	}
	look := func(stale bool, rows ...string) {
		t.Helper()
		z := b.Publish(at)
		expect(t, z, at, rows...)
		if r := z.Lookup("web.fed.example.", dns.TypeA, at); r.Stale() != stale {
			t.Errorf("stale is %v", r.Stale())
		}
	}
	both := "web A | NOERROR | 30 A 192.0.2.1 | 30 A 192.0.2.2"
	look(false, both, srv("0 100 80 192-0-2-1", "0 100 80 192-0-2-2"))
	b.SetStatus(0, zone.Status{Live: 2, Known: true, Lost: at, Expires: at.Add(time.Hour)})
	look(false, "web A | NOERROR | 30 A 192.0.2.2", srv("0 100 80 192-0-2-2", "10 100 80 192-0-2-1"))
	end := at.Add(time.Hour - time.Second + 1) // when its TTL would be 0
	b.Publish(at.Add(time.Second))             // the serial has moved
	if due, ok := b.Due(); !ok || !due.Equal(end) {
		t.Errorf("due at %s, not %s", due, end)
	}
	at = at.Add(time.Minute)
	b.SetStatus(1, zone.Status{Live: 2, Known: true, Lost: at, Expires: at.Add(time.Hour)})
	look(true, both, srv("10 100 80 192-0-2-1", "10 100 80 192-0-2-2"))
	b.SetStatus(0, zone.Status{Live: 2, Known: true})
	b.Confirm(0, "web", 2)
	look(false, "web A | NOERROR | 30 A 192.0.2.1", srv("0 100 80 192-0-2-1", "10 100 80 192-0-2-2"))
	want := []zone.SharedEndpoint{
		{Address: "192.0.2.1", Port: 80, Owners: []int{0}, Live: true, Answered: true},
		{Address: "192.0.2.2", Port: 80, Owners: []int{1}},
	}
	if diff := cmp.Diff(want, b.Publish(at).Explain("web.fed.example.", dns.TypeA, at).Holder.Shared); diff != "" {
		t.Errorf("shared (-want +got):\n%s", diff)
	}
	at = at.Add(time.Hour)
	look(false, "web A | NOERROR | 30 A 192.0.2.1", "192-0-2-2.addr.web A | NXDOMAIN")
	b.Publish(at.Add(time.Second))
	if due, ok := b.Due(); ok {
		t.Errorf("due at %s, though nothing is left to expire", due)
	}
}
