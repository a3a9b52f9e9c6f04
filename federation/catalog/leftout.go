package catalog

import (
	"hash/maphash"
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// ErrNotImported is what Config.Admit returns for a service that this side does not
// want. That is no fault of the owner, so the service is not refused: it is accepted
// and not kept, and a version that was kept before goes.
var ErrNotImported = &federation.InvalidError{Reason: "not imported", Rule: "is not imported"}

// leftOut are the services that the open or last stream has announced last in a
// version that is not imported. They are known by hashes alone, as an owner may offer
// a million services of which nobody here wants more than one. The seed is secret, so
// an owner cannot find two names with one hash.
type leftOut struct {
	seed  maphash.Seed
	names map[uint64]struct{}

	// before is how many were known when the stream was opened, or restored, until a
	// catalog is complete.
	before int

	// As in ids, for IDs that differ from the name.
	byID map[uint64]uint64 // name by ID
	idOf map[uint64]uint64 // ID by name
}

func newLeftOut() leftOut { return leftOut{seed: maphash.MakeSeed()} }

// opened makes room for those of another stream.
func (l *leftOut) opened() { *l = leftOut{seed: l.seed, before: l.count()} }

// count returns how many there are. Until a catalog is complete, those of the one before
// count where they are more: most of them are about to come.
func (l *leftOut) count() int { return max(len(l.names), l.before) }

// has reports whether the service of that name is one of them.
func (l *leftOut) has(name string) bool {
	if len(l.names) == 0 {
		return false // as mostly
	}
	_, ok := l.names[maphash.String(l.seed, name)]
	return ok
}

// add adds a service with its ID, empty where that is the name, or which nobody else
// has. It does not if there are as many as the limit says; 0 is no limit.
func (l *leftOut) add(name, id string, limit int) {
	if l.names == nil {
		l.names = make(map[uint64]struct{})
	}
	key := maphash.String(l.seed, name)
	if _, ok := l.names[key]; !ok && limit > 0 && len(l.names) >= limit {
		return
	}
	l.names[key] = struct{}{}
	l.forgetID(key)
	if id == "" || id == name {
		return
	}
	if l.byID == nil {
		l.byID, l.idOf = make(map[uint64]uint64), make(map[uint64]uint64)
	}
	of := maphash.String(l.seed, id)
	l.byID[of], l.idOf[key] = key, of
}

// remove removes the service of that name, if it is one of them.
func (l *leftOut) remove(name string) {
	if len(l.names) > 0 {
		l.removeKey(maphash.String(l.seed, name))
	}
}

// removeByID removes the service with that ID that is not its name, and reports
// whether there was one.
func (l *leftOut) removeByID(id string) bool {
	if len(l.byID) == 0 {
		return false
	}
	key, ok := l.byID[maphash.String(l.seed, id)]
	if ok {
		l.removeKey(key)
	}
	return ok
}

func (l *leftOut) removeKey(key uint64) {
	delete(l.names, key)
	l.forgetID(key)
}

// releaseID takes the ID, or the name where that is the ID, from the service that has
// it, as another one has come with it.
func (l *leftOut) releaseID(name, id string) {
	if len(l.byID) == 0 {
		return
	}
	if id == "" {
		id = name
	}
	if key, ok := l.byID[maphash.String(l.seed, id)]; ok {
		l.forgetID(key)
	}
}

func (l *leftOut) forgetID(key uint64) {
	if id, ok := l.idOf[key]; ok {
		delete(l.idOf, key)
		delete(l.byID, id)
	}
}

// leaveOut takes a service that is not imported, as the open stream announces it.
func (c *Catalog) leaveOut(name, id string) {
	if _, ok := c.records[name]; ok {
		c.set(name, record{})
	}
	c.ids.release(name, id)
	c.leftOut.releaseID(name, id)
	c.leftOut.add(name, id, c.config.MaxServices)
}

// leaveOutKnown takes services that are no longer imported.
func (c *Catalog) leaveOutKnown(names []string) {
	if limit := c.config.MaxServices; limit > 0 && len(c.leftOut.names)+len(names) > limit {
		slices.Sort(names) // not all of them count: the first
	}
	for _, name := range names {
		generation, id := c.records[name].generation, c.ids.of[name]
		c.set(name, record{})
		if generation == c.generation && generation > 0 {
			c.leftOut.add(name, id, c.config.MaxServices)
		} else {
			c.leaveOutBefore()
		}
	}
}

// leaveOutBefore takes a service that is not imported, and that only an earlier stream
// has announced.
func (c *Catalog) leaveOutBefore() {
	if limit := c.config.MaxServices; !c.stream.synced && (limit == 0 || c.leftOut.before < limit) {
		c.leftOut.before++
	}
}
