package policy

import (
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/pattern"
)

// Policy is a compiled list of rules. It never changes, so goroutines share it. A nil
// policy tells everything to everyone. Only [New] makes another one.
type Policy struct {
	rules  []rule
	shapes []shape // each once; the first one changes nothing

	// The rules by their patterns. No rule is twice at one place.
	anyName   ruleSet
	exactName map[string][]int // by name, without the final dot
	belowName map[string][]int // by the name above, without the final dot
	everyone  ruleSet
	exactID   map[string][]int
	patternID []consumers

	unconditional ruleSet
}

// consumers are rules for the consumers that a pattern matches.
type consumers struct {
	pattern pattern.ID
	rules   []int
}

// all is the pattern that matches every name, and the one that matches every consumer.
const all = "*"

// New compiles the rules, in the order in which they are tried. Without any, nothing
// is told to anybody. Where there are mistakes, it returns all of them, in the order of
// the rules, with a policy that tells nothing to anybody.
func New(rules []Rule) (*Policy, []Mistake) {
	if len(rules) > MaxRules {
		return compiled(nil, nil), []Mistake{{Err: errTooManyRules}}
	}
	shapes, numbers := []shape{{}}, map[string]int{(&shape{}).key(): 0}
	var (
		list     []rule
		mistakes []Mistake
	)
	for i := range rules {
		c := compiler{rule: i + 1}
		r, s := c.compile(&rules[i]), c.compileShape(&rules[i])
		mistakes = append(mistakes, c.mistakes...)
		key := s.key()
		number, known := numbers[key]
		if !known {
			number = len(shapes)
			numbers[key] = number
			shapes = append(shapes, s)
		}
		r.shape = number
		list = append(list, r)
	}
	if len(mistakes) > 0 {
		return compiled(nil, nil), mistakes
	}
	return compiled(list, shapes), nil
}

// compiled returns the policy of valid rules.
func compiled(rules []rule, shapes []shape) *Policy {
	p := &Policy{
		rules: rules, shapes: shapes,
		exactName: map[string][]int{}, belowName: map[string][]int{}, exactID: map[string][]int{},
	}
	patterns := map[pattern.ID]int{}
	for i := range rules {
		r := &rules[i]
		if r.names == nil {
			p.anyName.add(i)
		}
		if r.unconditional() {
			p.unconditional.add(i)
		}
		for _, name := range r.names {
			if zone, below := strings.CutPrefix(name.String(), "*."); below {
				p.belowName[zone] = append(p.belowName[zone], i)
			} else {
				p.exactName[zone] = append(p.exactName[zone], i)
			}
		}
		for _, to := range r.to {
			switch text := to.String(); {
			case text == all:
				p.everyone.add(i)
			case !strings.Contains(text, all):
				p.exactID[text] = append(p.exactID[text], i)
			default:
				at, known := patterns[to]
				if !known {
					at = len(p.patternID)
					patterns[to] = at
					p.patternID = append(p.patternID, consumers{pattern: to})
				}
				p.patternID[at].rules = append(p.patternID[at].rules, i)
			}
		}
	}
	return p
}

// Class is what all consumers have in common for whom the same rules are made: what
// they are told. Classes of one policy are equal (==) when they have the same rules.
type Class struct{ rules string } // as ruleSet.text returns them

// Class returns the class of a consumer with the identities.
func (p *Policy) Class(ids []mtls.ID) Class {
	if p == nil {
		return Class{}
	}
	rules := p.everyone
	for _, id := range ids {
		rules.add(p.exactID[id.String()]...)
		for i := range p.patternID {
			if c := &p.patternID[i]; c.pattern.Matches(id) {
				rules.add(c.rules...)
			}
		}
	}
	rules.cut(&p.unconditional)
	return Class{rules.text()}
}

// Rules returns the numbers of the rules that can decide for the consumers, from 1,
// ascending. Those behind one that every service meets are not among them.
func (c Class) Rules() []int {
	var rules []int
	for i := range ones(c.rules) {
		rules = append(rules, i+1)
	}
	return rules
}

// candidates returns the rules whose patterns match the name, which has no final dot.
func (p *Policy) candidates(name string) ruleSet {
	rules := p.anyName
	rules.add(p.exactName[name]...)
	for above, more := name, len(p.belowName) > 0; more; {
		if _, above, more = strings.Cut(above, "."); more {
			rules.add(p.belowName[above]...)
		}
	}
	return rules
}
