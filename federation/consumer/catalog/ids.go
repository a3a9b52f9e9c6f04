package catalog

import (
	"cmp"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// ids are the IDs of the services whose ID differs from their name. Where two services
// came with one ID, the last one has it.
type ids struct {
	names map[string]string // by ID
	of    map[string]string // by name
}

func newIDs() ids { return ids{names: make(map[string]string), of: make(map[string]string)} }

// forget removes the ID of a name.
func (i *ids) forget(name string) {
	if id, ok := i.of[name]; ok {
		delete(i.of, name)
		delete(i.names, id)
	}
}

// identify stores the ID under which the owner sent a service. An empty one means
// that the ID is the name, as in a DELETE that carries only the name.
func (c *Catalog) identify(name, id string) {
	if c.ids.of[name] == id && id != "" {
		return
	}
	if len(c.ids.of) > 0 {
		c.edits++ // Resumable may return more
		c.ids.forget(name)
	}
	c.releaseID(name, id)
	if id != "" && id != name {
		name = strings.Clone(name) // or the service that it came in would stay in memory
		c.ids.of[name], c.ids.names[id] = id, name
		c.edits++
	}
}

// releaseID takes the ID, or the name where that is the ID, from the service that has it, as
// another one has come with it.
func (c *Catalog) releaseID(name, id string) {
	if len(c.ids.of) > 0 {
		c.edits++ // Resumable may return more
	}
	if other, ok := c.ids.names[cmp.Or(id, name)]; ok {
		c.ids.forget(other)
	}
}

// named returns the name of the service that a deletion is about: of the one that came with its
// ID, and else of the one that has the ID as its name. An ID that no service has is no mistake,
// as deletions may be repeated, and what is not imported may be deleted as well.
func (c *Catalog) named(ev federation.Event) string {
	if ev.ID == "" {
		return ev.Name
	}
	return cmp.Or(c.ids.names[ev.ID], ev.ID)
}
