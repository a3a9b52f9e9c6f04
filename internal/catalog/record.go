package catalog

import (
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// nameRecord is what the catalog knows of one name of the owner. With a million services every word
// counts: a new stream marks the records in place, and what only few records have is in maps of the
// catalog.
type nameRecord struct {
	service    packed.Service // the last good version, which is published; zero when there is none
	generation uint32         // of the last stream that announced the name; 0 when it was restored
	octets     uint32         // size; the limits of package federation keep it far below 1<<32
	updated    uint32         // when service came, see Change; 0: before the process was started
	instances  uint16         // of service
	admission  admission      // of the last version that was announced
}

// unixSeconds returns a time as records have it.
func unixSeconds(t time.Time) uint32 { return uint32(t.Unix()) } //nolint:gosec // until 2106

// newNameRecord returns a record of the service s, packed as p, with its size.
func (c *Catalog) newNameRecord(id string, p packed.Service, s *federation.Service) nameRecord {
	return nameRecord{
		service: p, octets: uint32(Size(s, c.rules.isShared(s.FQDN)) + sizeOfID(s.Name, id)), //nolint:gosec // see the fields
		instances: uint16(len(s.Instances)), //nolint:gosec // limits.Instances is far below 1<<16
	}
}

// nameOnly returns a record without a service, for a name whose version was not admitted.
func nameOnly(name, id string) nameRecord {
	return nameRecord{octets: uint32(int64(perName+len(name)) + sizeOfID(name, id))} //nolint:gosec // a short string
}

// upsertService stores the service s, packed as p, as announced by the current stream, and returns
// why the service is refused, or nil. The caller has judged that the service is imported, and
// invalid says why it is not admitted, or is nil. Now is in seconds, as in a nameRecord.
func (c *Catalog) upsertService(id string, p packed.Service, s *federation.Service, invalid *federation.InvalidError, now uint32) error {
	name := p.Name()
	r := c.records[name]
	var next nameRecord
	switch {
	case invalid != nil && r.service.IsZero():
		next = nameOnly(name, id)
	case invalid != nil:
		next = c.newNameRecord(id, r.service, c.unpacker.Unpack(r.service))
		next.updated = r.updated
	case r.service == p:
		next = c.newNameRecord(id, r.service, s) // in the memory that others share
		next.updated = r.updated
	default:
		next = c.newNameRecord(id, p, s)
		next.updated = now
	}
	if invalid != nil {
		next.admission = admissionOf(invalid.Reason)
	}
	next.generation = c.generation
	if rule := c.exceededRule(r, next); rule != "" {
		c.keepPublished(name, r)
		if invalid == nil {
			invalid = &federation.InvalidError{Service: name, FQDN: s.FQDN.String(), Reason: federation.ReasonLimit, Rule: rule}
		}
		return invalid
	}
	c.setRecord(name, next)
	c.ids.storeID(name, id)
	if invalid != nil {
		return invalid
	}
	return nil
}

// removeRecord removes the record of name, whose service goes for that cause.
func (c *Catalog) removeRecord(name string, cause RemovalCause) {
	c.replaceRecord(name, nameRecord{}, cause)
}

// setRecord replaces the record of name by one that has a service if the previous record had one.
func (c *Catalog) setRecord(name string, next nameRecord) { c.replaceRecord(name, next, 0) }

// replaceRecord replaces the record of name, or removes it when next has neither a service nor a
// version that was not admitted. Where the service goes, it goes for that cause. Records, their
// counts and the list of changes are written here and nowhere else, so that they agree.
func (c *Catalog) replaceRecord(name string, next nameRecord, cause RemovalCause) {
	prev := c.records[name]
	c.fqdns.replaceService(prev.service, next.service)
	c.count.addRecord(prev, -1, c.generation, c.liveGeneration())
	published := !next.service.IsZero()
	switch {
	case published:
		name = next.service.Name() // in its memory, and in no other
		c.records[name] = next
	case next.admission != admitted:
		name = strings.Clone(name)
		c.records[name] = next
	default:
		next = nameRecord{}
		delete(c.records, name)
		if len(c.records) == 0 {
			c.records = make(map[string]nameRecord) // a catalog that was large does not stay so
		}
		c.ids.forgetName(name)
	}
	c.count.addRecord(next, +1, c.generation, c.liveGeneration())
	if next.service != prev.service {
		c.edits++
	}
	switch {
	case published && (next.service != prev.service || next.generation != prev.generation):
		c.changes = append(c.changes, Change{
			Name: name, Packed: next.service, Was: prev.service, Generation: uint64(next.generation), Updated: next.updated,
		})
	case !published && !prev.service.IsZero():
		c.changes = append(c.changes, Change{Name: name, Was: prev.service, Cause: cause})
	}
	if c.stream.synced && c.count.stale == 0 {
		c.retention.losses = nil // the guard no longer holds a service
	}
}

// liveGeneration returns the first generation that is not stale.
func (c *Catalog) liveGeneration() uint32 {
	switch {
	case c.grace > 0:
		return c.grace
	case c.stream.open:
		return c.generation
	}
	return c.generation + 1
}

// removeBefore removes all records of a generation before the given one.
func (c *Catalog) removeBefore(generation uint32, cause RemovalCause) {
	for name, r := range c.records {
		if r.generation < generation {
			c.removeRecord(name, cause)
		}
	}
}
