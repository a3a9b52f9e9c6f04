package wire

import (
	"hash/maphash"
	"slices"
	"sync/atomic"
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

// share is word for the strings of a list, which becomes the result.
func share(list []string) []string {
	for i, s := range list {
		list[i] = word(s)
	}
	return slices.Clip(list)
}
