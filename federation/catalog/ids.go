package catalog

import "github.com/hamlet-federation/coredns-federation/federation"

// ids are the IDs of services that have another one than their name. Of two
// services with one ID the last that came has it.
type ids struct {
	names map[string]string // by ID
	of    map[string]string // by name
}

func newIDs() ids { return ids{names: make(map[string]string), of: make(map[string]string)} }

// forget forgets the ID of a name.
func (i ids) forget(name string) {
	if id, ok := i.of[name]; ok {
		delete(i.of, name)
		delete(i.names, id)
	}
}

// identify remembers the ID under which the owner sent a service. None is the
// same as the name: what a DELETE with no more than that name in it means.
func (c *Catalog) identify(name, id string) {
	if c.ids.of[name] == id && id != "" {
		return
	}
	c.ids.forget(name)
	if id == "" {
		id = name
	}
	if other, ok := c.ids.names[id]; ok {
		c.ids.forget(other)
	}
	if id != name {
		c.ids.of[name], c.ids.names[id] = id, name
	}
}

// named returns the name of the service that a deletion is about. That nothing is
// known under its ID is no mistake, as deletions may be repeated. But a service
// that was restored and that no stream has announced yet came without its ID, and
// might be meant: the owner is told rather than left in a false belief.
func (c *Catalog) named(ev federation.Event) (string, *federation.InvalidError) {
	if ev.ID == "" {
		return ev.Name, nil
	}
	if name, ok := c.ids.names[ev.ID]; ok {
		return name, nil
	}
	if r, ok := c.records[ev.ID]; !ok && c.restored > 0 || ok && r.generation == 0 && c.restored > 1 {
		return "", &federation.InvalidError{
			Service: ev.ID,
			Field:   "resource_id",
			Reason:  federation.ReasonMissing,
			Rule:    "names no service that was sent since this consumer was started, and there are older ones; put the name into the resource",
		}
	}
	return ev.ID, nil
}
