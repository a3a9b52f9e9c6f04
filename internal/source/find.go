package source

import "github.com/hamlet-federation/coredns-federation/internal/wire"

// FoundService is a service that a source of a catalog has.
type FoundService struct {
	Service *wire.EncodedService
	Source  string
	Hidden  string // why the service is not published, as a clause; empty when it is published
	Paused  bool   // whether the service stays although its origin has it no more (Entry.MaxWithdraw)
}

// Find returns the services of all sources for which matches returns true, in no order. Nothing
// changes while matches is called, and it must not call the catalog.
func (c *Catalog) Find(matches func(*wire.EncodedService) bool) (found []FoundService) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.parts {
		for name, it := range p.items {
			if !matches(it.service) {
				continue
			}
			f := FoundService{Service: it.service, Source: p.Name}
			switch {
			case it.hiddenBy != "":
				f.Hidden = it.hiddenBy + " has its name or its fqdn, and comes first in the catalog"
			case p.lapsed:
				f.Hidden = "its source " + p.overdueReason()
			case it.awaits != nil:
				f.Hidden = it.awaits.Name + " comes first in the catalog, may have its name or its fqdn, and has not yet said what it has"
			}
			_, f.Paused = p.paused[name]
			found = append(found, f)
		}
	}
	return found
}
