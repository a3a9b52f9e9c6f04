package board

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/packed"
)

var begun = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return begun.Add(time.Duration(seconds) * time.Second) }

func service(t testing.TB, name, fqdn string, addresses ...string) *federation.Service {
	t.Helper()
	f, err := federation.ParseFQDN(fqdn)
	if err != nil {
		t.Fatal(err)
	}
	s := &federation.Service{Name: name, FQDN: f, Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}}}
	for _, text := range addresses {
		address, err := federation.ParseAddress(text)
		if err != nil {
			t.Fatal(err)
		}
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: address, Port: 443})
	}
	return s
}

// story drives a board as a mirror does: through a catalog.
type story struct {
	testing.TB
	*Board

	catalog *catalog.Catalog
}

func newStory(t testing.TB, address string) story {
	return story{t, New(address, begun), catalog.New(catalog.Config{})}
}

// update shows the board what has changed.
func (s story) update(when int, reason string) {
	s.Update(s.catalog.Changes(), s.catalog.Status(), reason, at(when))
}

// opened opens a stream whose owner marks the end of its catalog.
func (s story) opened(when int) {
	s.catalog.Opened(at(when))
	s.catalog.Marked()
	s.update(when, "")
}

func (s story) lost(when int, reason string) {
	s.catalog.Lost(at(when))
	s.update(when, reason)
}

func (s story) upsert(when int, name, fqdn string, addresses ...string) {
	s.Helper()
	s.apply(when, federation.Event{Operation: federation.Upsert, Name: name, Service: service(s.TB, name, fqdn, addresses...)})
}

func (s story) apply(when int, event federation.Event) {
	s.Helper()
	if err := s.catalog.Apply(event, at(when)); err != nil {
		s.Fatal(err)
	}
	s.update(when, "")
}

func (s story) expect(when int, size Size, want string) {
	s.Helper()
	s.Advance(at(when))
	lines := s.Lines(size, false, at(when))
	if diff := cmp.Diff(strings.Trim(want, "\n"), strings.TrimRight(strings.Join(lines, "\n"), "\n")); diff != "" {
		s.Errorf("after %d s at %dx%d the board is not as expected (-want +got):\n%s", when, size.Width, size.Height, diff)
	}
}

var end = federation.Event{Operation: federation.End}

