package rules

import (
	"iter"
	"math/bits"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
)

// index finds the rules that may name an identity and a service, so that the others
// need not be looked at.
type index struct {
	everyone  set
	exactID   map[string][]int
	startID   map[string][]int // of patterns, by what startOf returns
	everyName set
	exactName map[string][]int // without the final dot
	belowName map[string][]int // for what is below a name, without the final dot
}

// set is a set of rules, by their indices.
type set [(maxRules + 63) / 64]uint64

func (s *set) add(rules ...int) {
	for _, i := range rules {
		s[i/64] |= 1 << (i % 64)
	}
}

// intersect removes the rules that are not in other.
func (s *set) intersect(other set) {
	for i := range s {
		s[i] &= other[i]
	}
}

// each ranges over the rules of a set, ascending.
func (s *set) each() iter.Seq[int] {
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

// indexOf returns the index of rules, of which there are maxRules at most.
func indexOf(rules []rule) index {
	x := index{
		exactID: map[string][]int{}, startID: map[string][]int{},
		exactName: map[string][]int{}, belowName: map[string][]int{},
	}
	for i := range rules {
		for _, provider := range rules[i].providers {
			p := provider.Pattern()
			switch text := p.String(); {
			case p.IsEveryone():
				x.everyone.add(i)
			case p.IsPlain():
				x.exactID[text] = append(x.exactID[text], i)
			default:
				start := startOf(text)
				x.startID[start] = append(x.startID[start], i)
			}
		}
		for _, t := range rules[i].services {
			switch name, below := t.Above(); {
			case name == "":
				x.everyName.add(i)
			case below:
				x.belowName[name] = append(x.belowName[name], i)
			default:
				x.exactName[name] = append(x.exactName[name], i)
			}
		}
	}
	return x
}

// identified returns the rules that may name one of the identities.
func (x *index) identified(ids []federation.ID) set {
	var rules set
	for _, id := range ids {
		text := id.String()
		if text == "" {
			continue
		}
		for i, word := range x.everyone {
			rules[i] |= word
		}
		rules.add(x.exactID[text]...)
		start := pattern.Group(text)
		rules.add(x.startID[start]...)
		if !id.IsSPIFFE() {
			continue
		}
		for range maxStart {
			end := strings.IndexByte(text[len(start)+1:], '/')
			if end < 0 {
				break
			}
			start = text[:len(start)+1+end]
			rules.add(x.startID[start]...)
		}
	}
	return rules
}

// maxStart bounds how many segments of a path startOf returns, and so the work for
// an identity.
const maxStart = 8

// startOf returns what all identities have in common that a pattern matches: what
// pattern.Group returns, and of SPIFFE IDs the segments of the path before the first one
// with a '*' as well.
func startOf(spelled string) string {
	start := pattern.Group(spelled)
	if !strings.Contains(spelled, "://") {
		return start
	}
	for range maxStart {
		segment, _, more := strings.Cut(spelled[len(start)+1:], "/")
		if !more || strings.Contains(segment, "*") {
			break
		}
		start = spelled[:len(start)+1+len(segment)]
	}
	return start
}

// named returns the rules that may name a service, whose name has no final dot.
func (x *index) named(name string) set {
	rules := x.everyName
	rules.add(x.exactName[name]...)
	for more := true; more; {
		if _, name, more = strings.Cut(name, "."); more {
			rules.add(x.belowName[name]...)
		}
	}
	return rules
}
