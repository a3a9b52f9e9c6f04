package catalog

import "github.com/hamlet-federation/coredns-federation/internal/wire/packed"

// ResumableServices returns the services that the owner need not send again on a new stream (see package
// resume), in no order. They need not be a whole catalog: a digest tells what is in a bucket,
// and so what is missing comes. While services are restored there are none, as more will come.
func (c *Catalog) ResumableServices() []packed.Service {
	if c.restoring {
		return nil
	}
	services := make([]packed.Service, 0, c.count.services)
	for _, r := range c.records.allRecords() {
		if !r.service.IsZero() {
			services = append(services, r.service)
		}
	}
	return services
}

// EditCount returns how often what ResumableServices returns has changed. A stream may only go on with
// what was there when it was asked for, and is there still.
func (c *Catalog) EditCount() uint64 { return c.edits }

// AdoptServices takes services that ResumableServices has returned as announced by the open stream, which goes
// on with them: the owner still has these versions, so they are not stale any more. A service
// that is beyond a limit is not taken, as if it had been sent.
func (c *Catalog) AdoptServices(services []packed.Service) {
	if !c.stream.open {
		return
	}
	for _, p := range services {
		r, ok := c.records.get(p.Name())
		if !ok || r.service != p {
			continue
		}
		next := r
		next.generation, next.admission = c.generation, admitted
		if c.exceededRule(r, next) == "" {
			c.setRecord(p.Name(), next)
		}
	}
}