// TestLifeOfAnOwner shows the board from the first attempt on, through changes, the
// loss of the owner and its return.
func TestLifeOfAnOwner(t *testing.T) {
	s := newStory(t, "owner.example:8008")
	wide := Size{80, 24}
	s.expect(1, wide, "connecting  owner.example:8008  0 services")

	s.lost(1, "connection refused; trying again")
	s.expect(4, wide, `
connecting for 3 s  owner.example:8008  0 services
connection refused; trying again`)

	s.opened(5)
	s.upsert(5, "web", "web.fed.example", "192.0.2.1")
	s.expect(5, wide, `
syncing  owner.example:8008  1 service

  FQDN             NAME  INSTANCES  ENDPOINTS
  web.fed.example  web   v1/HTTPS   192.0.2.1:443`)

	// The services of the first catalog are not marked.
	s.upsert(6, "api", "api.fed.example", "192.0.2.2")
	s.apply(6, end)
	s.expect(6, wide, `
synced  owner.example:8008  2 services

  FQDN             NAME  INSTANCES  ENDPOINTS
  api.fed.example  api   v1/HTTPS   192.0.2.2:443
  web.fed.example  web   v1/HTTPS   192.0.2.1:443`)

	// Later changes are marked, for a while.
	s.upsert(10, "mid", "mid.fed.example", "192.0.2.3")
	s.upsert(11, "web", "web.fed.example", "192.0.2.4")
	s.apply(12, federation.Event{Operation: federation.Delete, Name: "api"})
	s.expect(13, wide, `
synced  owner.example:8008  2 services  last change 1 s ago: - api.fed.example

  FQDN             NAME  INSTANCES  ENDPOINTS
- api.fed.example  api   v1/HTTPS   192.0.2.2:443
+ mid.fed.example  mid   v1/HTTPS   192.0.2.3:443
* web.fed.example  web   v1/HTTPS   192.0.2.4:443`)
	s.expect(21, wide, `
synced  owner.example:8008  2 services  last change 9 s ago: - api.fed.example

  FQDN             NAME  INSTANCES  ENDPOINTS
- api.fed.example  api   v1/HTTPS   192.0.2.2:443
  mid.fed.example  mid   v1/HTTPS   192.0.2.3:443
  web.fed.example  web   v1/HTTPS   192.0.2.4:443`)
	s.expect(22, wide, `
synced  owner.example:8008  2 services  last change 10 s ago: - api.fed.example

  FQDN             NAME  INSTANCES  ENDPOINTS
  mid.fed.example  mid   v1/HTTPS   192.0.2.3:443
  web.fed.example  web   v1/HTTPS   192.0.2.4:443`)

	// A new fqdn is a new row. A service that comes back gets its old row.
	s.upsert(100, "mid", "new.fed.example", "192.0.2.3")
	s.apply(101, federation.Event{Operation: federation.Delete, Name: "web"})
	s.upsert(102, "web", "web.fed.example", "192.0.2.5")
	s.expect(102, wide, `
synced  owner.example:8008  2 services  last change 0 s ago: + web.fed.example

  FQDN             NAME  INSTANCES  ENDPOINTS
- mid.fed.example  mid   v1/HTTPS   192.0.2.3:443
+ new.fed.example  mid   v1/HTTPS   192.0.2.3:443
+ web.fed.example  web   v1/HTTPS   192.0.2.5:443`)

	// The owner is lost. What it does not announce when it is back is gone.
	s.lost(200, "the owner closed the stream")
	s.lost(205, "connection refused")
	s.expect(260, wide, `
lost for 1 min  owner.example:8008  2 services  last change 2 min ago: + web.fe…
connection refused
  FQDN             NAME  INSTANCES  ENDPOINTS
  new.fed.example  mid   v1/HTTPS   192.0.2.3:443
  web.fed.example  web   v1/HTTPS   192.0.2.5:443`)
	s.opened(300)
	s.upsert(300, "web", "web.fed.example", "192.0.2.5")
	s.expect(300, wide, `
syncing  owner.example:8008  2 services  1 stale  last change 3 min ago: + web.…

  FQDN             NAME  INSTANCES  ENDPOINTS
  new.fed.example  mid   v1/HTTPS   192.0.2.3:443
  web.fed.example  web   v1/HTTPS   192.0.2.5:443`)
	s.apply(301, end)
	s.Refused()
	s.Note(`refused: service "bad": fqdn: required`)
	s.expect(302, wide, `
synced  owner.example:8008  1 service  1 refused  last change 1 s ago: - new.fe…
refused: service "bad": fqdn: required
  FQDN             NAME  INSTANCES  ENDPOINTS
- new.fed.example  mid   v1/HTTPS   192.0.2.3:443
  web.fed.example  web   v1/HTTPS   192.0.2.5:443`)
}

func TestNotImportedIsCounted(t *testing.T) {
	s := newStory(t, "owner:1")
	s.Update(nil, catalog.Status{State: catalog.Synced, Known: true, Services: 2, NotImported: 3}, "", at(0))
	s.expect(0, Size{80, 24}, "synced  owner:1  2 services  3 not imported")
	s.Through(2, true)
	s.expect(0, Size{80, 24}, "synced  owner:1  2 services  through 2 owners  resumed  3 not imported")
	s.Through(1, false)
	s.expect(0, Size{80, 24}, "synced  owner:1  2 services  3 not imported")
}

