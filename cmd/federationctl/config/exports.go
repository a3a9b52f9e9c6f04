package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
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

// labelled says which rules ask for labels or tags that services cannot have: such a rule
// tells nothing, or leaves to those behind it what it is to hide. It needs a
// configuration without mistakes.
func (r *reader) labelled(c Config) {
	for i, catalog := range c.Catalogs {
		for j, e := range catalog.Exports {
			if field, reason := catalog.unmet(e.Rule); field != "" {
				r.wrongf(r.places[fmt.Sprintf("catalogs[%d].exports[%d].match.%s", i, j, field)], "%s", reason)
			}
		}
	}
}

// unmet returns which condition of a rule services cannot meet, as a field of match, and
// why; or "". Of a cluster the configuration says what they have, so each must have it. Of
// other sources one has to.
func (c Catalog) unmet(rule policy.Rule) (field, reason string) {
	met := false
	for _, s := range c.Sources {
		if !s.reaches(rule.FQDNs) {
			continue
		}
		lacking, lack := s.lacks(rule)
		switch {
		case lacking == "":
			met = true
		case s.Kubernetes != nil:
			return lacking, "is met by no service of " + s.Name + ": " + lack
		case field == "":
			field, reason = lacking, "is met by no service of "+s.Name+": "+lack
		}
	}
	if met {
		return "", ""
	}
	return field, reason
}

// reaches reports whether services of the source can have names that one of the patterns
// matches.
func (s Source) reaches(patterns []string) bool {
	zone := ""
	switch {
	case s.Kubernetes != nil:
		zone = s.Kubernetes.Zone
	case s.NSM != nil:
		zone = s.NSM.Zone
	}
	every, err := pattern.ParseName("*." + zone)
	return zone == "" || err != nil || len(patterns) == 0 || slices.ContainsFunc(patterns, func(text string) bool {
		p, err := pattern.ParseName(text)
		return err == nil && (p.Covers(every) || every.Covers(p))
	})
}

// lacks returns which condition of a rule no service of the source meets, as a field of
// match, and why; or "".
func (s Source) lacks(rule policy.Rule) (field, why string) {
	if len(rule.Tags) > 0 && s.File == nil && s.Relay == nil {
		return "tags", "they have no tags; limit the rule to other names with fqdn, or ask for a label"
	}
	for _, key := range slices.Sorted(maps.Keys(rule.Labels)) {
		switch k := s.Kubernetes; {
		case s.Registration != nil:
			return "labels." + problem.Printable(key), "they have no labels; limit the rule to other names with fqdn"
		case k != nil && !slices.Contains(k.Labels, key) && !slices.Contains(k.Annotations, key):
			return "labels." + problem.Printable(key), "they have no such label; name it in 'publish' of the source, or limit the rule to other names with fqdn"
		}
	}
	return "", ""
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
