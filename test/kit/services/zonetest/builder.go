// Package zonetest is for tests of what answers from a zone.
package zonetest

import (
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// Builder is a zone.Builder that knows services by their names, as it remembers what was put: in
// the place of the catalogs, which do so for the real one.
type Builder struct {
	*zone.Builder

	put map[key]packed.Service
}

// key is the name of a service of one owner.
type key struct {
	owner int
	name  string
}

// NewBuilder is that of package zone.
func NewBuilder(config zone.Config, serials map[string]uint32) *Builder {
	return &Builder{zone.NewBuilder(config, serials), make(map[key]packed.Service)}
}

// Put offers a valid service, of which it is not known when it came.
func (b *Builder) Put(owner int, s *federation.Service, generation uint64) {
	b.PutUpdated(owner, s, generation, 0)
}

// PutUpdated offers a valid service that came at that time, in seconds since 1970.
func (b *Builder) PutUpdated(owner int, s *federation.Service, generation uint64, updated uint32) {
	p, at := packed.PackService(s), key{owner, s.Name}
	b.Builder.Put(b.Prepare(owner, p, p.Unpack()), b.put[at], generation, updated)
	b.put[at] = p
}

// Confirm offers the service of that name in another generation.
func (b *Builder) Confirm(owner int, name string, generation uint64) {
	b.Builder.Confirm(owner, b.put[key{owner, name}], generation)
}

// Remove takes back the service of that name.
func (b *Builder) Remove(owner int, name string) {
	b.Builder.Remove(owner, b.put[key{owner, name}])
	delete(b.put, key{owner, name})
}
