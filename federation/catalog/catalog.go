// Package catalog holds what one owner offers: its services, the stream that
// last announced each of them, and how long those are kept that no open stream
// vouches for.
//
// It stands between the owner's subscription, whose events it takes, and the
// zone, which compiles its changes into answers. It is pure: no clock, no
// goroutine, no lock. Time comes in as an argument, results go out as values,
// and the caller, who has the timer, asks Deadline when to call Advance.
//
// # Generations
//
// The wire has no reliable end of a catalog, so a reconnect cannot replace the
// old catalog by the new one: every name would blink. Instead each stream is a
// new generation. What it announces is marked with it in place; what only an
// earlier one announced goes on being served as stale data, until the new
// catalog is known to be complete and the rest is swept.
//
// Three rules say when a catalog is complete:
//
//  1. The owner marks its end (an End event). What was not announced is swept.
//  2. At least one valid service or deletion came, and then nothing for
//     Config.Settle. What was not announced is swept, unless that would be most
//     of the catalog (see guardShare): a restarting owner may be half loaded.
//  3. While no such thing came, nothing is known. The catalog is not complete
//     however long that lasts, what an earlier stream announced stays stale, and
//     the retention clock goes on.
//
// Only an accepted service or deletion is the valid response of rule 2. An empty
// response may come from an owner that has not loaded its services yet, and a
// refused one says nothing about the rest: neither is a reason to sweep what was
// good before, or to deny what was not announced. An owner that offers nothing
// but what is refused is therefore never complete.
//
// Settle counts from the last response that can be a part of the catalog: a
// service that this stream had not announced yet, or a refused one, as an owner
// that still sends what is not wanted is not silent. Heartbeats, later deletions
// and updates do not count, or an owner that is never at rest would never be
// complete.
//
// # What is refused
//
// A service that the configuration does not admit, or that is beyond a limit of it,
// is refused, and what is held of it stays. The version that was refused is not
// kept: an owner could fill the memory with what is not even wanted. When the
// configuration comes to admit it, or there is room again (see Wanting), only a new
// stream brings it. The caller asks for one with Renew, so that nothing is stale
// for it.
//
// # Retention
//
// The clock is the owner's. It starts when a synced stream is lost, goes on
// through failed attempts and streams that are lost before they are synced, and
// stops when one is synced. It never starts from silence: an idle stream is
// fresh for ever.
package catalog

