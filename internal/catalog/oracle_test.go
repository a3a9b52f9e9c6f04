package catalog_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
	"github.com/hamlet-federation/coredns-federation/test/kit/nightly"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// TestOracle plays random histories to a catalog and to a model that is too simple to
// be wrong in the same way. Each service of the model has its own retention clock, and
// whatever the catalog counts or derives from generations, the model looks for in all
// of its services.
func TestOracle(t *testing.T) {
	for seed := range nightly.Cases[uint64](3000, 500) {
		var log []string
		if msg := compare(t, rand.New(rand.NewPCG(seed, 0)), &log); msg != "" {
			t.Fatalf("seed %d: %s\nafter\n%s", seed, msg, strings.Join(log, "\n"))
		}
	}
}

// admits returns an Admit that takes only the names of the zones, and no service
// whose description is "address". With imports, it leaves out what has a description
// that is not among them.
func admits(imports []string, zones ...federation.FQDN) func(*federation.Service) *federation.InvalidError {
	return func(s *federation.Service) *federation.InvalidError {
		switch {
		case imports != nil && !slices.Contains(imports, s.Description):
			return catalog.ErrNotImported
		case !slices.ContainsFunc(zones, s.FQDN.Within):
			return &federation.InvalidError{Reason: federation.ReasonOutOfZone, Rule: "out of zone"}
		case s.Description == "address":
			return &federation.InvalidError{Field: "endpoints[0].address", Reason: federation.ReasonAddress, Rule: "bad address"}
		}
		return nil
	}
}

