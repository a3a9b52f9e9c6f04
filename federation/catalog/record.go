package catalog

import "github.com/hamlet-federation/coredns-federation/federation"

// record is one name of the owner. With a million services every word counts: a
// resync marks the records in place, and what few records have is in maps of the
// catalog.
type record struct {
	service    *federation.Service // the last good version, which is published; nil when there is none
	generation uint64              // of the last stream that announced the name; 0 when it was restored
	octets     int64               // size
	admission  admission           // of the last version that was announced
}

// newRecord returns a record with its size.
func newRecord(name, id string, s *federation.Service) record {
	if s == nil {
		return record{octets: sizeOfName(name) + sizeOfID(name, id)}
	}
	return record{service: s, octets: Size(s) + sizeOfID(name, id)}
}

// upsert takes a service as the current stream announces it.
func (c *Catalog) upsert(name, id string, s *federation.Service) error {
	r, ok := c.records[name]
	invalid := c.admit(s)
	var next record
	switch {
	case invalid != nil:
		next = newRecord(name, id, r.service)
		next.admission = admissionOf(invalid.Reason)
	case r.service != nil && r.service.Equal(s):
		next = newRecord(name, id, r.service)
	default:
		next = newRecord(name, id, s)
	}
	next.generation = c.generation
	if rule := c.exceeded(r, ok, next); rule != "" {
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

// set replaces the record of name, or removes it when next has neither a service nor
// a version that was not admitted. It is the only place where records and changes are
// written.
func (c *Catalog) set(name string, next record) {
	prev := c.records[name]
	c.count(prev, -1)
	if next.service == nil && next.admission == admitted {
		next = record{}
		delete(c.records, name)
		c.ids.forget(name)
	} else {
		c.records[name] = next
	}
	c.count(next, +1)
	switch {
	case next.service != nil && (next.service != prev.service || next.generation != prev.generation):
		c.changes = append(c.changes, Change{
			Name: name, Service: next.service, Same: next.service == prev.service, Generation: next.generation,
		})
	case next.service == nil && prev.service != nil:
		c.changes = append(c.changes, Change{Name: name})
	}
	if c.stream.synced && c.stale == 0 {
		c.losses = nil // the guard no longer holds a service
	}
}

// count adds a record to the counts of the catalog, or, with -1, takes it away.
func (c *Catalog) count(r record, by int) {
	if r.service != nil {
		c.services += by
		c.instances += by * len(r.service.Instances)
		if r.generation < c.live() {
			c.stale += by
		}
	}
	if r.admission != admitted {
		c.notAdmitted[r.admission] += by
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
