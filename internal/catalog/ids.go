package catalog

import (
	"cmp"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// serviceIDs are the IDs of the services whose ID differs from their name. Where two services
// came with one ID, the last one has it.
type serviceIDs struct {
	names map[string]string // by ID
	of    map[string]string // by name
}

func newServiceIDs() serviceIDs {
	return serviceIDs{names: make(map[string]string), of: make(map[string]string)}
}

// forgetName removes the ID of a name.
func (i *serviceIDs) forgetName(name string) {
	if id, ok := i.of[name]; ok {
		delete(i.of, name)
		delete(i.names, id)
	}
}

// storeID stores the ID under which the owner sent a service. An empty one means
// that the ID is the name, as in a DELETE that carries only the name.
func (i *serviceIDs) storeID(name, id string) {
	if i.of[name] == id && id != "" {
		return
	}
	i.forgetName(name)
	i.releaseID(name, id)
	if id != "" && id != name {
		name = strings.Clone(name) // or the service that it came in would stay in memory
		i.of[name], i.names[id] = id, name
	}
}

// releaseID takes the ID, or the name where that is the ID, from the service that has it, as
// another one has come with it.
func (i *serviceIDs) releaseID(name, id string) {
	if other, ok := i.names[cmp.Or(id, name)]; ok {
		i.forgetName(other)
	}
}

// deletedName returns the name of the service that a deletion is about: of the one that came with its
// ID, and else of the one that has the ID as its name. An ID that no service has is no mistake,
// as deletions may be repeated, and what is not imported may be deleted as well.
func (i *serviceIDs) deletedName(ev federation.Event) string {
	if ev.ID == "" {
		return ev.Name
	}
	return cmp.Or(i.names[ev.ID], ev.ID)
}
