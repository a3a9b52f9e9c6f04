package zone_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// TestTTLOfLiveAndStaleAnswers has rows 7.5 to 7.7. An answer is
// kept by nobody after the retention, so the last second of it has none.
func TestTTLOfLiveAndStaleAnswers(t *testing.T) {
	const gone = 0
	tests := []struct {
		name      string
		ttl       uint32
		retention time.Duration
		live      bool
		left      time.Duration // until Expires; 0 is never
		want      uint32
	}{
		{name: "live", ttl: 30, live: true, want: 30},
		{name: "live, retention of the TTL", ttl: 30, retention: 30 * time.Second, live: true, want: 30},
		{name: "live, short retention", ttl: 30, retention: 10 * time.Second, live: true, want: 10},
		{name: "live, retention under a second", ttl: 30, retention: time.Millisecond, live: true, want: 1},
		{name: "live while others expire", ttl: 30, retention: time.Minute, live: true, left: time.Second, want: 30},
		{name: "stale for ever", ttl: 3600, want: 30},
		{name: "stale for ever, short TTL", ttl: 7, want: 7},
		{name: "stale, 30.9 s", ttl: 3600, left: 30900 * time.Millisecond, want: 30},
		{name: "stale, 12.9 s", ttl: 30, left: 12900 * time.Millisecond, want: 12},
		{name: "stale, 1 s", ttl: 30, left: time.Second, want: 1},
		{name: "stale, 0.999 s", ttl: 30, left: 999 * time.Millisecond, want: gone},
		{name: "stale for centuries", ttl: 30, left: 1<<63 - 1, want: 30},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := owner("o", "fed.example")
			o.TTL, o.Retention = tt.ttl, tt.retention
			b := builder(o)
			b.Put(0, service("s a.s.fed.example 192.0.2.1@80 i/TCP"), 1)
			status := zone.Status{Live: 1, Known: true}
			if !tt.live {
				status.Live = 2
			}
			if tt.left != 0 {
				status.Expires = now.Add(tt.left)
			}
			b.SetStatus(0, status)
			z := b.Publish(now)
			if timed := z.DependsOnTime(); timed != (tt.left != 0) {
				t.Errorf("timed %t", timed)
			}
			if tt.want == gone {
				expect(t, z, now, "a.s i.a.s _tcp._tcp.a.s 192-0-2-1.addr.a.s A SRV TXT ANY | NXDOMAIN")
				return
			}
			expect(t, z, now,
				fmt.Sprintf("a.s i.a.s 192-0-2-1.addr.a.s A | NOERROR | %d A 192.0.2.1", tt.want),
				fmt.Sprintf("a.s _tcp._tcp.a.s SRV | NOERROR | %d SRV 0 100 80 192-0-2-1.addr.a.s.fed.example.", tt.want),
			)
			for _, qtype := range []uint16{dns.TypeA, dns.TypeMX} {
				if r := z.Lookup("a.s.fed.example.", qtype, now); r.IsStale() == tt.live {
					t.Errorf("%s: stale %t", dns.Type(qtype), r.IsStale())
				}
			}
		})
	}
}