// compare plays one history, and returns where catalog and model differ.
func compare(t *testing.T, r *rand.Rand, log *[]string) string {
	t.Helper()
	example, test := services.FQDN("example"), services.FQDN("test")
	randomConfig := func() catalog.Rules {
		return catalog.Rules{
			Retention:  pick(r, catalog.Forever, 10*time.Second, 30*time.Second, 30*time.Second),
			Settle:     5 * time.Second,
			MaxCatalog: pick[int64](r, 0, 0, 0, 3000, 5000, 9000),
			Admit: pick(r, nil, admits(nil, example), admits(nil, example), admits(nil, test), admits(nil, example, test),
				admits([]string{""}, example, test), admits([]string{"", "address"}, example), admits([]string{"wanted"}, example)),
			Shares: pick(r, nil, nil, func(fqdn federation.FQDN) bool { return fqdn.Within(test) }),
		}
	}
	crowded := r.IntN(10) == 0 // most services have one fqdn
	randomService := func(name string) *federation.Service {
		fqdn := name + pick(r, ".example", ".example", ".test")
		if crowded {
			fqdn = pick(r, fqdn, "a.example", "a.example", "a.example", "a.example", "a.example", "a.example", "b.example")
		}
		return &federation.Service{
			Name:        name,
			FQDN:        services.FQDN(fqdn),
			Description: pick(r, "", "", "", "address", "wanted"),
			Instances:   make([]federation.Instance, pick(r, 1, 1, 1, 2)),
		}
	}
	// Few IDs, or two services would seldom have the same one. Some are names.
	randomID := func(name string) string { return pick(r, "", "", name, "s1", "s2", "id-1", "id-2", "id-3") }
	config := randomConfig()
	ops := []string{
		"up", "up", "up", "bulk", "bulk", "delete", "delete by ID", "alive", "refused", "refused", "end", "open", "open", "marked", "paused", "lost", "lost",
		"advance", "advance", "config", "restore", "resume", "resume",
	}
	if r.IntN(2) == 0 {
		// An owner that flaps, with the guard and several clocks at work.
		config.Retention, config.MaxCatalog, config.Admit = 100*time.Second, 0, nil
		ops = []string{"up", "bulk", "open", "lost", "lost", "end", "advance", "advance", "resume"}
	}
	if crowded {
		config.MaxCatalog = 0
		ops = append(ops, "crowd", "crowd", "crowd", "crowd", "delete")
	}
	c, m := catalog.New(config), &model{config: config, services: map[string]*entry{}, full: map[string]bool{}}
	zone := map[string]catalog.Change{} // built from the changes alone

	causes := map[string][]catalog.RemovalCause{ // for which services are gone with an operation
		"up": {catalog.CauseExcluded}, "bulk": {catalog.CauseExcluded}, "crowd": {catalog.CauseExcluded},
		"delete": {catalog.CauseWithdrawn}, "delete by ID": {catalog.CauseWithdrawn},
		"lost": {catalog.CauseExpired}, "open": {catalog.CauseExpired}, "resume": {catalog.CauseExpired},
		"end": {catalog.CauseAbsent}, "advance": {catalog.CauseAbsent, catalog.CauseExpired},
		"config": {catalog.CauseExcluded, catalog.CauseAbsent, catalog.CauseExpired},
	}
	lastHeld := heldNames(c)
	var lastEdits uint64
	now := epoch
	for range 60 {
		now = now.Add(pick(r, 0, time.Second, time.Second, 2*time.Second, 5*time.Second, 6*time.Second, 20*time.Second))
		before, grace := c.Summary(), m.grace > 0
		stale := func(c catalog.Change) bool {
			return c.Generation < before.Live || grace // which may end with it
		}
		var removable func(catalog.Change) bool // of what was published before
		op := pick(r, ops...)
		name := fmt.Sprint("s", r.IntN(14))
		*log = append(*log, fmt.Sprintf("%v %s %s", now.Sub(epoch), op, name))
		switch op {
		case "up", "bulk", "crowd":
			names := []string{name}
			if op != "up" {
				names = nil
				first, n := 0, pick(r, 2, 3, 14)
				if op == "crowd" {
					first, n = pick(r, 0, 60), 70
				}
				for i := range n {
					names = append(names, fmt.Sprint("s", first+i))
				}
			}
			for _, name := range names {
				s, id := randomService(name), randomID(name)
				*log = append(*log, fmt.Sprintf("  %s %s %s %d ID %q", name, s.FQDN, s.Description, len(s.Instances), id))
				err := c.ApplyEvent(wire.Event{Operation: wire.Upsert, Name: name, ID: id, Service: s}, now)
				if got, want := reason(err), m.up(name, id, s, now); got != want {
					return fmt.Sprintf("up %s: reason %s, want %s", name, got, want)
				}
			}
			removable = func(c catalog.Change) bool { return m.services[c.Name] == nil && slices.Contains(names, c.Name) }
		case "delete":
			if err := c.ApplyEvent(wire.Event{Operation: wire.Delete, Name: name}, now); (err == nil) != m.open {
				return fmt.Sprint("delete: ", err)
			}
			if m.open {
				if !m.content {
					m.hear(now)
				}
				m.content = true
				delete(m.services, name)
			}
			removable = func(c catalog.Change) bool { return c.Name == name }
		case "delete by ID":
			id := pick(r, "s1", "s2", "id-1", "id-2", "id-3")
			*log = append(*log, "  "+id)
			want := m.deleteByID(id, now)
			if err := c.ApplyEvent(wire.Event{Operation: wire.Delete, Name: id, ID: id}, now); (err == nil) != m.open {
				return fmt.Sprint("delete by ID: ", err)
			}
			removable = func(c catalog.Change) bool { return c.Name == want }
		case "alive":
			_ = c.ApplyEvent(wire.Event{Operation: wire.Alive}, now)
			if m.open && !m.content {
				m.hear(now)
			}
		case "refused":
			id := randomID(name)
			if r.IntN(3) == 0 {
				name = id // the service was known by its ID only
			}
			*log = append(*log, fmt.Sprintf("  %s ID %q", name, id))
			c.NoteRefusal(name, id, now)
			m.refused(name, id, now)
		case "end":
			_ = c.ApplyEvent(wire.Event{Operation: wire.End}, now)
			m.end(now)
			removable = stale
		case "open":
			c.OpenStream(now)
			m.opened(now)
			removable = stale
		case "resume":
			whole := randomSelection(r)
			held, edits := c.ResumableServices(), c.EditCount()
			c.OpenStream(now)
			c.ExpectEndMarker()
			m.opened(now)
			m.mark()
			removable = stale
			if c.EditCount() != edits {
				break // the caller gives the stream up
			}
			var names []string
			for _, p := range held {
				if !whole.HasName(p.Name()) {
					names = append(names, p.Name())
					c.AdoptServices([]packed.Service{p})
				}
			}
			*log = append(*log, fmt.Sprint("  with ", names))
			m.resume(names)
			if c.EditCount() != edits {
				return "what is held has changed with the stream"
			}
		case "marked":
			c.ExpectEndMarker()
			m.mark()
		case "paused":
			c.RestartSilence(now)
			if m.open {
				m.hear(now)
			}
		case "lost":
			since := now.Add(-pick(r, 0, 0, time.Second, 4*time.Second, 7*time.Second, 40*time.Second))
			*log = append(*log, fmt.Sprint("  since ", since.Sub(epoch)))
			c.EndStream(since, now)
			m.lost(since, now)
			removable = func(catalog.Change) bool { return true }
		case "advance":
			if at, ok := c.NextDeadline(); ok {
				if next, ok := m.next(); ok && next.Before(at) {
					return fmt.Sprintf("deadline %v, but there is work at %v", at, next)
				}
			}
			c.AdvanceTo(now)
			m.advance(now)
			removable = stale
		case "config":
			config = randomConfig()
			c.SetRules(config, now)
			m.setConfig(config, now)
			*log = append(*log, fmt.Sprintf("  %d octets, retention %v", config.MaxCatalog, config.Retention))
			removable = func(catalog.Change) bool { return true }
		case "restore":
			var services []packed.Service
			for i := range 12 {
				services = append(services, packed.PackService(randomService(fmt.Sprint("s", i))))
			}
			up := now.Add(-pick(r, 0, 5*time.Second, 10*time.Second, 31*time.Second))
			if got, want := restore(c, services, up, now), m.restore(services, up, now); got != want {
				return fmt.Sprintf("restored %v, want %v", got, want)
			}
		}
		m.tidy()

		for _, change := range c.TakeChanges() {
			old, ok := zone[change.Name]
			same := change.Kind() == catalog.Confirmed
			if want := !change.Packed.IsZero() && old.Packed == change.Packed; same != want {
				return fmt.Sprintf("%s is the same as before: %v, want %v", change.Name, same, want)
			}
			if change.Was != old.Packed {
				return change.Name + " was another one before"
			}
			switch gone := change.Kind() == catalog.Gone; {
			case gone != slices.Contains(causes[op], change.Cause):
				return fmt.Sprintf("%s is there, or gone, as %v", change.Name, change.Cause)
			case gone:
			case same && change.Updated != old.Updated:
				return change.Name + " is no newer, but came later"
			case !same && op == "restore" && change.Updated != 0, !same && op != "restore" && change.Updated != uint32(now.Unix()):
				return fmt.Sprintf("%s came at %d", change.Name, change.Updated)
			}
			change = catalog.Change{Name: change.Name, Packed: change.Packed, Generation: change.Generation, Updated: change.Updated, Cause: change.Cause}
			switch {
			case change.Packed.IsZero() && !ok:
				return change.Name + " is gone, but was never there"
			case change.Packed.IsZero() && (removable == nil || !removable(old)):
				return change.Name + " is gone for no reason"
			case change.Packed.IsZero():
				delete(zone, change.Name)
			case ok && old == change:
				return change.Name + " is a change, but the same as before"
			default:
				zone[change.Name] = change
			}
		}
		all := map[string]catalog.Change{}
		for s, announced := range c.All() {
			all[s.Name()] = catalog.Change{Name: s.Name(), Packed: s, Generation: announced.Generation, Updated: announced.Updated}
		}
		if !maps.Equal(all, zone) {
			return fmt.Sprintf("the changes make %v, all is %v", zone, all)
		}
		want := map[string]catalog.Change{}
		for name, e := range m.services {
			if e.service != nil {
				// When it came is checked with the changes.
				want[name] = catalog.Change{Name: name, Packed: packed.PackService(e.service), Generation: e.generation, Updated: all[name].Updated}
			}
		}
		if !maps.Equal(all, want) {
			return fmt.Sprintf("all is %v, want %v", all, want)
		}
		holds, expected := c.Summary(), m.status()
		expected.Covers = holds.Covers // see TestCovers
		// Soonest may be too early: a clock goes on when its services are gone.
		if first := m.soonest(); first.IsZero() != holds.Soonest.IsZero() || holds.Soonest.After(first) {
			return fmt.Sprintf("soonest is %v, the first service goes at %v", holds.Soonest, first)
		}
		holds.Soonest = time.Time{}
		if holds != expected {
			return "status (-want +got)\n" + gocmp.Diff(expected, holds)
		}
		held := heldNames(c)
		if want := m.held(); held != want {
			return fmt.Sprintf("held is %s, want %s", held, want)
		}
		if c.EditCount() == lastEdits && held != lastHeld {
			return fmt.Sprintf("held is %s, and was %s, without an edit", held, lastHeld)
		}
		lastHeld, lastEdits = held, c.EditCount()
		if got, want := c.HasFreedRoom(), m.wanting(); got != want {
			return fmt.Sprintf("wanting is %v, want %v", got, want)
		}
		if settle, ok := c.SilenceNeeded(); settle != config.Settle || ok != m.settling() {
			return fmt.Sprintf("settling is %v %v, want %v", settle, ok, m.settling())
		}
		if limit := config.MaxCatalog; limit > 0 && c.Summary().Octets > 2*limit {
			return fmt.Sprintf("%d octets with a limit of %d", c.Summary().Octets, limit)
		}
	}
	return ""
}

