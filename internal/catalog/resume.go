package catalog

import "github.com/hamlet-federation/coredns-federation/internal/wire/packed"

// ResumableServices returns, in no order, the services that the owner need not send again on a new
// stream (see package resume). They need not be a whole catalog: the owner compares digests of
// buckets, and so sends what is missing. While services are restored ResumableServices returns
// none, because more will come.
func (c *Catalog) ResumableServices() []packed.Service {
	if c.restoring {
		return nil
	}
	services := make([]packed.Service, 0, c.count.services)
	for p := range c.All() {
		services = append(services, p)
	}
	return services
}

// EditCount returns how often the result of ResumableServices has changed. The caller compares two
// counts, because a stream may only go on with services that are still the same as when their
// digests were made.
func (c *Catalog) EditCount() uint64 { return c.edits }

// AdoptServices marks services that ResumableServices has returned as announced by the open stream,
// which goes on with them: the owner still has these versions, so they are not stale any more. A
// service that is beyond a limit is left as it is, as if the owner had sent it.
func (c *Catalog) AdoptServices(services []packed.Service) {
	if !c.stream.open {
		return
	}
	for _, p := range services {
		r, ok := c.records[p.Name()]
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
