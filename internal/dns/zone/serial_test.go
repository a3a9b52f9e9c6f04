package zone_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// TestSerialMovesWithRecords has row 5.2 of the decision table: the serial of a zone is when
// its records last changed, and not when anything else did.
func TestSerialMovesWithRecords(t *testing.T) {
	const outer, inner, other = "fed.example.", "in.fed.example.", "other.example."
	lost := zone.Status{Live: 2, Known: true}
	tests := []struct {
		name   string
		change func(b *zonetest.Builder)
		want   []string // the zones whose serial moves
	}{
		{"nothing", func(*zonetest.Builder) {}, nil},
		{"the same service again", func(b *zonetest.Builder) { b.Put(0, service("web web.fed.example 192.0.2.1@80 i/TCP"), 1) }, nil},
		{"the same service on a new stream", func(b *zonetest.Builder) { b.Put(0, service("web web.fed.example 192.0.2.1@80 i/TCP"), 2) }, nil},
		{"a changed service", func(b *zonetest.Builder) { b.Put(0, service("web web.fed.example 192.0.2.1@81 i/TCP"), 1) }, []string{outer}},
		{"a new service", func(b *zonetest.Builder) { b.Put(1, service("new new.fed.example 192.0.2.1@80 i/TCP"), 1) }, []string{outer}},
		{"a service removed", func(b *zonetest.Builder) { b.Remove(0, "web") }, []string{outer}},
		{"a service removed that there is not", func(b *zonetest.Builder) { b.Remove(1, "web") }, nil},
		{"a nested zone", func(b *zonetest.Builder) { b.Remove(0, "in") }, []string{inner}},
		{"a service that moves", func(b *zonetest.Builder) { b.Put(0, service("web moved.in.fed.example 192.0.2.1@80 i/TCP"), 1) }, []string{outer, inner}},
		{"a service that is refused", func(b *zonetest.Builder) { b.Put(1, service("new web.in.fed.example 192.0.2.1@80 i/TCP"), 1) }, nil},
		{"a service that moves where it is refused", func(b *zonetest.Builder) { b.Put(0, service("web web.example 192.0.2.1@80 i/TCP"), 1) }, []string{outer}},
		{"a shadowed service changed", func(b *zonetest.Builder) { b.Put(1, service("dup dup.fed.example 192.0.2.3@80 i/TCP"), 1) }, nil},
		{"a shadowed service removed", func(b *zonetest.Builder) { b.Remove(1, "dup") }, nil},
		{"a shadowed service added", func(b *zonetest.Builder) { b.Put(1, service("more dup.fed.example 192.0.2.3@80 i/TCP"), 1) }, nil},
		{"a takeover", func(b *zonetest.Builder) { b.Remove(0, "dup") }, []string{outer}},
		{"a name taken from another", func(b *zonetest.Builder) { b.Put(0, service("a dup.fed.example 192.0.2.3@80 i/TCP"), 1) }, []string{outer}},
		{"an owner lost", func(b *zonetest.Builder) { b.SetStatus(0, lost) }, []string{outer, inner}},
		{"an owner lost that has the names of none", func(b *zonetest.Builder) { b.SetStatus(1, lost) }, nil},
		{"an owner lost that had confirmed everything", func(b *zonetest.Builder) {
			for _, s := range []string{"web web.fed.example 192.0.2.1@80 i/TCP", "in web.in.fed.example 192.0.2.1@80 i/TCP", "dup dup.fed.example 192.0.2.1@80 i/TCP"} {
				b.Put(0, service(s), 2)
			}
			b.SetStatus(0, lost)
		}, nil},
		{"an end of life that moves", func(b *zonetest.Builder) {
			b.SetStatus(2, zone.Status{Live: 2, Known: true, Expires: now.Add(time.Hour)})
		}, nil},
		{"an owner that is not known", func(b *zonetest.Builder) { b.SetStatus(0, zone.Status{Live: 1, Grace: now}) }, nil},
		{"a stale service confirmed", func(b *zonetest.Builder) { b.Put(2, service("old old.other.example 192.0.2.1@80 i/TCP"), 2) }, []string{other}},
		{"a stale service announced again, and lost", func(b *zonetest.Builder) { b.Put(2, service("old old.other.example 192.0.2.1@80 i/TCP"), 0) }, nil},
		{"an owner found", func(b *zonetest.Builder) { b.SetStatus(2, zone.Status{Live: 1, Known: true}) }, []string{other}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := builder(owner("o1", "fed.example", "in.fed.example"), owner("o2", "fed.example"), owner("o3", "other.example"))
			b.Put(0, service("web web.fed.example 192.0.2.1@80 i/TCP"), 1)
			b.Put(0, service("in web.in.fed.example 192.0.2.1@80 i/TCP"), 1)
			b.Put(0, service("dup dup.fed.example 192.0.2.1@80 i/TCP"), 1)
			b.Put(1, service("dup dup.fed.example 192.0.2.2@80 i/TCP"), 1)
			b.Put(2, service("old old.other.example 192.0.2.1@80 i/TCP"), 1)
			b.SetStatus(2, zone.Status{Live: 2, Known: true, Expires: now.Add(time.Minute)})
			before := b.Publish(now)
			tt.change(b)
			later := now.Add(10 * time.Second)
			after := b.Publish(later)
			var moved []string
			for _, name := range []string{outer, inner, other} {
				switch serial := after.SOA(name).Serial; serial {
				case before.SOA(name).Serial:
				case uint32(later.Unix()):
					moved = append(moved, name)
				default:
					t.Errorf("%s: serial %d at %d", name, serial, later.Unix())
				}
			}
			if d := cmp.Diff(tt.want, moved); d != "" {
				t.Errorf("serials that moved (-want +got):\n%s", d)
			}
			if at, ok := b.Due(); ok {
				t.Errorf("a serial is due at %s", at)
			}
			if again := b.Publish(later.Add(time.Hour)); again != after {
				t.Error("a new version of nothing new")
			}
		})
	}
}

