package zone_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// refreshed returns what a secondary with the serial gets, and whether that is a
// difference.
func refreshed(z *zone.Zone, origin string, serial uint32, at time.Time) (rrs []dns.RR, incremental bool) {
	for some := range reply.IncrementalTransfer(z, origin, serial, at) {
		rrs = append(rrs, some...)
	}
	if len(rrs) < 2 {
		return rrs, false
	}
	_, incremental = rrs[1].(*dns.SOA)
	return rrs, incremental
}

// content returns the records of a whole zone, its SOA once.
func content(t *testing.T, whole []dns.RR) map[string]bool {
	t.Helper()
	all := make(map[string]bool)
	for _, rr := range whole[:len(whole)-1] {
		if all[rr.String()] {
			t.Fatalf("twice in a transfer: %s", rr)
		}
		all[rr.String()] = true
	}
	return all
}

// patched returns the content with a difference applied to it, as strictly as a
// secondary can (RFC 1995 section 4): what goes must be there, and what comes must
// not have been: nothing goes and comes.
func patched(t *testing.T, before map[string]bool, rrs []dns.RR) map[string]bool {
	t.Helper()
	after := maps.Clone(before)
	soas := 0
	for i, rr := range rrs[1 : len(rrs)-1] {
		if _, ok := rr.(*dns.SOA); ok {
			soas++
		}
		text := rr.String()
		switch {
		case soas == 1 && !after[text]:
			t.Fatalf("record %d, which goes, is not there: %s", i, text)
		case soas == 1:
			delete(after, text)
		case before[text] || after[text]:
			t.Fatalf("record %d, which comes, was there: %s", i, text)
		default:
			after[text] = true
		}
	}
	if first, last := rrs[0].String(), rrs[len(rrs)-1].String(); soas != 2 || !after[first] || first != last {
		t.Fatalf("%d SOA within a difference from %s to %s", soas, first, last)
	}
	return after
}

// secondaries keep, for every serial that they were given, all that they were
// given with it.
type secondaries struct {
	zones       map[string]map[uint32][]map[string]bool // by origin and serial
	differences int                                     // that changed something
}

func newSecondaries() secondaries {
	return secondaries{zones: make(map[string]map[uint32][]map[string]bool)}
}

// refresh lets a new secondary transfer each zone, and those with earlier serials
// get what they lack.
func (s *secondaries) refresh(t *testing.T, z *zone.Zone, origins []string, at time.Time) {
	t.Helper()
	for _, origin := range origins {
		if _, synced := z.OriginSynced(origin, at); !synced {
			continue
		}
		if s.zones[origin] == nil {
			s.zones[origin] = make(map[uint32][]map[string]bool)
		}
		bySerial := s.zones[origin]
		serial := z.SOA(origin).Serial
		whole, incremental := refreshed(z, origin, 0, at)
		want := content(t, whole)
		if got := whole[0].(*dns.SOA).Serial; got != serial || incremental {
			t.Fatalf("%s: transfer of serial %d instead of %d, incremental %t", origin, got, serial, incremental)
		}
		for before, all := range bySerial {
			if int32(serial-before) <= 0 {
				continue
			}
			rrs, incremental := refreshed(z, origin, before, at)
			if !incremental {
				if got := content(t, rrs); !maps.Equal(got, want) {
					t.Fatalf("%s: two transfers of serial %d:\n%s", origin, serial, cmp.Diff(want, got))
				}
				continue
			}
			if len(rrs) > 4 {
				s.differences++
			}
			for _, had := range all {
				if got := patched(t, had, rrs); !maps.Equal(got, want) {
					t.Fatalf("%s: from serial %d to %d (-whole +patched):\n%s", origin, before, serial, cmp.Diff(want, got))
				}
			}
		}
		if !slices.ContainsFunc(bySerial[serial], func(has map[string]bool) bool { return maps.Equal(has, want) }) {
			bySerial[serial] = append(bySerial[serial], want)
		}
	}
}