// TestUnsynced has row 7.10: what cannot be known yet is neither denied nor
// shown to a secondary, and what is known is answered.
func TestUnsynced(t *testing.T) {
	type statuses [2]zone.Status
	grace := now.Add(time.Second)
	known := zone.Status{Live: 1, Known: true}
	tests := []struct {
		name     string
		statuses statuses
		at       time.Time
		synced   bool
		timed    bool
		unheard  bool
	}{
		{name: "nothing known", timed: true, unheard: true},
		{name: "none known, grace for one", statuses: statuses{{Grace: grace}}, timed: true},
		{name: "all known", statuses: statuses{known, known}, synced: true},
		{name: "one known, grace for the other", statuses: statuses{known, {Grace: grace}}, timed: true},
		{name: "one known, grace over", statuses: statuses{known, {Grace: grace}}, at: grace, synced: true, timed: true},
		{name: "one known, no grace", statuses: statuses{{}, known}, synced: true, timed: true},
		{name: "none known, grace over", statuses: statuses{{Grace: grace}, {Grace: grace}}, at: grace, timed: true, unheard: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := zonetest.NewBuilder(config(owner("o1", "fed.example"), owner("o2", "fed.example", "empty.example")), nil)
			b.Put(0, service("s a.s.fed.example 192.0.2.1@80 i/TCP"), 1)
			for i, s := range tt.statuses {
				b.SetStatus(i, s)
			}
			z := b.Publish(now)
			if tt.at.IsZero() {
				tt.at = now
			}
			expect(t, z, tt.at,
				"a.s i.a.s A | NOERROR | 30 A 192.0.2.1",
				"a.s MX | NODATA",
				"dns _tcp.a.s A | NODATA", // no service can be published there
				"ns.dns A | NOERROR | 5 A 192.0.2.53",
			)
			if tt.synced {
				expect(t, z, tt.at, "nope x.a.s x.dns A ANY | NXDOMAIN", "fed.example. s addr.a.s A | NODATA",
					fmt.Sprintf("fed.example. SOA | NOERROR | 5 SOA ns.dns.fed.example. hostmaster.fed.example. %d 300 60 86400 5", now.Unix()))
			} else {
				kind := "UNSYNCED"
				if tt.unheard {
					kind = "UNHEARD"
				}
				expect(t, z, tt.at, "nope x.a.s x.dns A ANY | "+kind, "fed.example. SOA NS A MX | UNSYNCED")
				// Row 5.5: an empty non-terminal may be the name of a service.
				expect(t, z, tt.at, "s addr.a.s A SRV ANY | UNSYNCED")
			}
			if apex, synced := z.OriginSynced("fed.example.", tt.at); !apex || synced != tt.synced {
				t.Errorf("Synced: %t, %t", apex, synced)
			}
			if apex, _ := z.OriginSynced("s.fed.example.", tt.at); apex {
				t.Error("a name in the zone is no apex")
			}
			if z.DependsOnTime() != tt.timed {
				t.Errorf("timed %t", z.DependsOnTime())
			}
		})
	}
}

// TestStaleOwner checks which owner makes an answer stale: the one whose service
// has the name, or one whose service a host of it is.
func TestStaleOwner(t *testing.T) {
	b := builder(owner("o1", "fed.example"), owner("o2", "fed.example"))
	b.Put(0, service("live live.fed.example 192.0.2.1@80 i/TCP"), 1)
	b.Put(0, service("via via.fed.example old.fed.example@80 i/TCP"), 1)
	b.Put(1, service("old old.fed.example 192.0.2.2@80 i/TCP"), 1)
	b.Put(1, service("back back.fed.example live.fed.example@80 i/TCP"), 1)
	b.SetStatus(1, zone.Status{Live: 2, Known: true, Lost: now})
	z := b.Publish(now)
	for _, tt := range []struct {
		name         string
		qtype        uint16
		owner, stale string
	}{
		{"live.fed.example.", dns.TypeA, "o1", ""},
		{"old.fed.example.", dns.TypeA, "o2", "o2"},
		{"i.old.fed.example.", dns.TypeMX, "o2", "o2"},
		{"via.fed.example.", dns.TypeA, "o1", "o2"},
		{"via.fed.example.", dns.TypeSRV, "o1", ""},
		{"back.fed.example.", dns.TypeA, "o2", "o2"},
		{"nope.fed.example.", dns.TypeA, "", ""},
	} {
		r := z.Lookup(tt.name, tt.qtype, now)
		source, _, _ := r.Source()
		if got := r.StaleOwner(); got != tt.stale || source != tt.owner || r.IsStale() != (tt.stale != "") {
			t.Errorf("%s %s is of %q and stale by %q (%t), want %q and %q", tt.name, dns.Type(tt.qtype), source, got, r.IsStale(), tt.owner, tt.stale)
		}
	}
}
