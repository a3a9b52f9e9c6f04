package catalog

import (
	"cmp"
	"strings"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// serviceIDs keeps the IDs of those services whose ID differs from their name, in both directions,
// because a deletion may carry only the ID. Where two services came with one ID, the last one has
// the ID. There is at most one ID for each record of the catalog, which counts the octets of the ID
// in its size.
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

// storeID stores the ID under which the owner sent a service. An empty ID means that the ID is the
// name, as in a DELETE that carries only the name.
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

// releaseID takes the ID away from the service that has it, because the service of that name has
// come with the same ID. Where the ID is empty, the name is the ID.
func (i *serviceIDs) releaseID(name, id string) {
	if other, ok := i.names[cmp.Or(id, name)]; ok {
		i.forgetName(other)
	}
}

// deletedName returns the name of the service that a deletion is about: the service that came with
// the ID of the deletion, or else the service that has the ID as its name. An ID that no service
// has is no mistake, because owners may repeat deletions, and delete what is not imported.
func (i *serviceIDs) deletedName(ev wire.Event) string {
	if ev.ID == "" {
		return ev.Name
	}
	return cmp.Or(i.names[ev.ID], ev.ID)
}