// follow publishes a version after every few changes of the chaos, at various times.
func (s *secondaries) follow(t *testing.T, c *chaos, versions int) {
	t.Helper()
	if c.IntN(3) == 0 { // the owners share what they have
		for i := range c.config.Owners {
			c.config.Owners[i].Sharing = zone.Sharing{Names: []pattern.Name{must.Value(pattern.ParseName("*"))}, Min: 1}
		}
	}
	b := zonetest.NewBuilder(c.config, nil)
	origins := slices.Sorted(maps.Keys(c.origins()))
	at := now
	defer func() {
		if t.Failed() {
			t.Log(c)
		}
	}()
	for range versions {
		for range 1 + c.IntN(3) {
			c.step(b)
		}
		at = at.Add(time.Duration(c.IntN(5)) * 300 * time.Millisecond)
		s.refresh(t, b.Publish(at), origins, at)
	}
}

// TestUpdateIsTheDifference takes random catalogs through histories: whatever a
// secondary was given with a serial, the difference from there makes the newest
// zone of it.
func TestUpdateIsTheDifference(t *testing.T) {
	catalogs, differences := seeds(150), 0
	for seed := range catalogs {
		c := newChaos(seed)
		c.lasting = seed%2 == 0
		s := newSecondaries()
		t.Run(fmt.Sprint(seed), func(t *testing.T) { s.follow(t, c, 25) })
		differences += s.differences
	}
	if differences < 5*int(catalogs) {
		t.Errorf("%d differences", differences)
	}
}

// addHistories gives a fuzz target some random histories to begin with.
func addHistories(f *testing.F) {
	f.Helper()
	for seed := range uint64(8) {
		history := make([]byte, 1024)
		random := rand.New(rand.NewPCG(seed, 1))
		for i := range history {
			history[i] = byte(random.Uint32())
		}
		f.Add(history)
	}
}

// FuzzUpdate is TestUpdateIsTheDifference for a history made of bytes.
func FuzzUpdate(f *testing.F) {
	addHistories(f)
	f.Fuzz(func(t *testing.T, history []byte) {
		c := newChaosFrom(bytesSource{&history})
		s := newSecondaries()
		s.follow(t, c, 12)
	})
}

// kept returns a builder with 40 services beside those given, whose serial of a
// minute ago is in the history.
func kept(services ...string) *zonetest.Builder {
	o1 := owner("o1", "fed.example")
	o1.TTL = 60
	b := builder(o1, owner("o2", "fed.example"))
	for i := range 40 {
		b.Put(0, service(fmt.Sprintf("filler%d filler%d.fed.example 192.0.2.1@80 i/TCP", i, i)), 1)
	}
	b.Publish(now.Add(-time.Hour))
	b.Put(0, service("last last.fed.example 192.0.2.1@80 i/TCP"), 1)
	for i, s := range services {
		b.Put(i%2, service(s), 1)
	}
	b.Publish(now.Add(-time.Minute))
	return b
}

// minuteAgo is the serial of kept.
var minuteAgo = uint32(now.Add(-time.Minute).Unix())

