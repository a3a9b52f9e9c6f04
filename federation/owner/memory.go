package owner

import (
	"hash/maphash"
	"sync"
)

// maxRemembered bounds what a memory holds, to about a megabyte.
const maxRemembered = 1 << 16

// memory remembers which refusals have been logged: a consumer repeats them each
// time that it downloads the catalog. It keeps no text of a peer, and what it has
// to forget may be logged twice; how much is logged at all package loglimit
// bounds. The zero value is ready.
type memory struct {
	mu   sync.Mutex
	last map[uint64]uint64 // of what a peer and a service were, as hashes, that of the text; guarded by mu
}

// seed is that of all hashes, so that peers cannot choose what is forgotten.
var seed = maphash.MakeSeed()

// add reports whether the text is not the last one of that peer and service.
func (m *memory) add(peer, service, text string) bool {
	key, value := maphash.Comparable(seed, [2]string{peer, service}), maphash.String(seed, text)
	m.mu.Lock()
	defer m.mu.Unlock()
	last, known := m.last[key]
	if known && last == value {
		return false
	}
	if m.last == nil {
		m.last = make(map[uint64]uint64)
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

// remove forgets what the peer said of the service, which it accepts now.
func (m *memory) remove(peer, service string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.last, maphash.Comparable(seed, [2]string{peer, service}))
}

// reset forgets everything.
func (m *memory) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.last)
}