import (
	"errors"
	"iter"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// errNoStream is a mistake of the caller: nothing may be applied between the
// loss of a stream and the opening of the next.
var errNoStream = errors.New("event outside of a stream")

// Config is what the configuration says about one owner.
type Config struct {
	// Retention is how long services outlive the stream that announced
	// them. 0 means without limit.
	Retention time.Duration

	// Settle is the silence after which a catalog whose end is not marked
	// counts as complete.
	Settle time.Duration

	// MaxServices bounds the names that one stream may announce, refused
	// ones included. 0 means without limit. While those of an earlier
	// stream are kept beside them, the catalog holds at most twice as many.
	MaxServices int

	// MaxCatalog bounds what the services that one stream announces count
	// together (see Size), in octets. 0 means without limit. While those of an
	// earlier stream are kept beside them, the catalog holds at most twice as
	// much.
	MaxCatalog int64

	// Admit returns why the owner may not publish a service: its name is outside
	// of the owner's zones, or reserved, or it has an address that is refused. Its
	// errors need not name the service. nil admits every service. It is called for
	// each one that is announced, and for all of them when the configuration
	// changes.
	Admit func(*federation.Service) *federation.InvalidError
}

// Change is what happened to one service. Changes of one name are in order:
// the last one holds.
type Change struct {
	Name       string              // the owner's ID of the service
	Service    *federation.Service // nil when it is gone; the same as before when only the generation is new
	Generation uint64              // of the stream that announced it; 0 when it is gone, or was restored
}

// Catalog is the services of one owner. It is not safe for concurrent use; the
// services that it hands out are, as they are never written.
type Catalog struct {
	config  Config
	records map[string]record // by the owner's name of the service
	changes []Change          // since the last call of Changes

	generation uint64 // of the open or last stream; 0 before the first
	stream     stream // the open stream; zero between two

	ids     ids
	limited limited

	losses  []loss // the retention clocks, oldest first; the last one is the owner's
	expired bool   // the last clock has run out

	known    bool // a catalog was complete, or restored
	lastSync time.Time

	// Counts over records, kept by set.
	services  int               // published
	instances int               // of them
	stale     int               // published, of a generation before live
	refused   [refusedKinds]int // names whose last version was not admitted
	restored  int               // records that no stream has announced
	announced int               // records of the current generation
	octets    int64             // that records count
	current   int64             // ... those of the current generation
}

// record is one name of the owner. At a million services every word counts, so
// a resync marks records in place, and the rest is shared by the catalog.
type record struct {
	service    *federation.Service // published: the last good version; nil when there is none
	generation uint64              // of the last stream that announced the name
	octets     int64               // that it counts
	refused    refusal             // why a later version was not admitted
}

// refusal is the kind of reason for which Config.Admit refused the last version of
// a service. That version is not kept: an owner could fill the memory with what is
// not even wanted. A new stream brings it again, see Renew.
type refusal uint8

const (
	admitted refusal = iota
	refusedName
	refusedAddress

	refusedKinds = iota
)

func refusalOf(r federation.Reason) refusal {
	if r == federation.ReasonAddress {
		return refusedAddress
	}
	return refusedName
}

// stream is what is known of the open stream.
type stream struct {
	open    bool
	marked  bool      // the header announced an end marker
	content bool      // a valid service or deletion came
	synced  bool      // the catalog is complete
	heard   time.Time // when the last response came that settle counts from, or the stream was opened
	renews  renewal   // of the stream before; zero when this one is none
}

// New returns an empty catalog of an owner that has not been reached yet.
func New(config Config) *Catalog {
	return &Catalog{config: config, records: make(map[string]record), ids: newIDs()}
}

// Restore fills a new catalog with what was kept of it through a restart. The
// services are stale from lastUp on, the time when a stream was last up; a time
// after now counts as now, as the machine's clock may have been set back. It
// tells whether it did so: not when their retention is over, and not after the
// first stream was opened. Services that are not admitted, and those beyond the
// limits of Config, are left out.
func (c *Catalog) Restore(services []*federation.Service, lastUp, now time.Time) bool {
	if lastUp.After(now) {
		lastUp = now
	}
	l := loss{at: lastUp}
	if c.generation > 0 || c.known {
		return false
	}
	if due, ok := c.due(l); ok && !due.After(now) {
		return false
	}
	c.known = true
	c.losses = []loss{l}
	for _, s := range services {
		// What is wrong with a service was said when it came.
		_ = c.upsert(s.Name, "", s)
	}
	return true
}

// Opened starts a new generation: a stream to the owner is open.
func (c *Catalog) Opened(now time.Time) {
	var renews renewal
	if c.stream.synced {
		renews = c.stream.renews
	}
	if renews.live == 0 {
		c.Lost(now)
	}
	c.generation++
	c.announced, c.current, c.limited = 0, 0, limited{}
	c.stream = stream{open: true, heard: now, renews: renews}
}

// Marked says that the header of the open stream announced that the owner will
// mark the end of its catalog, so that silence proves nothing. It comes before
// the first response.
func (c *Catalog) Marked() { c.stream.marked = c.stream.open }

// Apply takes one event of the open stream. A *federation.InvalidError refuses
// the service (to the owner, a NACK) and changes nothing that is published: the
// last good version stays. Any other error is a mistake of the caller.
//
// Of a service that is not admitted no more is kept than its name and the kind of
// reason.
func (c *Catalog) Apply(ev federation.Event, now time.Time) error {
	if !c.stream.open {
		return errNoStream
	}
	if !c.stream.content || ev.Operation == federation.Upsert && !c.announces(ev.Name) {
		c.stream.heard = now
	}
	switch ev.Operation {
	case federation.Alive:
		return nil
	case federation.End:
		c.endRenewal()
		if !c.stream.synced || c.stale > 0 {
			c.sweep()
			c.synced(now)
		}
		return nil
	case federation.Delete:
		// The guard is for what we conclude, never for what the owner says.
		name, invalid := c.named(ev)
		if invalid != nil {
			return invalid
		}
		c.set(name, record{})
	case federation.Upsert:
		if err := c.upsert(ev.Name, ev.ID, ev.Service); err != nil {
			return err
		}
	}
	c.stream.content = true
	return nil
}

// announces tells whether the open stream has announced the name.
func (c *Catalog) announces(name string) bool {
	r, ok := c.records[name]
	return ok && r.generation == c.generation
}

// Refused tells of a response on the open stream that was refused before it
// came here, and of the service that it named by its name or its ID, as far as
// that is known. Its last good version stays as it would have after Apply: the
// owner still offers it.
func (c *Catalog) Refused(name, id string, now time.Time) {
	if !c.stream.open {
		return
	}
	c.stream.heard = now
	if known, ok := c.ids.names[name]; ok && name == id {
		name = known
	}
	r, ok := c.records[name]
	if !ok {
		return
	}
	next := r
	next.generation = c.generation
	next.octets += sizeOfID(name, id) - sizeOfID(name, c.ids.of[name])
	if id != name && c.full(r, true, next) == "" {
		c.identify(name, id)
	} else {
		next.octets = r.octets
	}
	c.set(name, next)
}

// Settling returns how long the open stream must be silent for its catalog to be
// complete, and false when its silence proves nothing.
func (c *Catalog) Settling() (time.Duration, bool) {
	_, ok := c.settles()
	return c.config.Settle, ok
}

// Paused says that what the owner sent may not have been read until now, as the
// process did not run. What has passed of Config.Settle is void: nobody was
// listening.
func (c *Catalog) Paused(now time.Time) {
	if c.stream.open {
		c.stream.heard = now
	}
}

// Lost tells that the open stream has ended, and makes all services stale. It
// does nothing when none is open: an attempt that failed changes nothing.
func (c *Catalog) Lost(now time.Time) {
	if !c.stream.open {
		return
	}
	c.endRenewal()
	c.losses = c.clocks(now)
	c.expired = c.expired && c.services == 0
	c.stream = stream{}
	c.stale = c.services
}

// Deadline returns the next instant at which Advance has something to do, and
// false when nothing is pending. It may lie in the past.
func (c *Catalog) Deadline() (time.Time, bool) {
	at, ok := c.expires()
	for _, due := range []func() (time.Time, bool){c.settles, c.renewalEnds} {
		if other, pending := due(); pending && (!ok || !at.Before(other)) {
			at, ok = other, true
		}
	}
	return at, ok
}

// Advance does what is due at now: it completes a catalog whose owner has been
// silent, and removes services whose retention is over. Responses that have
// already come must be applied before, or they are taken for silence.
func (c *Catalog) Advance(now time.Time) {
	// Step by step, so that a call that comes late does what calls in time
	// would have done.
	for {
		at, ok := c.Deadline()
		if !ok || at.After(now) {
			return
		}
		if settle, ok := c.settles(); ok && settle.Equal(at) {
			c.endRenewal()
			c.settle(at)
		} else if end, ok := c.renewalEnds(); ok && end.Equal(at) {
			c.endRenewal()
		} else {
			c.expire()
		}
	}
}

// Config returns the configuration.
func (c *Catalog) Config() Config { return c.config }

// SetConfig changes the configuration at now, with all its consequences:
// services that are not admitted any more, or that are beyond the limits, go, and
// the retention counts anew from when the stream was lost. What was refused and is
// admitted now comes with the next stream: see Renew. The cost is that of one
// Admit for each service.
func (c *Catalog) SetConfig(config Config, now time.Time) {
	lowered := below(int64(config.MaxServices), int64(c.config.MaxServices)) || below(config.MaxCatalog, c.config.MaxCatalog)
	c.config = config
	for name, r := range c.records {
		if r.service == nil {
			continue
		}
		if invalid := c.admit(r.service); invalid != nil {
			next := newRecord(name, c.ids.of[name], nil)
			next.generation, next.refused = r.generation, refusalOf(invalid.Reason)
			c.set(name, next)
		}
	}
	if lowered {
		c.trim()
	}
	c.Advance(now)
}

// Changes returns what has changed since the last call, which is the caller's
// to keep. The loss of a stream and its consequences for all services are not
// in it; they are in Status.
func (c *Catalog) Changes() []Change {
	changes := c.changes
	c.changes = nil
	return changes
}

// All yields the published services and their generations, in no order. The
// catalog must not be used meanwhile.
func (c *Catalog) All() iter.Seq2[*federation.Service, uint64] {
	return func(yield func(*federation.Service, uint64) bool) {
		for _, r := range c.records {
			if r.service != nil && !yield(r.service, r.generation) {
				return
			}
		}
	}
}

// Snapshot returns what Restore takes: the services that are worth keeping
// through a restart, and the time when a stream that vouches for them was last
// up. It returns false while no catalog was ever complete: a part of one,
// restored, would deny that the rest exists.
//
// Services that the guard holds are not among them. Their retention is shorter
// than that of the others, and there is one time for all.
func (c *Catalog) Snapshot(now time.Time) (services []*federation.Service, lastUp time.Time, ok bool) {
	clocks := c.clocks(now)
	n := len(clocks)
	if !c.known || n == 0 {
		return nil, time.Time{}, false
	}
	var oldest uint64
	if n > 1 {
		oldest = clocks[n-2].generation + 1
	}
	for s, generation := range c.All() {
		if generation >= oldest {
			services = append(services, s)
		}
	}
	return services, clocks[n-1].at, true
}

// upsert takes a service as announced on the current stream.
func (c *Catalog) upsert(name, id string, s *federation.Service) error {
	r, ok := c.records[name]
	invalid := c.admit(s)
	var next record
	switch {
	case invalid != nil:
		next = newRecord(name, id, r.service)
		next.refused = refusalOf(invalid.Reason)
	case r.service != nil && r.service.Equal(s):
		next = newRecord(name, id, r.service)
	default:
		next = newRecord(name, id, s)
	}
	next.generation = c.generation
	if rule := c.full(r, ok, next); rule != "" {
		c.keep(name, r, ok)
		if invalid == nil {
			invalid = &federation.InvalidError{Service: name, Reason: federation.ReasonLimit, Rule: rule}
		}
		return invalid
	}
	c.set(name, next)
	c.identify(name, id)
	if invalid != nil {
		return invalid
	}
	return nil
}

// newRecord returns a record with what it counts.
func newRecord(name, id string, s *federation.Service) record {
	if s == nil {
		return record{octets: sizeOfName(name) + sizeOfID(name, id)}
	}
	return record{service: s, octets: Size(s) + sizeOfID(name, id)}
}

// admit returns the error of Config.Admit with the service that it is about.
func (c *Catalog) admit(s *federation.Service) *federation.InvalidError {
	if c.config.Admit == nil {
		return nil
	}
	invalid := c.config.Admit(s)
	if invalid == nil {
		return nil
	}
	named := *invalid
	named.Service = s.Name
	if named.Field == "" {
		named.Field = "fqdn"
	}
	return &named
}

// set replaces the record of name, or removes it when next holds no version.
// It is the only place where records and changes are written.
func (c *Catalog) set(name string, next record) {
	prev := c.records[name]
	c.count(prev, -1)
	if next.service == nil && next.refused == admitted {
		next = record{}
		delete(c.records, name)
		c.ids.forget(name)
	} else {
		c.records[name] = next
	}
	c.count(next, +1)
	switch {
	case next.service != nil && (next.service != prev.service || next.generation != prev.generation):
		c.changes = append(c.changes, Change{Name: name, Service: next.service, Generation: next.generation})
	case next.service == nil && prev.service != nil:
		c.changes = append(c.changes, Change{Name: name})
	}
	if c.stream.synced && c.stale == 0 {
		c.losses = nil // the guard holds nothing any more
	}
}

func (c *Catalog) count(r record, by int) {
	if r.service != nil {
		c.services += by
		c.instances += by * len(r.service.Instances)
		if r.generation < c.live() {
			c.stale += by
		}
	}
	if r.refused != admitted {
		c.refused[r.refused] += by
	}
	if r == (record{}) {
		return
	}
	c.octets += int64(by) * r.octets
	if r.generation == c.generation {
		c.announced += by
		c.current += int64(by) * r.octets
	}
	if r.generation == 0 {
		c.restored += by
	}
}

// live returns the first generation that is not stale.
func (c *Catalog) live() uint64 {
	if c.stream.renews.live > 0 {
		return c.stream.renews.live
	}
	if c.stream.open {
		return c.generation
	}
	return c.generation + 1
}

// removeBefore removes all records of a generation before the given one.
func (c *Catalog) removeBefore(generation uint64) {
	for name, r := range c.records {
		if r.generation < generation {
			c.set(name, record{})
		}
	}
}