// TestUpdateOfTheWholeZone has what a difference cannot be made of, or not to
// advantage.
func TestUpdateOfTheWholeZone(t *testing.T) {
	const name = "fed.example."
	put := func(b *zonetest.Builder, text string) { b.Put(0, service(text), 1) }
	rival := func() *zonetest.Builder { return builder(owner("o", "fed.example", "other.example")) }
	tests := []struct {
		name   string
		change func(b *zonetest.Builder) // up to now
		serial uint32
	}{
		{"(none of this)", func(*zonetest.Builder) {}, minuteAgo},
		{"no serial", func(*zonetest.Builder) {}, 0},
		{"a serial that there was not", func(*zonetest.Builder) {}, minuteAgo - 1},
		{"the first serial of a process", func(*zonetest.Builder) {}, uint32(now.Add(-time.Hour).Unix())},
		{"TTL of everything", func(b *zonetest.Builder) { b.SetStatus(0, zone.Status{Live: 2, Known: true}) }, minuteAgo},
		{"TTL of everything, and back", func(b *zonetest.Builder) {
			b.SetStatus(0, zone.Status{Live: 2, Known: true})
			b.Publish(now.Add(-time.Second))
			b.SetStatus(0, zone.Status{Live: 1, Known: true})
		}, minuteAgo},
		{"services about to expire", func(b *zonetest.Builder) {
			b.SetStatus(1, zone.Status{Live: 1, Known: true, Expires: now.Add(29 * time.Second)})
		}, minuteAgo},
		{"the first of the services about to expire", func(b *zonetest.Builder) {
			b.SetStatus(1, zone.Status{Live: 1, Known: true, Soonest: now.Add(29 * time.Second), Expires: now.Add(time.Hour)})
		}, minuteAgo},
		{"services were about to expire", func(b *zonetest.Builder) {
			b.SetStatus(1, zone.Status{Live: 1, Known: true, Expires: now.Add(9 * time.Second)})
			put(b, "a a.fed.example 192.0.2.1@81 i/TCP")
			b.Publish(now.Add(-time.Second))
			b.SetStatus(1, zone.Status{Live: 1, Known: true})
		}, minuteAgo},
		{"names were not known", func(b *zonetest.Builder) {
			b.SetStatus(1, zone.Status{Live: 1, Grace: now})
			put(b, "a a.fed.example 192.0.2.1@81 i/TCP")
			b.Publish(now.Add(-time.Second))
			b.SetStatus(1, zone.Status{Live: 1, Known: true})
		}, uint32(now.Unix()) - 1},
		{"another builder of the zone", func(b *zonetest.Builder) { b.NoteRival(rival().Publish(now.Add(-time.Minute))) }, minuteAgo},
		{"another builder, that is ahead", func(b *zonetest.Builder) {
			b.NoteRival(rival().Publish(now.Add(-time.Second)))
			put(b, "a a.fed.example 192.0.2.1@81 i/TCP")
			b.Publish(now.Add(-time.Second))
		}, uint32(now.Unix()) - 1},
		{"many names, over and over", func(b *zonetest.Builder) {
			for i := range 55 {
				for j := range 500 {
					put(b, fmt.Sprintf("new%d new%d.fed.example 192.0.2.2@%d i/TCP", j, j, 1+i))
				}
				b.Publish(now.Add(time.Duration(i)*time.Second - time.Minute + time.Second))
			}
		}, minuteAgo},
		{"too many hosts of the zone", func(b *zonetest.Builder) {
			for i := range 1001 {
				put(b, fmt.Sprintf("new%d new%d.fed.example filler1.fed.example@80 i/TCP", i, i))
			}
			b.Publish(now.Add(-time.Second))
		}, uint32(now.Unix()) - 1},
		{"an hour", func(b *zonetest.Builder) {
			b.Publish(now.Add(-time.Second))
			put(b, "a a.fed.example 192.0.2.1@81 i/TCP")
			b.Publish(now.Add(time.Hour - time.Minute + time.Second))
		}, minuteAgo},
		{"600 serials", func(b *zonetest.Builder) {
			for i := range 600 {
				put(b, fmt.Sprintf("a a.fed.example 192.0.2.1@%d i/TCP", 1+i))
				b.Publish(now.Add(time.Duration(i)*time.Second - time.Minute + time.Second))
			}
		}, minuteAgo},
		{"much memory", func(b *zonetest.Builder) {
			s := largest()
			s.FQDN = origin("largest.fed.example")
			for i := range 20 {
				s := *s
				s.Description = fmt.Sprint(i)
				b.Put(0, &s, 1)
				b.Publish(now.Add(time.Duration(i)*time.Second - time.Minute + time.Second))
			}
		}, minuteAgo},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := kept()
			last := now
			put(b, "b b.fed.example 192.0.2.1@81 i/TCP")
			tt.change(b)
			put(b, "c c.fed.example 192.0.2.1@81 i/TCP")
			z := b.Publish(last)
			if _, incremental := refreshed(z, name, tt.serial, last); incremental != (tt.name == "(none of this)") {
				t.Errorf("a difference from %d to %d: %t", tt.serial, z.SOA(name).Serial, incremental)
			}
			for i := range 2 { // the history begins anew, sooner or later
				put(b, fmt.Sprintf("d d.fed.example 192.0.2.1@%d i/TCP", 1+i))
				last = now.Add(2 * time.Hour).Add(time.Duration(i) * time.Second)
				z = b.Publish(last)
			}
			_, incremental := refreshed(z, name, z.SOA(name).Serial-1, last)
			if want := !strings.Contains(tt.name, "hosts") && !strings.Contains(tt.name, "services about to"); incremental != want {
				t.Errorf("a difference later: %t", incremental)
			}
		})
	}
}

