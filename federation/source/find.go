package source

import "github.com/hamlet-federation/coredns-federation/federation/wire"

// Found is a service that a source of a catalog has.
type Found struct {
	Service *wire.Encoded
	Source  string
	Hidden  string // why it is not published: a clause; empty when it is
	Held    bool   // whether its origin does not have it any more, and it stays (Entry.MaxWithdraw)
}

// notYet is why a service is hidden whose source is not published.
const notYet = "its source is not published before all sources of the new configuration are complete"

// Find returns the services of all sources that match, in no order. Matches is called for each
// service while nothing changes, and does not call the catalog.
func (c *Catalog) Find(matches func(*wire.Encoded) bool) (found []Found) {
	c.mu.Lock()
	defer c.mu.Unlock()
	add := func(p *part, source, hidden string) {
		for name, it := range p.items {
			if !matches(it.service) {
				continue
			}
			f := Found{Service: it.service, Source: source, Hidden: hidden}
			if it.by != "" {
				f.Hidden = it.by + " has its name or its fqdn, and stands first"
			}
			_, f.Held = p.held[name]
			found = append(found, f)
		}
	}
	for _, p := range c.active {
		hidden := ""
		if p.lapsed {
			hidden = "its source " + p.overdue()
		}
		add(p, p.Name, hidden)
	}
	for _, l := range c.next {
		if l.part.level == inactive {
			add(l.part, l.Name, notYet)
		}
	}
	return found
}

// Services returns the services that are published, by name.
func (c *Catalog) Services() map[string]*wire.Encoded {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.publishes()
}
