package receipts

import "hash/maphash"

// Tally counts how many streams each copy has. An owner has a copy for nearly each of its
// streams, so one that is there once takes 8 octets and its share of the free places of a map:
// a map from 64 bits to a count would take twice as much.
type Tally struct {
	seed  maphash.Seed
	once  map[uint32]uint32 // the halves of the hash of a copy
	again map[uint64]int    // how often others are there, or are once more; by hash
}

// NewTally returns an empty one.
func NewTally() *Tally {
	return &Tally{seed: maphash.MakeSeed(), once: make(map[uint32]uint32), again: make(map[uint64]int)}
}

func (t *Tally) hash(key string) (hash uint64, low, high uint32) {
	hash = maphash.String(t.seed, key)
	return hash, uint32(hash), uint32(hash >> 32) //nolint:gosec // both halves
}

// Add counts a stream of the copy with a key.
func (t *Tally) Add(key string) {
	hash, low, high := t.hash(key)
	if _, taken := t.once[low]; taken {
		t.again[hash]++
		return
	}
	t.once[low] = high
}

// Remove counts a stream less of a copy that has one, and reports whether it was the last.
func (t *Tally) Remove(key string) (last bool) {
	hash, low, high := t.hash(key)
	half, taken := t.once[low]
	is := taken && half == high
	switch n := t.again[hash]; {
	case n > 1:
		t.again[hash] = n - 1
	case n == 1:
		delete(t.again, hash)
		return !is
	default:
		delete(t.once, low)
		return true
	}
	return false
}