// TestLinesFitTheTerminal has long and short cells on terminals of several sizes.
func TestLinesFitTheTerminal(t *testing.T) {
	s := newStory(t, "owner.example:8008")
	s.opened(0)
	s.upsert(0, "payments", "payments.production.fed.example", "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5")
	s.upsert(0, "a name that is long, and with "+strings.Repeat("x", 1000), "long.fed.example", "2001:db8::1")
	for i := range 6 {
		s.upsert(0, fmt.Sprintf("s%d", i), fmt.Sprintf("s%d.fed.example", i), "192.0.2.9")
	}
	s.apply(0, end)
	s.Note("two lines are there for a message on a terminal as tall as this, and what does not fit is cut at their end")
	s.expect(1, Size{80, 9}, `
synced  owner.example:8008  8 services
two lines are there for a message on a terminal as tall as this, and what does
not fit is cut at their end
  FQDN                   NAME                   INSTANCES  ENDPOINTS
  long.fed.example       "a name that is long…  v1/HTTPS   [2001:db8::1]:443
  payments.production.…  payments               v1/HTTPS   192.0.2.1:443,192.0.…
  s0.fed.example         s0                     v1/HTTPS   192.0.2.9:443
  s1.fed.example         s1                     v1/HTTPS   192.0.2.9:443
… and 4 more`)
	s.expect(1, Size{50, 7}, `
synced  owner.example:8008  8 services
two lines are there for a message on a terminal a…
  FQDN         NAME         INSTANCES  ENDPOINTS
  long.fed.e…  "a name th…  v1/HTTPS   [2001:db8:…
  payments.p…  payments     v1/HTTPS   192.0.2.1:…
  s0.fed.exa…  s0           v1/HTTPS   192.0.2.9:…
… and 5 more`)
	s.expect(1, Size{30, 5}, `
synced  owner.example:8008  8…
two lines are there for a mes…
  FQDN           ENDPOINTS
  long.fed.exa…  [2001:db8::1…
… and 7 more`)
	s.expect(1, Size{14, 5}, `
synced  owner…
two lines are…
  FQDN
  long.fed.ex…
… and 7 more`)
	s.expect(1, Size{4, 4}, `
syn…
two…
  F…
… a…`)
	s.expect(1, Size{80, 2}, `
synced  owner.example:8008  8 services
two lines are there for a message on a terminal as tall as this, and what does …`)
	s.expect(1, Size{80, 0}, `
synced  owner.example:8008  8 services`)
}

var sgr = regexp.MustCompile("\x1b\\[[0-9]+m")

// TestLinesHoldNoControls has an owner that sends control sequences and wide
// characters.
func TestLinesHoldNoControls(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	nasty := []string{"\x1b[2J", "\u009b2J", "a\nb", "\r", "\t", "\u4e16\u754c", "e\u0301", "\u202e", "\U0001f469\u200d\U0001f467", "\xff\xfe", "a b", "\x00", "\u200b"}
	pick := func() string {
		return nasty[random.IntN(len(nasty))] + strings.Repeat("x", random.IntN(30)) + nasty[random.IntN(len(nasty))]
	}
	s := newStory(t, "owner"+pick()+":1")
	s.opened(0)
	for i := range 30 {
		made := service(t, pick(), fmt.Sprintf("s%d.fed.example", i), "192.0.2.1")
		made.Instances = append(made.Instances, federation.Instance{ID: pick(), Protocol: federation.GRPC})
		s.apply(0, federation.Event{Operation: federation.Upsert, Name: made.Name, Service: made})
	}
	s.apply(0, end)
	s.upsert(1, pick(), "new.fed.example", "192.0.2.1")
	s.Note(pick())
	for range 500 {
		if random.IntN(2) == 0 {
			s.lost(2, pick())
		}
		size := Size{random.IntN(120), random.IntN(40)}
		lines := s.Lines(size, true, at(2))
		if len(lines) > max(size.Height, 1) {
			t.Fatalf("%d lines on a terminal of %d", len(lines), size.Height)
		}
		for _, line := range lines {
			text := sgr.ReplaceAllString(line, "")
			if n := utf8.RuneCountInString(text); n > size.Width {
				t.Errorf("%q is %d columns wide, on a terminal of %d", text, n, size.Width)
			}
			if i := strings.IndexFunc(text, func(r rune) bool { return (r < ' ' || r > '~') && r != '…' }); i >= 0 {
				t.Errorf("%q has a character at %d that is not plain ASCII", text, i)
			}
		}
	}
}

