package catalog

import (
	"cmp"
	"errors"
	"iter"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// errNoStream is the error for a mistake of the caller: an event may only be applied while a stream
// is open.
var errNoStream = errors.New("event outside of a stream")

// Forever is a retention without limit.
const Forever time.Duration = -1

// The values for which zero fields of Rules stand.
const (
	DefaultRetention = 24 * time.Hour
	DefaultSettle    = 5 * time.Second
)

// Rules are what the configuration says about one owner.
type Rules struct {
	// Retention is how long services outlive the stream that announced them: Forever is without
	// limit, and 0 stands for DefaultRetention.
	Retention time.Duration

	// Settle is how long the owner must be silent for a catalog whose end it does not mark
	// to count as complete; 0 stands for DefaultSettle.
	Settle time.Duration

	// MaxCatalog bounds the sum of the sizes (see Size) of the services that one
	// stream announces, in octets. 0 means without limit. Services of earlier streams are
	// kept beside them until the new catalog is complete, so the catalog has at most twice
	// as much. Names of services that are not admitted count, and those of services that
	// are not imported do not.
	MaxCatalog int64

	// Admit returns why the owner may not publish a service: its name is outside
	// of the owner's zones, or reserved, or it has an address that is not allowed.
	// The errors need not name the service. ErrNotImported says that this side does not
	// want the service. A nil Admit admits every service. Admit is called for each
	// service that is announced, and for all services when the configuration changes.
	// It must not keep the service.
	Admit func(*federation.Service) *federation.InvalidError

	// Shares reports whether a service of that fqdn, if it is admitted, is published at a name that owners
	// share, which takes more memory. A nil Shares says that none is.
	Shares func(federation.FQDN) bool

	// Admits are words, with spaces between them. Each word stands for what Admit admits for one
	// reader of the catalog, such as a zone: two Rules with the same word admit the same for that
	// reader, in another process as well. No words stand for one word.
	Admits string
}

// isShared returns what Shares says of the fqdn, and false where Shares is nil.
func (r *Rules) isShared(fqdn federation.FQDN) bool { return r.Shares != nil && r.Shares(fqdn) }

// RemovalCause is why a service is gone.
type RemovalCause uint8

// The causes for which a catalog removes a service.
const (
	CauseWithdrawn RemovalCause = iota + 1 // the owner has deleted it
	CauseAbsent                            // it was not in a complete catalog
	CauseExpired                           // the retention is over
	CauseExcluded                          // the configuration no longer admits it, or does not import its newest version
	CauseUnproven                          // it was restored in part, and the restoration began anew
)

// String returns the cause in lower case, as reports show it.
func (c RemovalCause) String() string {
	return [...]string{0: "", CauseWithdrawn: "withdrawn", CauseAbsent: "absent", CauseExpired: "expired", CauseExcluded: "excluded", CauseUnproven: "unproven"}[c]
}

// Catalog keeps the services of one owner, and for each of them the last stream that announced it.
//
// Its caller, a consumer.Mirror, is the only one that changes a catalog: by the events of a stream
// (ApplyEvent), by time (AdvanceTo), by rules (SetRules) and by what a file has preserved (RestoreMore).
// The methods are not safe for concurrent use, so that a caller decides which lock it holds. The services
// that they return are safe, because nobody writes to a service.
//
// Rules.MaxCatalog bounds the octets, and packed.MaxServicesPerFQDN the services at one name. A catalog
// keeps no history and no refused version, because a peer could fill the memory with those.
//
// # Generations
//
// The wire has no reliable end of a catalog. A reconnect therefore cannot replace
// the old catalog by the new one, or every name would be gone for a moment. Instead,
// each stream is a new generation. A service that the stream announces is marked
// with it in place. A service that only an earlier stream announced is still served,
// as stale data, until the new catalog is known to be complete. Then the services
// that were not announced are swept.
//
// Three rules say when a catalog is complete:
//
//  1. The owner marks its end (an End event). Services that were not announced are
//     swept.
//  2. At least one valid service or deletion came, and then nothing for
//     Rules.Settle: the catalog has settled. Services that were not announced are
//     swept, unless they are most of the catalog (see guardShare). In that case the
//     guard holds them, because a restarting owner may have loaded only half of its
//     services.
//  3. Until a valid service or deletion comes, the catalog is not complete, however
//     long that takes. Services of an earlier stream stay stale, and the retention
//     clock goes on.
//
// Only an accepted service or deletion counts as valid for rule 2. An empty response
// may come from an owner that has not loaded its services yet, and a refused response
// says nothing about the rest of the catalog. Neither is a reason to sweep services
// that were good before, or to deny names that were not announced. An owner that
// offers nothing but refused services is therefore never complete.
//
// Rules.Settle counts from the last response that can be a part of the catalog: a
// service that this stream had not announced yet, a refused response, as an owner
// that still sends unwanted services is not silent, or a service that is not imported,
// for ten minutes after the last of the others. Heartbeats, and later deletions
// and updates, do not count, or the catalog of an owner that is never at rest would
// never be complete.
//
// # Resumed streams
//
// A stream may go on with what the catalog holds, and bring only what differs (see package
// resume). AdoptServices marks the rest with the generation of the stream before its first event:
// these services are live from then on, as the owner has said that it still has them. All
// others are stale until they come, and are swept at the end marker, without which no
// stream is resumed.
//
// # Grace
//
// A stream may die, as the next one resumes within moments: a certificate is replaced, an owner
// or what stands before it is restarted. So what a synced stream has announced counts as live for
// Grace after its loss, in every respect. A catalog that is complete again until then was never
// lost. After that the services are stale that no stream has announced since. The retention counts
// from the loss all the same, and a shorter one ends the grace.
//
// # Services that are not imported
//
// What this side does not want (Rules.Admit returns ErrNotImported) is accepted, and not
// kept. It is a part of the owner's catalog all the same, and a valid response: an owner
// of whose services none is imported is complete by rule 1 and by rule 2. A version that
// was kept before goes, as the owner does not offer that any more.
//
// Nothing is kept of it but a count of the updates of the open or last stream. Only a new
// stream can bring the services themselves. One that resumes brings them anyway: the
// digests of their buckets are others than those of the owner, so these come again.
//
// # Refused responses
//
// A response is refused for one of three reasons: package wire could not make a
// service of it (the caller reports this by NoteRefusal), the configuration does not
// admit the service (Rules.Admit), or the service is beyond a limit of the
// configuration or packed.MaxServicesPerFQDN. In each case the last good version
// of the service stays published.
// The refused version is not kept, or an owner could fill the memory with services
// that nobody wants. Only a new stream can bring it again, when the configuration
// comes to admit it or there is room again (see HasFreedRoom).
//
// # Retention
//
// The retention clock is the owner's. It starts when a synced stream is lost. It goes
// on through failed attempts and through streams that are lost before they are synced.
// It stops when a stream is synced. Silence never starts it: services of an idle
// stream stay live without limit. Where the retention ends while a stream is open, what that
// stream has announced stays, and has a retention of its own from the loss of the stream.
type Catalog struct {
	rules   Rules
	records map[string]nameRecord // by the name of the service
	changes []Change              // since the last call of TakeChanges

	known     bool // a catalog was complete, or restored
	restoring bool // BeginRestore was called, and EndRestore not yet
	lastSync  time.Time
	covers    string // see Summary
	omitted   bool   // the owner has had more than what was restored, and no catalog has been complete since

	generation uint32      // of the open or last stream; 0 before the first. A stream each second is 136 years
	stream     streamState // the open stream; zero when none is open
	grace      uint32      // the first generation that is live although its stream was lost; 0: there is no grace

	ids       serviceIDs
	limited   smallestSize // octets that were missing for what the open stream announced beyond the limit, of which the names are not kept: an owner can send them without end
	leftOut   leftOut
	fqdns     fqdnCounts
	retention retentionClocks
	count     recordCounts // of records, kept by replaceRecord

	edits    uint64          // how often what ResumableServices returns has changed
	unpacker packed.Unpacker // for Rules.Admit, which keeps nothing
}

// streamState is the state of the open stream.
type streamState struct {
	open    bool
	marked  bool      // the header announced an end marker
	content bool      // a valid service or deletion came
	synced  bool      // the catalog is complete
	heard   time.Time // when Rules.Settle began to count: at the last response that counts, or when the stream was opened
	wanted  time.Time // the same, but for what is not imported
	admits  string    // the words of Rules.Admits that were there all the time
}

// New returns an empty catalog of an owner that has not been reached yet.
func New(rules Rules) *Catalog {
	return &Catalog{rules: withDefaults(rules), records: make(map[string]nameRecord), ids: newServiceIDs(), fqdns: newFQDNCounts()}
}

// withDefaults returns the rules with the defaults in place of zero fields.
func withDefaults(rules Rules) Rules {
	rules.Retention = cmp.Or(rules.Retention, DefaultRetention)
	rules.Settle = cmp.Or(rules.Settle, DefaultSettle)
	rules.Admits = cmp.Or(rules.Admits, "all")
	return rules
}

// OpenStream records that a stream to the owner is open, and starts a new generation.
func (c *Catalog) OpenStream(now time.Time) {
	c.EndStream(now, now)
	c.EndRestore(false)
	c.generation++
	c.count.current = 0
	c.limited = 0
	c.fqdns.forgetRefused()
	c.leftOut = leftOut{before: c.leftOut.shownCount()}
	c.stream = streamState{open: true, heard: now, wanted: now, admits: c.rules.Admits}
}

// ExpectEndMarker records that the header of the open stream promised an end marker. Silence
// then proves nothing. ExpectEndMarker is called before the first event is applied.
func (c *Catalog) ExpectEndMarker() { c.stream.marked = c.stream.open }

// ApplyEvent applies one event of the open stream, and returns why the event is refused, or nil. A
// *federation.InvalidError refuses the service, which means a NACK to the owner. Such an event
// changes nothing that is published: the last good version stays. Any other error is a mistake of
// the caller. A service that is not imported is no error.
//
// Of a service that is not admitted, the catalog keeps only the name and the kind of reason.
func (c *Catalog) ApplyEvent(ev wire.Event, now time.Time) error {
	if !c.stream.open {
		return errNoStream
	}
	if !c.stream.content {
		c.stream.restartSilence(now)
	}
	switch ev.Operation {
	case wire.Alive:
		return nil
	case wire.End:
		c.endGrace()
		if !c.stream.synced || c.count.stale > 0 {
			c.sweepUnannounced()
			c.markSynced(now)
		}
		return nil
	case wire.Delete:
		// The guard is for conclusions of ours, never for what the owner says.
		c.removeRecord(c.ids.deletedName(ev), CauseWithdrawn)
	case wire.Upsert:
		invalid := c.admissionError(ev.Service)
		if invalid == ErrNotImported {
			c.leaveOut(ev.Name, ev.ID, now)
			break
		}
		r := c.records[ev.Name]
		if r.generation < c.generation {
			c.stream.restartSilence(now)
		}
		if err := c.upsertService(ev.ID, r.service.PackOrReuse(ev.Service), ev.Service, invalid, unixSeconds(now)); err != nil {
			return err
		}
	}
	c.stream.content = true
	return nil
}

// restartSilence makes Rules.Settle count from now on.
func (s *streamState) restartSilence(now time.Time) { s.heard, s.wanted = now, now }

// NoteRefusal records that a response on the open stream was refused before it became an event. The
// name and the ID are those of the service in the response, or empty where they are not known. The
// last good version of the service stays, as it does when ApplyEvent refuses a service, because the
// owner still offers the service.
func (c *Catalog) NoteRefusal(name, id string, now time.Time) {
	if !c.stream.open {
		return
	}
	c.stream.restartSilence(now)
	if named, ok := c.ids.names[name]; ok && name == id {
		name = named
	}
	r, ok := c.records[name]
	if !ok {
		return
	}
	next := r
	next.octets = uint32(int64(r.octets) + sizeOfID(name, id) - sizeOfID(name, c.ids.of[name])) //nolint:gosec // see record
	if id != name && c.exceededRule(r, next) == "" {
		c.ids.storeID(name, id)
	} else {
		next = r
	}
	next.generation = c.generation
	c.setRecord(name, next)
}

// SilenceNeeded returns how long the open stream must be silent for its catalog to be
// complete, and false when its silence proves nothing.
func (c *Catalog) SilenceNeeded() (time.Duration, bool) {
	_, ok := c.settleDeadline()
	return c.rules.Settle, ok
}

// RestartSilence makes Rules.Settle count from now on, because the process did not run until now
// and may not have read what the owner sent.
func (c *Catalog) RestartSilence(now time.Time) {
	if c.stream.open {
		c.stream.restartSilence(now)
	}
}

// EndStream records that the open stream has ended, because the origin of the services was lost at
// since. This is now, or earlier where a relay was in between. The services are stale from now on,
// or after the grace where the stream was synced. Services whose retention was over before that are
// removed, as by an AdvanceTo in time. EndStream does nothing when no stream is open, because a
// failed attempt changes nothing.
func (c *Catalog) EndStream(since, now time.Time) {
	if !c.stream.open {
		return
	}
	for at, ok := c.retention.nextExpiry(c.rules.Retention); ok && !at.After(now); at, ok = c.retention.nextExpiry(c.rules.Retention) {
		c.expireOldest()
	}
	c.retention = retentionClocks{c.clocksAfterLoss(since), c.retention.over && c.count.services == 0}
	switch {
	case c.stream.synced:
		c.grace = c.liveGeneration()
	case c.grace == 0:
		c.count.stale = c.count.services
	}
	c.stream = streamState{}
	c.AdvanceTo(now)
}

// NextDeadline returns the next instant at which AdvanceTo has something to do, and false
// when there is none. It may be in the past.
func (c *Catalog) NextDeadline() (time.Time, bool) {
	at, ok := c.retention.nextExpiry(c.rules.Retention)
	for _, due := range []func() (time.Time, bool){c.settleDeadline, c.graceEnds} {
		if other, pending := due(); pending && (!ok || !at.Before(other)) {
			at, ok = other, true
		}
	}
	return at, ok
}

// AdvanceTo does what is due at now: it completes a catalog whose owner has been silent for
// Rules.Settle, ends the grace, and removes services whose retention is over. The caller applies
// the responses that have arrived first, or the time since then is taken for silence.
func (c *Catalog) AdvanceTo(now time.Time) {
	// One step at a time: a late call has the same result as calls in time.
	for {
		at, ok := c.NextDeadline()
		if !ok || at.After(now) {
			return
		}
		if settle, ok := c.settleDeadline(); ok && settle.Equal(at) {
			c.completeBySilence(at)
		} else if end, ok := c.graceEnds(); ok && end.Equal(at) {
			c.endGrace()
		} else {
			c.expireOldest()
		}
	}
}

// Rules returns the rules in force.
func (c *Catalog) Rules() Rules { return c.rules }

// SetRules replaces the rules at now. It removes services that are no longer imported or admitted,
// or that are beyond a lowered limit. A new retention counts from the loss of the stream. Services
// that were left out or refused, and would be accepted now, come with the next stream: until then
// Summary.Covers says for which words nothing is missing. SetRules calls Rules.Admit once for each
// service.
func (c *Catalog) SetRules(rules Rules, now time.Time) {
	before := c.rules
	rules = withDefaults(rules)
	full := isLowerLimit(rules.MaxCatalog, before.MaxCatalog)
	c.rules = rules
	if !c.omitsServices() {
		c.covers = rules.Admits
	}
	c.covers, c.stream.admits = commonWords(c.covers, rules.Admits), commonWords(c.stream.admits, rules.Admits)
	for name, r := range c.records {
		if r.service.IsZero() {
			continue
		}
		s := c.unpacker.Unpack(r.service)
		switch invalid := c.admissionError(s); {
		case invalid == nil:
			if shared := rules.isShared(s.FQDN); shared != before.isShared(s.FQDN) {
				r.octets = uint32(int64(r.octets) - Size(s, !shared) + Size(s, shared)) //nolint:gosec // see record
				c.setRecord(name, r)
				full = full || shared
			}
		case invalid != ErrNotImported:
			next := nameOnly(name, c.ids.of[name])
			next.generation, next.admission = r.generation, admissionOf(invalid.Reason)
			c.replaceRecord(name, next, CauseExcluded)
		default:
			c.removeRecord(name, CauseExcluded)
			c.leftOut.now++
		}
	}
	if full {
		c.trimToLimit()
	}
	c.AdvanceTo(now)
}

// TakeChanges returns what has changed since the last call. The caller may keep the slice. A
// service that becomes stale is no change: see Summary.Live.
func (c *Catalog) TakeChanges() []Change {
	changes := c.changes
	c.changes = nil
	return changes
}

// LastAnnouncement says when the owner has last announced a service.
type LastAnnouncement struct {
	Generation uint64 // as Change.Generation
	Updated    uint32 // as Change.Updated
}

// All returns the published services in no order, each with its last announcement. The caller must
// not use the catalog meanwhile.
func (c *Catalog) All() iter.Seq2[packed.Service, LastAnnouncement] {
	return func(yield func(packed.Service, LastAnnouncement) bool) {
		for _, r := range c.records {
			if !r.service.IsZero() && !yield(r.service, LastAnnouncement{uint64(r.generation), r.updated}) {
				return
			}
		}
	}
}
