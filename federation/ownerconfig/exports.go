package ownerconfig

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/problem"
)

// Export is a rule of the export policy of a catalog.
type Export struct {
	Rule policy.Rule
	Line int // on which it begins
}

// exports reads the export policy of a catalog.
func (r *reader) exports(v value, c *Catalog) {
	var at []value // where the rules stand
	var rules []policy.Rule
	r.list(v, func(v value) {
		if rule, ok := r.rule(v); ok {
			at, rules = append(at, v), append(rules, rule)
			c.Exports = append(c.Exports, Export{rule, v.line})
		}
	})
	compiled, mistakes := policy.New(rules)
	c.Policy = compiled
	for _, m := range mistakes {
		if m.Rule == 0 {
			r.wrongf(v, "%v", m.Err)
		} else {
			r.misruled(at[m.Rule-1], m)
		}
	}
	r.places[v.field] = v
}

func (r *reader) rule(v value) (rule policy.Rule, ok bool) {
	const all = "at least one is required; leave it out for all"
	r.places[v.field] = v
	lines, ok := r.mapping(v, map[string]func(v value){
		"match": func(v value) {
			r.mapping(v, map[string]func(v value){
				"fqdn": r.strings(&rule.FQDNs, all), "labels": r.pairs(&rule.Labels, true), "tags": r.strings(&rule.Tags, all),
			})
		},
		"to": r.strings(&rule.To, "at least one is required"),
		"as": r.pairs(&rule.As, false),
		"endpoints": func(v value) {
			lines, ok := r.mapping(v, map[string]func(v value){"labels": r.strings(&rule.Endpoints, all)})
			if ok {
				r.require(v, lines, "labels")
			}
		},
		"strip": r.strings(&rule.Strip, "at least one is required; leave it out for none"),
	})
	if ok {
		r.require(v, lines, "to")
	}
	return rule, ok
}

// strings returns a function that stores a list of different strings, one at least, and
// where each of them stands. Otherwise it says what is needed.
func (r *reader) strings(target *[]string, needed string) func(v value) {
	return func(list value) {
		r.places[list.field] = list
		first := r.unique()
		r.list(list, func(v value) {
			if text := r.text(v); text != "" && first(v, text) {
				r.places[fmt.Sprintf("%s[%d]", list.field, len(*target))] = v
				*target = append(*target, text)
			}
		})
		if len(list.node.Content) == 0 && list.node.ShortTag() == "!!seq" {
			r.wrongf(list, "%s", needed)
		}
	}
}

// pairs returns a function that stores a mapping of strings to strings, which is not
// empty, and where each of them stands. Empty says whether values may be empty.
func (r *reader) pairs(target *map[string]string, empty bool) func(v value) {
	return func(v value) {
		r.places[v.field] = v
		*target = make(map[string]string)
		_, ok := r.entries(v, func(key string, v value) {
			text, none := "", empty && v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!str" && v.node.Value == ""
			if !none {
				text = r.text(v)
			}
			if text != "" || none {
				r.places[v.field] = v
				(*target)[key] = text
			}
		})
		if ok && len(v.node.Content) == 0 {
			r.wrongf(v, "is empty; leave it out")
		}
	}
}

// misruled notes a mistake in a rule where its author finds it, unless something is
// known to be wrong there already.
func (r *reader) misruled(rule value, m policy.Mistake) {
	at, field := rule, rule.field+"."+problem.Printable(m.Field)
	for path := field; len(path) > len(rule.field); path = path[:strings.LastIndexAny(path, ".[")] {
		if known, ok := r.places[path]; ok {
			at = known
			break
		}
	}
	if !r.found.Full() && slices.ContainsFunc(r.found.Kept, func(p problem.Problem) bool {
		return at == rule && p.Field == field || at != rule && within(p.Field, at.field)
	}) {
		return
	}
	r.wrongf(at, "%v", m.Err)
}

// within reports whether a field is another one, or is below it.
func within(field, other string) bool {
	rest, ok := strings.CutPrefix(field, other)
	return ok && (rest == "" || rest[0] == '[' || rest[0] == '.')
}
