package policy

import (
	"iter"
	"math/bits"
)

// ruleSet is a set of rules, by their indices: a bit for each.
type ruleSet [(MaxRules + 63) / 64]uint64

func (s *ruleSet) addRules(rules ...int) {
	for _, i := range rules {
		s[i/64] |= 1 << (i % 64)
	}
}

func (s *ruleSet) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

// cutAfter removes the rules behind the first one that end has as well.
func (s *ruleSet) cutAfter(end *ruleSet) {
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

// inOrder returns the rules of a set, ascending. The set must not change meanwhile.
func (s *ruleSet) inOrder() iter.Seq[int] {
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

// firstCommon returns the first rule that is in both sets, or -1.
func (s *ruleSet) firstCommon(other *ruleSet) int {
	for i := range s {
		if common := s[i] & other[i]; common != 0 {
			return 64*i + bits.TrailingZeros64(common)
		}
	}
	return -1
}
