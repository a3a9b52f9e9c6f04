package policy

import (
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
)

// Policy is a compiled list of rules, indexed by their patterns. It never changes, so goroutines
// share it. MaxRules bounds it. A nil policy gives everything to everyone. Only [New] makes another
// one.
type Policy struct {
	rules  []compiledRule
	shapes []serviceShape // each once; the first one changes nothing

	// The rules by their patterns.
	anyName   ruleSet
	exactName map[string][]int // by name, without the final dot
	belowName map[string][]int // by the name above, without the final dot
	everyone  ruleSet
	exactID   map[string][]int
	patternID map[string][]consumerRule // by group

	unconditional ruleSet
}

// consumerRule is a rule whose To has a pattern.
type consumerRule struct {
	pattern pattern.ID
	rule    int
}

// New returns the compiled rules, which are tried in their order. Without any rule nobody gets
// anything. Where there are mistakes, New returns all of them, in the order of the rules, and a
// policy that gives nothing to anybody.
func New(rules []Rule) (*Policy, []RuleMistake) {
	if len(rules) > MaxRules {
		return indexRules(nil, nil), []RuleMistake{{Err: errTooManyRules}}
	}
	shapes, numbers := []serviceShape{{}}, map[string]int{(&serviceShape{}).uniqueKey(): 0}
	var (
		list     []compiledRule
		mistakes []RuleMistake
	)
	for i := range rules {
		c := ruleCompiler{rule: i + 1}
		r, s := c.compileConditions(&rules[i]), c.compileShape(&rules[i])
		mistakes = append(mistakes, c.mistakes...)
		key := s.uniqueKey()
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
		return indexRules(nil, nil), mistakes
	}
	return indexRules(list, shapes), nil
}

// indexRules returns the policy of valid rules.
func indexRules(rules []compiledRule, shapes []serviceShape) *Policy {
	p := &Policy{
		rules: rules, shapes: shapes,
		exactName: map[string][]int{}, belowName: map[string][]int{},
		exactID: map[string][]int{}, patternID: map[string][]consumerRule{},
	}
	for i := range rules {
		r := &rules[i]
		if r.isUnconditional() {
			p.unconditional.addRules(i)
		}
		if r.names == nil {
			p.anyName.addRules(i)
		}
		for _, name := range r.names {
			if zone, below := name.Zone(); below {
				p.belowName[zone] = append(p.belowName[zone], i)
			} else {
				p.exactName[zone] = append(p.exactName[zone], i)
			}
		}
		for _, to := range r.to {
			p.addID(to, i)
		}
	}
	return p
}

// addID adds a rule whose To has a pattern.
func (p *Policy) addID(to pattern.ID, rule int) {
	switch text := to.String(); {
	case to.IsEveryone():
		p.everyone.addRules(rule)
	case to.IsPlain():
		p.exactID[text] = append(p.exactID[text], rule)
	default:
		group := pattern.GroupOf(text)
		p.patternID[group] = append(p.patternID[group], consumerRule{to, rule})
	}
}

// ConsumerClass is the set of rules that apply to some consumers, which decides what they get.
// Classes of one policy are equal (==) when they have the same rules.
type ConsumerClass struct{ rules ruleSet }

// ClassOf returns the class of a consumer with the identities.
func (p *Policy) ClassOf(ids []federation.ID) ConsumerClass {
	if p == nil {
		return ConsumerClass{}
	}
	rules := p.everyone
	for _, id := range ids {
		text := id.String()
		rules.addRules(p.exactID[text]...)
		for _, some := range p.patternID[pattern.GroupOf(text)] {
			if some.pattern.Matches(id) {
				rules.addRules(some.rule)
			}
		}
	}
	rules.cutAfter(&p.unconditional)
	return ConsumerClass{rules}
}

// RuleNumbers returns the numbers of the rules that can decide for the consumers, from 1,
// ascending. Rules behind one that every service meets are not among them.
func (c ConsumerClass) RuleNumbers() []int {
	var rules []int
	for i := range c.rules.inOrder() {
		rules = append(rules, i+1)
	}
	return rules
}

// rulesForName returns the rules with a pattern that matches the name, which has no final dot.
func (p *Policy) rulesForName(name string) ruleSet {
	rules := p.anyName
	rules.addRules(p.exactName[name]...)
	for more := len(p.belowName) > 0; more; { // the names above
		if _, name, more = strings.Cut(name, "."); more {
			rules.addRules(p.belowName[name]...)
		}
	}
	return rules
}
