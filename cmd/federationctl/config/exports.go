package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/mcs"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Export is a rule of the export policy of a catalog.
type Export struct {
	ruleSection

	Rule policy.Rule // what the file says
	Line int         // on which it begins
}

// ruleSection is a rule as it stands in a file.
type ruleSection struct {
	Match struct {
		FQDN   []string          `yaml:"fqdn" least:"one is required; leave it out for all" doc:"Names and patterns, of which one must fit: *.pay.example is every name below it."`
		Labels map[string]string `yaml:"labels" empty:"true" least:"one is required; leave it out for all" doc:"Labels of the service, all of which must fit; * is any value."`
		Tags   []string          `yaml:"tags" least:"one is required; leave it out for all" doc:"Tags, of which the service must have one."`
	} `yaml:"match" doc:"Which services the rule is for, by default all. Every condition must be met."`
	To        []string          `yaml:"to" least:"one is required" doc:"The consumers that the rule is for: identities, or patterns such as spiffe://partner.example/*."`
	As        map[string]string `yaml:"as" least:"one is required; leave it out for none" doc:"Names to move with all below them, FROM: TO. The longest FROM counts."`
	Endpoints struct {
		Labels []string `yaml:"labels" least:"one is required; leave it out for all" doc:"Labels, of which a told endpoint must have one. Instances and services without such an endpoint are hidden."`
	} `yaml:"endpoints" needs:"labels" doc:"Which endpoints are told, by default all."`
	Strip []string `yaml:"strip" least:"one is required; leave it out for none" doc:"What is left out: description, tags, sans, labels.KEY or metadata.KEY, where * stands for any characters."`
}

// readExports compiles the export policy of a catalog, which is at that path.
func (r *configReader) readExports(path string, c *Catalog) {
	var rules []policy.Rule
	var at []string
	for i, e := range c.Exports {
		if e == nil {
			continue
		}
		place := fmt.Sprintf("%s[%d]", path, i)
		e.Line, e.Rule = r.LineOf(place), policy.Rule{
			FQDNs: e.Match.FQDN, Labels: e.Match.Labels, Tags: e.Match.Tags, To: e.To, As: e.As, Endpoints: e.Endpoints.Labels, Strip: e.Strip,
		}
		rules, at = append(rules, e.Rule), append(at, place)
	}
	compiled, mistakes := policy.New(rules)
	c.Policy = compiled
	for _, m := range mistakes {
		if m.Rule == 0 {
			r.AddProblemf(path, "%v", m.Err)
		} else {
			r.addRuleMistake(at[m.Rule-1], m)
		}
	}
}

// OriginalNames returns a name, and those that a rule of exports may turn into it: all in lower case, and
// without a final dot.
func OriginalNames(name string, exports []*Export) []string {
	suffix := func(zone string) string {
		return strings.TrimSuffix("."+strings.ToLower(strings.TrimSuffix(zone, ".")), ".")
	}
	names := []string{name}
	for _, e := range exports {
		for from, to := range e.Rule.As {
			if below, renamed := strings.CutSuffix("."+name, suffix(to)); renamed {
				names = append(names, strings.TrimPrefix(below+suffix(from), "."))
			}
		}
	}
	return names
}

// checkLabels says which rules ask for labels or tags that services cannot have: such a rule
// tells nothing, or leaves to those behind it what it is to hide. It needs a
// configuration without mistakes.
func (r *configReader) checkLabels(c Config) {
	for i, catalog := range c.Catalogs {
		for j, e := range catalog.Exports {
			field, reason := catalog.unmetCondition(e.Rule)
			r.addProblemIf(field != "", fmt.Sprintf("catalogs[%d].exports[%d].match.%s", i, j, field), "%s", reason)
		}
	}
}

// unmetCondition returns which condition of a rule services cannot meet, as a field of match, and
// why; or "". Of a cluster the configuration says what they have, so each must have it. Of
// other sources one has to.
func (c Catalog) unmetCondition(rule policy.Rule) (field, reason string) {
	met := false
	for _, s := range c.Sources {
		if !s.canMatchNames(rule.FQDNs) {
			continue
		}
		lacking, lack := s.unmetCondition(rule)
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

// canMatchNames reports whether services of the source can have names that one of the patterns
// matches.
func (s *Source) canMatchNames(patterns []string) bool {
	var zone federation.FQDN // zero: any
	switch {
	case s.Kubernetes != nil:
		zone = s.Kubernetes.Zone
	case s.Consul != nil:
		zone = s.Consul.Zone
	case s.NSM != nil:
		zone = s.NSM.Zone
	}
	every, err := pattern.ParseName("*." + zone.String())
	return err != nil || len(patterns) == 0 || slices.ContainsFunc(patterns, func(text string) bool {
		p, err := pattern.ParseName(text)
		return err == nil && (p.Covers(every) || every.Covers(p))
	})
}

// unmetCondition returns which condition of a rule no service of the source meets, as a field of
// match, and why; or "".
func (s *Source) unmetCondition(rule policy.Rule) (field, why string) {
	if len(rule.Tags) > 0 && s.File == nil && s.Consul == nil && s.Relay == nil {
		return "tags", "they have no tags; limit the rule to other names with fqdn, or ask for a label"
	}
	for _, key := range slices.Sorted(maps.Keys(rule.Labels)) {
		switch k := s.Kubernetes; {
		case s.Registration != nil:
			return "labels." + safetext.Printable(key), "they have no labels; limit the rule to other names with fqdn"
		case s.Consul != nil && !strings.HasPrefix(key, "consul.meta/"):
			return "labels." + safetext.Printable(key), "their labels begin with consul.meta/; name it so, or limit the rule to other names with fqdn"
		case k != nil && key != mcs.Label && !slices.Contains(k.Publish.Labels, key) && !slices.Contains(k.Publish.Annotations, key):
			return "labels." + safetext.Printable(key), "they have no such label; name it in 'publish' of the source, or limit the rule to other names with fqdn"
		}
	}
	return "", ""
}

// addRuleMistake notes a mistake in a rule, unless something is known to be wrong there, or with
// the nearest above it that the file has.
func (r *configReader) addRuleMistake(rule string, m policy.RuleMistake) {
	path := rule + "." + safetext.Printable(m.Field)
	nearest := path
	for !r.HasValue(nearest) && nearest != rule {
		nearest = nearest[:strings.LastIndexAny(nearest, ".[")]
	}
	if nearest == rule {
		nearest = path
	}
	if !r.HasProblemIn(nearest) {
		r.AddProblemf(nearest, "%v", m.Err)
	}
}
