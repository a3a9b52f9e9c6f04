// Package leftout knows which services an owner has announced that are not imported.
//
// It knows them by hashes alone, as an owner may offer a million services of which
// nobody here wants more than one. The seed of the hashes is secret, so an owner cannot
// find two names with one hash. Beside it there is what a stream needs that goes on with
// what is held (see package resume).
package leftout

import (
	"cmp"
	"hash/maphash"
	"maps"

	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
)

// Sent is what is known of the version that the owner has sent. The zero value stands for
// nothing.
type Sent struct {
	digest resume.Digest
	leaf   uint16
}

// SentAs returns what is known of the service of that name, of which resource is what stood
// in its message.
func SentAs(name string, resource []byte) Sent {
	return Sent{resume.Of(resource), uint16(resume.Leaf(name))} //nolint:gosec // below resume.Leaves
}

// AddTo adds the service to the digests of a catalog.
func (s Sent) AddTo(sum *resume.Sum) { sum.AddDigest(int(s.leaf), s.digest) }

// Set is the services that the open or last stream has announced last in a version
// that is not imported. It is not safe for concurrent use.
type Set struct {
	seed  maphash.Seed
	names map[uint64]Sent

	// earlier are those that only earlier streams have announced, until a catalog is
	// complete: a stream may go on with them. None is in names.
	earlier map[uint64]Sent

	// edits counts the changes of what SentAll yields.
	edits uint64

	// The IDs that differ from the name. Of two services with one ID, the last has it.
	byID map[uint64]uint64 // name by ID
	idOf map[uint64]uint64 // ID by name

	// before is how many were known when the stream was opened, or restored, until a
	// catalog is complete.
	before int
}

// New returns an empty set.
func New() Set { return Set{seed: maphash.MakeSeed()} }

// Opened makes room for those of another stream, which may go on with those before, as
// long as these are not more than the limit says; 0 is no limit.
func (s *Set) Opened(limit int) {
	before, earlier, fewer := s.Count(), s.names, s.earlier
	if len(fewer) > len(earlier) {
		earlier, fewer = fewer, earlier
	}
	edits := s.edits
	if limit > 0 && len(earlier)+len(fewer) > limit && len(fewer) > 0 {
		edits++ // the larger part is worth more
	} else {
		maps.Copy(earlier, fewer)
	}
	*s = Set{seed: s.seed, before: before, earlier: earlier, edits: edits}
}

// Resumed takes those that earlier streams have announced as announced by this one, but
// for those that it sends whole. It follows Opened.
func (s *Set) Resumed(whole resume.Selection) {
	names := s.earlier
	s.earlier = nil
	for key, sent := range names {
		if sent != (Sent{}) && !whole.HasLeaf(int(sent.leaf)) {
			continue
		}
		delete(names, key)
		if s.earlier == nil {
			s.earlier = make(map[uint64]Sent)
		}
		s.earlier[key] = sent
	}
	s.names = names
}

// Complete forgets what was known before the stream.
func (s *Set) Complete() {
	if len(s.earlier) > 0 {
		s.edits++
	}
	s.before, s.earlier = 0, nil
}

// Forget forgets what the owner has sent, as it may be wanted now.
func (s *Set) Forget() {
	for key, sent := range s.names {
		if sent != (Sent{}) {
			s.names[key] = Sent{}
			s.edits++
		}
	}
	if len(s.earlier) > 0 {
		s.edits++
	}
	s.earlier = nil
}

// SentAll returns what is known of the versions that the owner has sent last.
func (s *Set) SentAll() []Sent {
	if len(s.names)+len(s.earlier) == 0 {
		return nil
	}
	all := make([]Sent, 0, len(s.names)+len(s.earlier))
	for _, of := range []map[uint64]Sent{s.names, s.earlier} {
		for sent := range maps.Values(of) {
			if sent != (Sent{}) {
				all = append(all, sent)
			}
		}
	}
	return all
}

// Edits returns how often the result of SentAll has changed.
func (s *Set) Edits() uint64 { return s.edits }

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
func (s *Set) Add(name, id string, sent Sent, limit int) {
	if s.names == nil {
		s.names = make(map[uint64]Sent)
	}
	key := s.hash(name)
	before, ok := s.names[key]
	if !ok && limit > 0 && len(s.names) >= limit {
		s.forgetEarlier(key)
		return
	}
	if !ok {
		before = s.earlier[key]
		delete(s.earlier, key)
	}
	if sent != before {
		s.edits++
	}
	s.names[key] = sent
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
	if len(s.earlier) > 0 {
		s.forgetEarlier(s.hash(name))
	}
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
	if s.names[key] != (Sent{}) {
		s.edits++
	}
	delete(s.names, key)
	s.forgetID(key)
}

func (s *Set) forgetEarlier(key uint64) {
	if _, ok := s.earlier[key]; ok {
		delete(s.earlier, key)
		s.edits++
	}
}

func (s *Set) forgetID(key uint64) {
	if id, ok := s.idOf[key]; ok {
		delete(s.idOf, key)
		delete(s.byID, id)
	}
}

func (s *Set) hash(text string) uint64 { return maphash.String(s.seed, text) }