// noStream stands for the error of an event that no stream carries.
const noStream federation.Reason = "no stream"

// reason returns why a service was refused, or "". The error must name a service, and
// the field where that is not the catalog as a whole.
func reason(err error) federation.Reason {
	if err == nil {
		return ""
	}
	var invalid *federation.InvalidError
	if !errors.As(err, &invalid) {
		return noStream
	}
	fields := map[federation.Reason]string{
		federation.ReasonOutOfZone: "fqdn", federation.ReasonAddress: "endpoints[0].address", federation.ReasonLimit: "",
	}
	if field, ok := fields[invalid.Reason]; !ok || field != invalid.Field || invalid.Service == "" || invalid.Rule == "" {
		return federation.Reason("unclear: " + invalid.Error())
	}
	return invalid.Reason
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// model is a catalog made of loops.
type model struct {
	config   catalog.Rules
	services map[string]*entry

	generation                    uint64
	open, marked, content, synced bool
	clock, expired, known         bool
	heard, ownerLost, lastSync    time.Time
	wanted                        time.Time // when something was heard that is not left out

	grace uint64    // what is of this generation or a later one is live for a while after a loss; 0: there was none
	shown time.Time // what ownerLost was before that; zero: no clock was running

	leftOut, leftBefore int // updates that are not imported, and as many there were before the stream that is not complete

	wants []int64 // octets that were missing for what the stream announced beyond the limits

	full  map[string]bool // fqdns of which the stream announced more services than there may be
	freed bool            // there was room at one of them since
}

// entry is one name, with its own clock.
type entry struct {
	service    *federation.Service
	refused    federation.Reason // of a later version
	generation uint64
	lost       time.Time // zero: not lost
	id         string    // the service's own; empty where it is the name
	octets     int64
}

// count returns how many entries have the property.
func (m *model) count(has func(*entry) bool) (n int) {
	for _, e := range m.services {
		if has(e) {
			n++
		}
	}
	return n
}

func (m *model) published() int { return m.count(func(e *entry) bool { return e.service != nil }) }

func (m *model) live(e *entry) bool { return e.generation >= m.liveSince() }

func (m *model) liveSince() uint64 {
	switch {
	case m.grace > 0:
		return m.grace
	case m.open:
		return m.generation
	}
	return m.generation + 1
}

// octets is what the entries that have the property count.
func (m *model) octets(has func(string, *entry) bool) (n int64) {
	for name, e := range m.services {
		if has(name, e) {
			n += e.octets
		}
	}
	return n
}

func size(rules catalog.Rules, name, id string, s *federation.Service) int64 {
	octets := int64(80 + len(name))
	if s != nil {
		octets = catalog.Size(s, rules.Shares != nil && rules.Shares(s.FQDN))
	}
	return octets + idSize(name, id)
}

func idSize(name, id string) int64 {
	if id == "" || id == name {
		return 0
	}
	return int64(80 + len(id))
}

// at returns how many services have the fqdn.
func (m *model) at(fqdn string) int {
	return m.count(func(e *entry) bool { return e.service != nil && e.service.FQDN.String() == fqdn })
}

// noteRoom notes where there is room at an fqdn that was full.
func (m *model) noteRoom() {
	for fqdn := range m.full {
		if m.at(fqdn) < packed.MaxServicesPerFQDN {
			delete(m.full, fqdn)
			m.freed = true
		}
	}
}

// fits reports whether the name can be announced with so many octets, and notes that
// it is wanted if not. S is the service that it would have from then on, nil: as before.
func (m *model) fits(name string, octets int64, s *federation.Service) bool {
	e := m.services[name]
	if moved := s != nil && (e == nil || e.service == nil || e.service.FQDN != s.FQDN); moved && m.at(s.FQDN.String()) >= packed.MaxServicesPerFQDN {
		m.full[s.FQDN.String()] = true
		return false
	}
	current := e != nil && e.generation == m.generation
	limit := m.config.MaxCatalog
	others := m.octets(func(other string, e *entry) bool { return other != name && e.generation == m.generation })
	all := m.octets(func(other string, _ *entry) bool { return other != name })
	switch {
	case limit == 0 || others+octets <= limit && all+octets <= 2*limit || current && octets <= e.octets:
		return true
	case current:
		octets -= e.octets
	}
	m.wants = append(m.wants, octets)
	return false
}

func (m *model) wanting() bool {
	current := func(_ string, e *entry) bool { return e.generation == m.generation }
	all := m.octets(func(string, *entry) bool { return true })
	return m.synced && (m.freed || slices.ContainsFunc(m.wants, func(octets int64) bool {
		limit := m.config.MaxCatalog
		return limit == 0 || m.octets(current)+octets <= limit && all+octets <= 2*limit
	}))
}

func (m *model) stale() int {
	return m.count(func(e *entry) bool { return e.service != nil && !m.live(e) })
}

// notImported stands for the reason of a service that is left out.
const notImported federation.Reason = "not imported"

// hear has the silence begin anew.
func (m *model) hear(now time.Time) { m.heard, m.wanted = now, now }

// release takes the ID from all services.
func (m *model) release(id string) {
	for _, e := range m.services {
		if e.id == id {
			e.id = ""
		}
	}
}

// refusal returns why the service is not admitted, or "".
func (m *model) refusal(s *federation.Service) federation.Reason {
	if m.config.Admit != nil {
		if invalid := m.config.Admit(s); invalid == catalog.ErrNotImported {
			return notImported
		} else if invalid != nil {
			return invalid.Reason
		}
	}
	return ""
}

func (m *model) up(name, id string, s *federation.Service, now time.Time) federation.Reason {
	if !m.open {
		return noStream
	}
	left := m.refusal(s) == notImported
	switch e := m.services[name]; {
	case !m.content, !left && (e == nil || e.generation != m.generation):
		m.hear(now)
	case left && now.Sub(m.wanted) < 10*time.Minute:
		m.heard = now
	}
	reason := m.take(name, id, s)
	m.noteRoom()
	if reason == "" {
		m.content = true
	}
	return reason
}

func (m *model) take(name, id string, s *federation.Service) federation.Reason {
	e := m.services[name]
	next, reason := s, m.refusal(s)
	if reason == notImported {
		m.leftOut++
		if m.generation > 0 { // it is not restored
			m.release(cmp.Or(id, name))
			delete(m.services, name)
		}
		return ""
	}
	if reason != "" {
		next = nil
		if e != nil {
			next = e.service
		}
	} else if e != nil && e.service != nil && same(e.service, s) {
		next = e.service
	}
	if !m.fits(name, size(m.config, name, id, next), next) {
		if e != nil && m.fits(name, e.octets, nil) {
			e.generation, e.lost = m.generation, time.Time{}
		}
		return cmp.Or(reason, federation.ReasonLimit)
	}
	if e == nil {
		e = &entry{}
		m.services[name] = e
	}
	e.generation, e.lost = m.generation, time.Time{}
	e.service, e.refused, e.octets = next, reason, size(m.config, name, id, next)
	m.identify(name, id)
	return reason
}

// identify gives the ID to the service of that name, and takes it from all others.
func (m *model) identify(name, id string) {
	id = cmp.Or(id, name)
	m.release(id)
	m.services[name].id = ""
	if id != name {
		m.services[name].id = id
	}
}

// byID returns the name of the service that has the ID.
func (m *model) byID(id string) string {
	for name, e := range m.services {
		if id != "" && e.id == id {
			return name
		}
	}
	return id
}

// deleteByID deletes the service that has the ID, and returns its name.
func (m *model) deleteByID(id string, now time.Time) string {
	if !m.open {
		return ""
	}
	if !m.content {
		m.hear(now)
	}
	m.content = true
	name := m.byID(id)
	delete(m.services, name)
	return name
}

func same(s, t *federation.Service) bool {
	return s.FQDN == t.FQDN && s.Description == t.Description && len(s.Instances) == len(t.Instances)
}

func (m *model) refused(name, id string, now time.Time) {
	if !m.open {
		return
	}
	m.hear(now)
	if name == id {
		name = m.byID(id)
	}
	e := m.services[name]
	if e == nil {
		return
	}
	octets := e.octets + idSize(name, id) - idSize(name, e.id)
	identified := id != name && m.fits(name, octets, nil)
	if identified {
		e.octets = octets
	}
	e.generation, e.lost = m.generation, time.Time{}
	if identified {
		m.identify(name, id)
	}
}

func (m *model) mark() { m.marked = m.open }

func (m *model) opened(now time.Time) {
	m.lost(now, now)
	m.generation++
	m.open, m.wants = true, nil
	clear(m.full)
	m.freed = false
	m.hear(now)
	m.leftOut, m.leftBefore = 0, max(m.leftOut, m.leftBefore)
}

// resume takes services as announced by the stream that was opened.
func (m *model) resume(names []string) {
	for _, name := range names {
		if e := m.services[name]; m.fits(name, e.octets, nil) {
			e.generation, e.lost, e.refused = m.generation, time.Time{}, ""
		}
	}
}

// held returns the names that heldNames returns.
func (m *model) held() string {
	var names []string
	for name, e := range m.services {
		if e.service != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return fmt.Sprint(names)
}

// heldNames returns the names of what is held.
func heldNames(c *catalog.Catalog) string {
	var names []string
	for _, p := range c.ResumableServices() {
		names = append(names, p.Name())
	}
	slices.Sort(names)
	return fmt.Sprint(names)
}

// randomSelection selects about half of all leaves.
func randomSelection(r *rand.Rand) resume.BucketSelection {
	some, none := make(resume.Digests, resume.Leaves), make(resume.Digests, resume.Leaves)
	for i := range some {
		some[i][0] = byte(r.IntN(2))
	}
	return some.DifferingBuckets(none)
}

func (m *model) lost(since, now time.Time) {
	if !m.open {
		return
	}
	m.expire(now)
	synced, earlier := m.synced, time.Time{} // since when a clock has been running for others
	for _, e := range m.services {
		if !e.lost.IsZero() && (!m.clock || synced || e.lost.Before(m.ownerLost)) && e.lost.After(earlier) {
			earlier = e.lost
		}
	}
	if m.clock && synced && m.ownerLost.After(earlier) {
		earlier = m.ownerLost
	}
	if since.Before(earlier) {
		since = earlier
	}
	switch {
	case synced:
		m.grace, m.shown = m.liveSince(), time.Time{}
		if m.clock {
			m.shown = m.ownerLost
		}
		m.clock, m.expired, m.ownerLost = true, false, since
	case m.clock && since.Before(m.ownerLost):
		for _, e := range m.services {
			if e.lost.Equal(m.ownerLost) {
				e.lost = since
			}
		}
		m.ownerLost = since
	case !m.clock && m.published() > 0:
		m.clock, m.expired, m.ownerLost = true, false, since
	}
	if m.clock {
		for _, e := range m.services {
			if e.lost.IsZero() {
				e.lost = m.ownerLost
			}
		}
	}
	m.open, m.marked, m.content, m.synced = false, false, false, false
	m.advance(now)
}

// graceEnds returns when what was lost is stale.
func (m *model) graceEnds() (time.Time, bool) {
	at := m.ownerLost.Add(5 * time.Second)
	if due := m.due(m.ownerLost); m.config.Retention > 0 && due.Before(at) {
		at = due
	}
	return at, m.grace > 0
}

func (m *model) end(now time.Time) {
	if m.open {
		m.grace = 0
	}
	if m.open && (!m.synced || m.stale() > 0) {
		m.sweep(now)
	}
}

func (m *model) sweep(now time.Time) {
	maps.DeleteFunc(m.services, func(_ string, e *entry) bool { return !m.live(e) })
	m.synced, m.known, m.lastSync, m.leftBefore = true, true, now, 0
	m.clock, m.expired, m.ownerLost = false, false, time.Time{}
}

// next returns when something is due, and false when nothing is.
func (m *model) next() (next time.Time, ok bool) {
	earlier := func(t time.Time) {
		if !ok || t.Before(next) {
			next, ok = t, true
		}
	}
	if m.settling() {
		earlier(m.heard.Add(m.config.Settle))
	}
	if at, ok := m.graceEnds(); ok {
		earlier(at)
	}
	if m.config.Retention > 0 {
		for _, e := range m.services {
			if !e.lost.IsZero() {
				earlier(m.due(e.lost))
			}
		}
		if m.clock {
			earlier(m.due(m.ownerLost))
		}
	}
	return next, ok
}

func (m *model) settling() bool { return m.open && m.content && !m.synced && !m.marked }

func (m *model) due(lost time.Time) time.Time { return lost.Add(m.config.Retention) }

func (m *model) advance(now time.Time) {
	for {
		at, ok := m.next()
		if !ok || at.After(now) {
			return
		}
		if m.settling() && m.heard.Add(m.config.Settle).Equal(at) {
			m.grace = 0
			m.settle(at)
		} else if end, ok := m.graceEnds(); ok && end.Equal(at) {
			m.grace = 0
		} else {
			m.expire(at)
		}
		m.tidy()
	}
}

// expire removes the services whose retention is over.
func (m *model) expire(now time.Time) {
	over := func(lost time.Time) bool { return m.config.Retention > 0 && !m.due(lost).After(now) }
	maps.DeleteFunc(m.services, func(_ string, e *entry) bool {
		return !e.lost.IsZero() && over(e.lost)
	})
	if over(m.shown) {
		m.shown = time.Time{}
	}
	if m.clock && over(m.ownerLost) {
		m.clock, m.expired = false, !m.synced
	}
}

func (m *model) settle(at time.Time) {
	stale := m.stale()
	if stale < 10 || stale <= m.published()-stale {
		m.sweep(at)
		return
	}
	maps.DeleteFunc(m.services, func(_ string, e *entry) bool { return !m.live(e) && e.service == nil })
	m.ownerLost = time.Time{}
	for _, e := range m.services {
		if e.lost.After(m.ownerLost) {
			m.ownerLost = e.lost
		}
	}
	m.synced, m.known, m.lastSync, m.leftBefore = true, true, at, 0
}

// tidy stops all clocks of a complete catalog that holds nothing back.
func (m *model) tidy() {
	m.noteRoom()
	if m.synced && m.stale() == 0 {
		m.clock, m.expired, m.ownerLost = false, false, time.Time{}
		for _, e := range m.services {
			e.lost = time.Time{}
		}
	}
}

func (m *model) setConfig(config catalog.Rules, now time.Time) {
	less := func(limit, other int64) bool { return limit > 0 && (other == 0 || limit < other) }
	before := m.config
	m.config = config
	full := less(config.MaxCatalog, before.MaxCatalog)
	for _, name := range slices.Sorted(maps.Keys(m.services)) {
		e := m.services[name]
		switch {
		case e.service == nil:
		case m.refusal(e.service) == notImported:
			delete(m.services, name)
			m.leftOut++
		case m.refusal(e.service) != "":
			e.service, e.refused, e.octets = nil, m.refusal(e.service), size(m.config, name, e.id, nil)
		default:
			more := size(config, name, "", e.service) - size(before, name, "", e.service)
			e.octets += more
			full = full || more > 0
		}
	}
	if full {
		m.trim()
	}
	m.tidy()
	m.advance(now)
}

// trim takes away what is beyond the limits.
func (m *model) trim() {
	all := m.octets(func(string, *entry) bool { return true })
	if m.config.MaxCatalog == 0 || all <= m.config.MaxCatalog {
		return
	}
	octets := int64(0)
	for _, rank := range []func(*entry) bool{
		func(e *entry) bool { return e.service != nil && m.live(e) },
		func(e *entry) bool { return e.service != nil && !m.live(e) },
		func(e *entry) bool { return e.service == nil },
	} {
		for _, name := range slices.Sorted(maps.Keys(m.services)) {
			e := m.services[name]
			if !rank(e) {
				continue
			}
			if octets+e.octets > m.config.MaxCatalog {
				m.wants = append(m.wants, e.octets)
				delete(m.services, name)
				continue
			}
			octets += e.octets
		}
	}
}

func (m *model) restore(services []packed.Service, up, now time.Time) bool {
	if m.generation > 0 || m.known || m.config.Retention > 0 && !m.due(up).After(now) {
		return false
	}
	m.known, m.clock, m.ownerLost = true, true, up
	for _, s := range services {
		m.take(s.Name(), "", s.Unpack())
	}
	for _, e := range m.services {
		e.lost = up
	}
	return true
}

// soonest returns when the first of the services that are stale goes, or, when
// there are none, when the clock runs out.
func (m *model) soonest() time.Time {
	first := m.ownerLost
	if m.grace > 0 {
		first = m.shown
	}
	if !m.clock || m.config.Retention < 0 || first.IsZero() {
		return time.Time{}
	}
	for _, e := range m.services {
		if e.service != nil && !e.lost.IsZero() && e.lost.Before(first) {
			first = e.lost
		}
	}
	return m.due(first)
}

func (m *model) status() catalog.Summary {
	s := catalog.Summary{
		Generation: m.generation,
		Expired:    m.expired,
		Lost:       m.ownerLost,
		LastSync:   m.lastSync,
		Known:      m.known,
		Services:   m.published(),
		Stale:      m.stale(),
		Refused:    m.count(func(e *entry) bool { return e.refused != "" }),
		Octets:     m.octets(func(string, *entry) bool { return true }),

		NotImported: max(m.leftOut, m.leftBefore),
	}
	addresses := m.count(func(e *entry) bool { return e.refused == federation.ReasonAddress })
	s.Omits = s.Refused > addresses || s.NotImported > 0
	for _, e := range m.services {
		if e.service != nil {
			s.Instances += len(e.service.Instances)
		}
	}
	s.Live = m.liveSince()
	if m.grace > 0 { // nobody is to see the loss
		s.Lost = m.shown
	}
	if !s.Lost.IsZero() && !m.expired && m.config.Retention > 0 {
		s.Expires = m.due(s.Lost)
	}
	switch {
	case m.synced, m.grace > 0:
		s.State, s.Paused = catalog.Synced, s.Stale
	case m.open:
		s.State = catalog.Syncing
	case m.expired:
		s.State = catalog.Expired
	case m.clock:
		s.State = catalog.Stale
	}
	return s
}
