package owner

import (
	"hash/maphash"
	"sync"
)

// maxRemembered bounds what a memory holds, to about a megabyte.
const maxRemembered = 1 << 16

// memory remembers which refusals have been logged, because a consumer repeats them
// each time that it downloads the catalog. It keeps hashes instead of texts of a
// peer. When it is full it forgets some, which may then be logged twice; package
// loglimit bounds how much is logged in all. The zero value is ready to use.
type memory struct {
	mu   sync.Mutex // guards the fields below
	seed maphash.Seed
	last map[uint64]uint64 // hash of peer and service to hash of the text
}

// add remembers the text as the last one of that peer and service, and reports
// whether the last one was different.
func (m *memory) add(peer, service, text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil {
		m.seed, m.last = maphash.MakeSeed(), make(map[uint64]uint64)
	}
	key, value := m.key(peer, service), maphash.String(m.seed, text)
	last, known := m.last[key]
	if known && last == value {
		return false
	}
	if !known && len(m.last) >= maxRemembered {
		for other := range m.last { // any one
			delete(m.last, other)
			break
		}
	}
	m.last[key] = value
	return true
}

func (m *memory) key(peer, service string) uint64 {
	return maphash.Comparable(m.seed, [2]string{peer, service})
}

// remove forgets the text of that peer and service.
func (m *memory) remove(peer, service string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.last) > 0 {
		delete(m.last, m.key(peer, service))
	}
}

// reset forgets everything.
func (m *memory) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.last)
}
