package wire

import (
	"hash/maphash"
	"slices"
	"sync/atomic"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// maxWord is the longest string that is shared, in bytes.
const maxWord = 64

// words are strings that were decoded lately, each in the place that its hash
// gives it, from where another one drives it out. The services of a catalog say
// the same things in their tags, labels, IDs and metadata, and a million copies
// of "version" are a waste. Package unique would find every repetition, but
// strings that are of one service alone would cost more than the decoding of all
// that is around them.
var (
	words    [1 << 12]atomic.Pointer[string]
	wordSeed = maphash.MakeSeed()
)

// word returns s, mostly in the memory of an equal string if there was one.
func word(s string) string {
	if s == "" || len(s) > maxWord {
		return s
	}
	place := &words[maphash.String(wordSeed, s)%uint64(len(words))]
	if known := place.Load(); known != nil && *known == s {
		return *known
	}
	kept := s // and not &s, which would be allocated each time
	place.Store(&kept)
	return s
}

// share is word for the strings of a list, which becomes the result unless it has
// much room that nobody needs.
func share(list []string) []string {
	for i, s := range list {
		list[i] = word(s)
	}
	if cap(list)-len(list) > len(list)/8 {
		return slices.Clip(slices.Clone(list))
	}
	return slices.Clip(list)
}

// shareLists has the lists of a service that say the same be one: those of a
// thousand endpoints mostly do.
func shareLists(endpoints []federation.Endpoint, instances []federation.Instance) {
	if len(endpoints)+len(instances) == 2 {
		return // one of each: the labels and the selector are hardly the same
	}
	known := make(map[uint64][]string)
	var last []string
	one := func(list []string) []string {
		if len(list) == 0 {
			return list
		}
		if slices.Equal(list, last) {
			return last
		}
		hash := hashList(list)
		if first, ok := known[hash]; ok && slices.Equal(first, list) {
			list = first
		} else {
			known[hash] = list
		}
		last = list
		return list
	}
	for i := range endpoints {
		endpoints[i].Labels = one(endpoints[i].Labels)
	}
	for i := range instances {
		instances[i].EndpointSelector = one(instances[i].EndpointSelector)
	}
}

// hashList returns a hash of the strings and of where each of them ends.
func hashList(list []string) uint64 {
	var h maphash.Hash
	h.SetSeed(wordSeed)
	for _, s := range list {
		_, _ = h.WriteString(s)
		_ = h.WriteByte(0xff) // in no string that is valid UTF-8
	}
	return h.Sum64()
}