func TestColoursOfMarks(t *testing.T) {
	s := newStory(t, "owner:1")
	s.opened(0)
	s.upsert(0, "old", "old.fed.example", "192.0.2.1")
	s.upsert(0, "web", "web.fed.example", "192.0.2.1")
	s.apply(0, end)
	s.upsert(1, "new", "new.fed.example", "192.0.2.1")
	s.upsert(1, "web", "web.fed.example", "192.0.2.2")
	s.apply(1, federation.Event{Operation: federation.Delete, Name: "old"})
	want := []string{
		green + "synced" + plain + "  owner:1  2 services  last change 0 s ago: - old.fed.example",
		yellow + plain,
		bold + "  FQDN             NAME  INSTANCES  ENDPOINTS" + plain,
		green + "+ new.fed.example  new   v1/HTTPS   192.0.2.1:443" + plain,
		red + "- old.fed.example  old   v1/HTTPS   192.0.2.1:443" + plain,
		yellow + "* web.fed.example  web   v1/HTTPS   192.0.2.2:443" + plain,
	}
	if diff := cmp.Diff(want, s.Lines(Size{80, 24}, true, at(1))); diff != "" {
		t.Errorf("unexpected lines (-want +got):\n%s", diff)
	}
}

// TestRowsAreSorted compares the rows with a sorted list, over random histories.
func TestRowsAreSorted(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		s := newStory(t, "owner:1")
		s.opened(0)
		want := make(map[string]string)
		now := 0
		for range 300 {
			now += random.IntN(5)
			name := fmt.Sprintf("n%d", random.IntN(40))
			switch random.IntN(4) {
			case 0:
				s.apply(now, federation.Event{Operation: federation.Delete, Name: name})
				delete(want, name)
			case 1:
				s.Advance(at(now))
				s.sorted()
			default:
				fqdn := fmt.Sprintf("f%d.example", random.IntN(40))
				s.upsert(now, name, fqdn, "192.0.2.1")
				want[name] = fqdn
			}
			if random.IntN(50) == 0 {
				s.apply(now, end)
			}
		}
		s.Advance(at(now + 100)) // no row is marked
		var expected, got []string
		for name, fqdn := range want {
			expected = append(expected, fqdn+". "+name)
		}
		slices.Sort(expected)
		for _, r := range s.sorted() {
			got = append(got, r.service.FQDN.String()+" "+r.service.Name)
		}
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Fatalf("unexpected order (-want +got):\n%s", diff)
		}
		if len(s.rows) != len(want) || len(s.marked) != 0 {
			t.Fatalf("%d rows and %d marks are kept for %d services", len(s.rows), len(s.marked), len(want))
		}
	}
}

func BenchmarkBoard(b *testing.B) {
	const services = 100_000
	changes := make([]catalog.Change, services)
	for i := range changes {
		name := fmt.Sprintf("s%06d", (i*7919)%services)
		changes[i] = catalog.Change{Name: name, Service: packed.Of(service(b, name, name+".fed.example", "192.0.2.1")), Generation: 1}
	}
	syncing, synced := catalog.Status{State: catalog.Syncing}, catalog.Status{State: catalog.Synced, Known: true}
	fill := func(draw int) *Board {
		board := New("owner:1", begun)
		for i := range changes {
			board.Update(changes[i:i+1], syncing, "", begun)
			if i%draw == 0 {
				board.Lines(Size{80, 24}, true, begun)
			}
		}
		return board
	}
	// At 10,000 services a second, one frame in 1,000.
	b.Run("download", func(b *testing.B) {
		for b.Loop() {
			fill(1000)
		}
	})
	board := fill(services)
	board.Update(nil, synced, "", begun)
	b.Run("idle", func(b *testing.B) {
		for b.Loop() {
			board.Lines(Size{80, 24}, true, begun)
		}
	})
	b.Run("change", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			now := begun.Add(time.Duration(i) * time.Second)
			change := catalog.Change{Name: "extra"}
			if i%2 == 0 {
				change = catalog.Change{Name: "extra", Service: packed.Of(service(b, "extra", "extra.fed.example", "192.0.2.1"))}
			}
			board.Update([]catalog.Change{change}, synced, "", now)
			board.Advance(now)
			board.Lines(Size{80, 24}, true, now)
		}
	})
}