// TestUpdateAfterAReload has another builder continue: what a secondary has of the
// one before is not what this one can compare with, even under one serial.
func TestUpdateAfterAReload(t *testing.T) {
	const name = "fed.example."
	before := kept()
	before.Put(0, service("a a.fed.example 192.0.2.1@81 i/TCP"), 1)
	serial := before.Publish(now).SOA(name).Serial
	next := zonetest.NewBuilder(config(owner("o1", "fed.example")), map[string]uint32{name: serial})
	next.SetStatus(0, zone.Status{Live: 1, Known: true})
	for i := range 3 {
		next.Put(0, service(fmt.Sprintf("b b.fed.example 192.0.2.1@%d i/TCP", 80+i)), 1)
		z := next.Publish(now.Add(time.Duration(i) * time.Second))
		rrs, incremental := refreshed(z, name, serial, now)
		if incremental || (len(rrs) == 1) != (serial == z.SOA(name).Serial) {
			t.Errorf("%d records from %d to %d, a difference: %v", len(rrs), serial, z.SOA(name).Serial, incremental)
		}
	}
}

// TestUpdateOfTTL has a service of a lost owner that comes again: only its TTL changes.
func TestUpdateOfTTL(t *testing.T) {
	const name = "fed.example."
	b, lost := kept("web web.fed.example 192.0.2.1@80 i/TCP"), now.Add(-time.Second)
	b.SetStatus(0, zone.Status{Live: 2, Known: true})
	z := b.Publish(lost)
	before, _ := refreshed(z, name, 0, lost)
	b.Confirm(0, "web", 2)
	rrs, incremental := refreshed(b.Publish(now), name, z.SOA(name).Serial, now)
	if !incremental {
		t.Fatalf("a whole zone, of %d records", len(rrs))
	}
	whole, _ := refreshed(b.Publish(now), name, 0, now)
	if d := cmp.Diff(content(t, whole), patched(t, content(t, before), rrs)); d != "" {
		t.Errorf("(-whole +patched):\n%s", d)
	}
}

// TestTransfersWaitForTheSerial changes a zone twice in a second: what is transferred
// is what the serial stood for first, and with the next serial the rest.
func TestTransfersWaitForTheSerial(t *testing.T) {
	const name = "fed.example."
	b := kept()
	b.Put(0, service("a a.fed.example 192.0.2.1@81 i/TCP"), 1)
	first, _ := refreshed(b.Publish(now), name, 0, now)
	b.Put(0, service("a a.fed.example 192.0.2.1@82 i/TCP"), 1)
	half := now.Add(500 * time.Millisecond)
	z := b.Publish(half)
	expect(t, z, half, "a SRV | NOERROR | 60 SRV 0 100 82 192-0-2-1.addr.a.fed.example.")
	second, _ := refreshed(z, name, 0, half)
	if d := cmp.Diff(lines(first), lines(second)); d != "" {
		t.Errorf("two zones with one serial:\n%s", d)
	}
	rrs, incremental := refreshed(z, name, minuteAgo, half)
	if !incremental || len(rrs) == len(first) {
		t.Errorf("%d records, a difference %t", len(rrs), incremental)
	}
	later := now.Add(time.Second)
	third, incremental := refreshed(b.Publish(later), name, uint32(now.Unix()), later)
	if !incremental || len(third) != 4+2*4 { // the SRV records of four names
		t.Errorf("the second change: %v", third)
	}
}
