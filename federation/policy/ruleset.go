package policy

import (
	"bytes"
	"encoding/binary"
	"iter"
	"math/bits"
)

// ruleSet is a set of rules, by their indices.
type ruleSet [(MaxRules + 63) / 64]uint64

func (s *ruleSet) add(rules ...int) {
	for _, i := range rules {
		s[i/64] |= 1 << (i % 64)
	}
}

func (s *ruleSet) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

// intersect removes the rules that are not in other.
func (s *ruleSet) intersect(other *ruleSet) {
	for i := range s {
		s[i] &= other[i]
	}
}

// cut removes the rules behind the first one that is in end as well.
func (s *ruleSet) cut(end *ruleSet) {
	for i := range s {
		common := s[i] & end[i]
		if common == 0 {
			continue
		}
		s[i] &= common ^ (common - 1) // the lowest bit of common, and those below it
		clear(s[i+1:])
		return
	}
}

// text returns the set as a string: a bit for each rule, eight in an octet, the lowest
// first, without the octets at the end that are zero. It is "" for no rule.
func (s *ruleSet) text() string {
	var octets [8 * len(ruleSet{})]byte
	for i, word := range s {
		binary.LittleEndian.PutUint64(octets[8*i:], word)
	}
	return string(bytes.TrimRight(octets[:], "\x00"))
}

// setOf returns the set that text returns as a string.
func setOf(text string) *ruleSet {
	s := new(ruleSet)
	for i := range len(text) {
		s[i/8] |= uint64(text[i]) << (8 * (i % 8))
	}
	return s
}

// each ranges over the rules of a set, ascending. The set must not change meanwhile.
func (s *ruleSet) each() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, word := range s {
			for ; word != 0; word &= word - 1 {
				if !yield(64*i + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

// first returns the first rule that is in both sets, which are as text returns them,
// or -1.
func first(a, b string) int {
	for i := range min(len(a), len(b)) {
		if common := a[i] & b[i]; common != 0 {
			return 8*i + bits.TrailingZeros8(common)
		}
	}
	return -1
}