// TestSerialStaysWithTheClock shows that a serial neither runs ahead of the clock nor goes
// back, and that a second change within one second gets its own serial later.
func TestSerialStaysWithTheClock(t *testing.T) {
	const name = "fed.example."
	b := builder(owner("o", "fed.example"))
	ports := 0
	change := func() {
		ports++
		s := service("s s.fed.example 192.0.2.1@80 i/TCP")
		s.Endpoints[0].Port += uint16(ports)
		b.Put(0, s, 1)
	}
	publish := func(at time.Time, serial int64, due time.Time) {
		t.Helper()
		if got := b.Publish(at).SOA(name).Serial; got != uint32(serial) {
			t.Errorf("serial %d, want %d", got, serial)
		}
		if got, ok := b.Due(); ok != !due.IsZero() || !got.Equal(due) {
			t.Errorf("due at %v, %t, want %v", got, ok, due)
		}
	}
	never, s := time.Time{}, now.Unix()
	change()
	publish(now, s, never)
	change()
	publish(now.Add(300*time.Millisecond), s, now.Add(time.Second))
	change()
	publish(now.Add(600*time.Millisecond), s, now.Add(time.Second))
	publish(now.Add(time.Second), s+1, never)
	publish(now.Add(time.Minute), s+1, never)

	// The clock is set back, and is right again later.
	change()
	publish(now.Add(-time.Minute), s+2, never)
	change()
	publish(now.Add(-time.Minute+300*time.Millisecond), s+2, now.Add(-59*time.Second))
	change()
	publish(now.Add(-time.Minute+999*time.Millisecond), s+2, now.Add(-59*time.Second))
	publish(now.Add(-59*time.Second), s+3, never)
	change()
	publish(now.Add(time.Minute), s+60, never)
}

// TestSerialsContinue starts builders where others have ended.
func TestSerialsContinue(t *testing.T) {
	tests := []struct {
		name   string
		before uint32
		now    int64
		want   uint32
	}{
		{"none", 0, 1_800_000_000, 1_800_000_000},
		{"an earlier one", 1_799_999_999, 1_800_000_000, 1_800_000_000},
		{"the same", 1_800_000_000, 1_800_000_000, 1_800_000_000},
		{"a later one", 1_800_000_005, 1_800_000_000, 1_800_000_005},
		{"past the wrap", math.MaxUint32 - 3, math.MaxUint32 + 3, 2},
		{"before the wrap, behind it", 2, math.MaxUint32 - 3, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := zonetest.NewBuilder(config(owner("o", "fed.example", "other.example")), map[string]uint32{"fed.example.": tt.before})
			z := b.Publish(time.Unix(tt.now, 0))
			if got := z.SOA("fed.example.").Serial; got != tt.want {
				t.Errorf("serial %d, want %d", got, tt.want)
			}
			if got := z.SOA("other.example.").Serial; got != uint32(tt.now) {
				t.Errorf("serial of the other zone %d, want %d", got, uint32(tt.now))
			}
		})
	}
}

// TestDueIsTheFirst has two zones whose serials are ahead of the clock, and wait
// since different times.
func TestDueIsTheFirst(t *testing.T) {
	for _, zones := range [][]string{{"a.example", "b.example"}, {"b.example", "a.example"}} {
		ahead := uint32(now.Unix()) + 100
		b := zonetest.NewBuilder(config(owner("o", "a.example", "b.example")), map[string]uint32{"a.example.": ahead, "b.example.": ahead})
		publish := func(after, due time.Duration, changed ...string) {
			t.Helper()
			for _, zone := range changed {
				b.Put(0, service(fmt.Sprintf("%s s.%s 192.0.2.1@%d i/TCP", zone, zone, after.Milliseconds())), 1)
			}
			b.Publish(now.Add(after))
			if at, ok := b.Due(); ok != (due > 0) || ok && !at.Equal(now.Add(due)) {
				t.Errorf("due at %s, %v, want %s", at.Sub(now), ok, due)
			}
		}
		b.Publish(now)
		b.Publish(now.Add(2 * time.Second)) // both move
		publish(3*time.Second, 0, zones[0])
		publish(3500*time.Millisecond, 0, zones[1])
		publish(3600*time.Millisecond, 4*time.Second, zones...)
		publish(4*time.Second, 4500*time.Millisecond)
		publish(4500*time.Millisecond, 0)
	}
}
