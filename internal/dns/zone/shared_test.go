package zone_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/status"
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
		if r := z.Lookup("web.fed.example.", dns.TypeA, at); r.IsStale() != stale {
			t.Errorf("stale is %v", r.IsStale())
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
	want := []status.SharedEndpoint{
		{Endpoint: "192.0.2.1:80", Owners: []string{"a"}, Answered: true, Rule: "it is live"},
		{Endpoint: "192.0.2.2:80", Owners: []string{"b"}, Rule: "its owner is lost, so live endpoints go first", Expires: at.Add(time.Hour)},
	}
	if diff := cmp.Diff(want, explain(b.Publish(at), "web.fed.example.", dns.TypeA, at).Holder.Shared); diff != "" {
		t.Errorf("shared (-want +got):\n%s", diff)
	}
	at = at.Add(time.Hour)
	look(false, "web A | NOERROR | 30 A 192.0.2.1", "192-0-2-2.addr.web A | NXDOMAIN")
	b.Publish(at.Add(time.Second))
	if due, ok := b.Due(); ok {
		t.Errorf("due at %s, though nothing is left to expire", due)
	}
}

// TestSharedHostBehindRefusedAddress has a host whose live endpoint has an address that the owner may not publish
// that is led there: for that owner it counts for nothing, and the stale one is answered.
func TestSharedHostBehindRefusedAddress(t *testing.T) {
	b := sharer("b", "host.fed.example", nil)
	b.Admits = func(ip netip.Addr) bool { return ip != netip.MustParseAddr("192.0.2.1") }
	z := builder(sharer("a", "host.fed.example", nil), b)
	z.Put(0, service("host host.fed.example 192.0.2.1@80 v1/HTTP"), 1)
	z.Put(1, service("host host.fed.example 192.0.2.2@80 v1/HTTP"), 1)
	z.Put(1, service("web web.fed.example host.fed.example@80 v1/HTTP"), 2)
	z.SetStatus(1, zone.Status{Live: 2, Known: true, Lost: now})
	expect(t, z.Publish(now), now, "web A | NOERROR | 30 A 192.0.2.2", "host A | NOERROR | 30 A 192.0.2.1")
}
