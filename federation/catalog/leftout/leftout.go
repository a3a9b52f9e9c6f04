// Package leftout knows which services an owner has announced that are not imported.
//
// It knows them by hashes alone, as an owner may offer a million services of which
// nobody here wants more than one. The seed of the hashes is secret, so an owner cannot
// find two names with one hash.
package leftout

import (
	"cmp"
	"hash/maphash"
)

// Set is the services that the open or last stream has announced last in a version
// that is not imported. It is not safe for concurrent use.
type Set struct {
	seed  maphash.Seed
	names map[uint64]struct{}

	// The IDs that differ from the name. Of two services with one ID, the last has it.
	byID map[uint64]uint64 // name by ID
	idOf map[uint64]uint64 // ID by name

	// before is how many were known when the stream was opened, or restored, until a
	// catalog is complete.
	before int
}

// New returns an empty set.
func New() Set { return Set{seed: maphash.MakeSeed()} }

// Opened makes room for those of another stream.
func (s *Set) Opened() { *s = Set{seed: s.seed, before: s.Count()} }

// Complete forgets how many were known before the stream.
func (s *Set) Complete() { s.before = 0 }

// AddBefore counts a service that only an earlier stream has announced, unless there are
// as many as the limit says; 0 is no limit.
func (s *Set) AddBefore(limit int) {
	if limit == 0 || s.before < limit {
		s.before++
	}
}

// Count returns how many there are. Until a catalog is complete, those that were known
// before count where they are more: most of them are about to come.
func (s *Set) Count() int { return max(len(s.names), s.before) }

// Has reports whether the stream has announced the service of that name.
func (s *Set) Has(name string) bool {
	if len(s.names) == 0 {
		return false // as mostly
	}
	_, ok := s.names[s.hash(name)]
	return ok
}

// Add adds a service with its ID, empty where that is the name, or which no other
// service has: see ReleaseID. It does not if there are as many as the limit says; 0 is
// no limit.
func (s *Set) Add(name, id string, limit int) {
	if s.names == nil {
		s.names = make(map[uint64]struct{})
	}
	key := s.hash(name)
	if _, ok := s.names[key]; !ok && limit > 0 && len(s.names) >= limit {
		return
	}
	s.names[key] = struct{}{}
	s.forgetID(key)
	if id == "" || id == name {
		return
	}
	if s.byID == nil {
		s.byID, s.idOf = make(map[uint64]uint64), make(map[uint64]uint64)
	}
	of := s.hash(id)
	s.byID[of], s.idOf[key] = key, of
}

// Remove removes the service of that name, and reports whether it was there.
func (s *Set) Remove(name string) bool {
	if !s.Has(name) {
		return false
	}
	s.remove(s.hash(name))
	return true
}

// RemoveByID removes the service with that ID that is not its name, and reports
// whether there was one.
func (s *Set) RemoveByID(id string) bool {
	if len(s.byID) == 0 {
		return false
	}
	key, ok := s.byID[s.hash(id)]
	if ok {
		s.remove(key)
	}
	return ok
}

// ReleaseID takes the ID, or the name where that is empty, from the service that has it,
// as another one has come with it.
func (s *Set) ReleaseID(name, id string) {
	if len(s.byID) == 0 {
		return
	}
	if key, ok := s.byID[s.hash(cmp.Or(id, name))]; ok {
		s.forgetID(key)
	}
}

func (s *Set) remove(key uint64) {
	delete(s.names, key)
	s.forgetID(key)
}

func (s *Set) forgetID(key uint64) {
	if id, ok := s.idOf[key]; ok {
		delete(s.idOf, key)
		delete(s.byID, id)
	}
}

func (s *Set) hash(text string) uint64 { return maphash.String(s.seed, text) }
