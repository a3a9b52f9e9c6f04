package policytest

import (
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
)

// ToldService returns what a consumer with the identities is told of a valid service under
// valid rules: nil if it is not told. Names in the rules are in lower case and in
// A-labels. The service is not changed.
func ToldService(rules []policy.Rule, ids []federation.ID, s *federation.Service) *federation.Service {
	_, told := Decide(rules, ids, s)
	return told
}

// Decide is ToldService, with the number of the rule that decides, from 1; 0 is none.
func Decide(rules []policy.Rule, ids []federation.ID, s *federation.Service) (int, *federation.Service) {
	for i, rule := range rules {
		if isFor(rule, ids) && meetsConditions(rule, s) {
			return i + 1, shapeService(rule, s)
		}
	}
	return 0, nil
}

func isFor(rule policy.Rule, ids []federation.ID) bool {
	for _, pattern := range rule.To {
		if pattern == "*" {
			return true
		}
		for _, id := range ids {
			if MatchesID(pattern, id.String()) {
				return true
			}
		}
	}
	return false
}

func meetsConditions(rule policy.Rule, s *federation.Service) bool {
	name := len(rule.FQDNs) == 0
	for _, pattern := range rule.FQDNs {
		name = name || MatchesName(pattern, s.FQDN.String())
	}
	tag := len(rule.Tags) == 0
	for _, t := range rule.Tags {
		tag = tag || slices.Contains(s.Tags, t)
	}
	for key, value := range rule.Labels {
		if !slices.ContainsFunc(s.Labels, func(l federation.Pair) bool {
			return l.Key == key && (value == "*" || l.Value == value)
		}) {
			return false
		}
	}
	return name && tag
}

// MatchesName reports whether a pattern matches a name, which may have a final dot.
func MatchesName(pattern, name string) bool {
	if pattern == "*" {
		return true
	}
	want, labels := labelsOf(pattern), labelsOf(name)
	if want[0] != "*" {
		return slices.Equal(want, labels)
	}
	want = want[1:]
	return len(labels) > len(want) && slices.Equal(want, labels[len(labels)-len(want):])
}

func labelsOf(name string) []string { return strings.Split(strings.TrimSuffix(name, "."), ".") }

// MatchesID reports whether a pattern matches an identity.
func MatchesID(pattern, id string) bool {
	if pattern == "*" {
		return true
	}
	if strings.HasPrefix(pattern, "spiffe://") != strings.HasPrefix(id, "spiffe://") {
		return false
	}
	if strings.HasPrefix(pattern, "spiffe://") {
		return matchesSegments(strings.Split(pattern, "/"), strings.Split(id, "/"))
	}
	want, labels := labelsOf(pattern), labelsOf(id)
	if want[0] == "*" {
		return slices.Equal(want[1:], labels[1:])
	}
	return slices.Equal(want, labels)
}

func matchesSegments(pattern, segments []string) bool {
	switch {
	case len(pattern) == 0 || len(segments) == 0:
		return len(pattern) == len(segments)
	case pattern[0] == "**":
		return true
	}
	return MatchesGlob(pattern[0], segments[0]) && matchesSegments(pattern[1:], segments[1:])
}

// MatchesGlob reports whether a pattern, in which '*' is any number of any characters, matches
// the whole text.
func MatchesGlob(pattern, text string) bool {
	switch {
	case pattern == "":
		return text == ""
	case pattern[0] == '*':
		return MatchesGlob(pattern[1:], text) || text != "" && MatchesGlob(pattern, text[1:])
	}
	return text != "" && text[0] == pattern[0] && MatchesGlob(pattern[1:], text[1:])
}

func shapeService(rule policy.Rule, s *federation.Service) *federation.Service {
	told := *s
	name, err := federation.ParseFQDN(aliasedName(rule, s.FQDN.String()))
	if err != nil {
		return nil
	}
	told.FQDN = name

	told.Endpoints = nil
	var kept []int // indices of s.Endpoints
	for i, e := range s.Endpoints {
		if len(rule.Endpoints) == 0 || slices.ContainsFunc(e.Labels, func(l string) bool { return slices.Contains(rule.Endpoints, l) }) {
			kept = append(kept, i)
			told.Endpoints = append(told.Endpoints, e)
		}
	}
	told.Instances = nil
	for _, in := range s.Instances {
		if slices.ContainsFunc(ReachedEndpoints(s.Endpoints, in), func(i int) bool { return slices.Contains(kept, i) }) {
			told.Instances = append(told.Instances, in)
		}
	}
	if len(told.Endpoints) == 0 || len(told.Instances) == 0 {
		return nil
	}
	for _, field := range rule.Strip {
		stripField(&told, field)
	}
	return &told
}

// aliasedName returns the name that the rule gives to a service with the name.
func aliasedName(rule policy.Rule, name string) string {
	labels := labelsOf(name)
	for n := range len(labels) + 1 { // the first n labels stay
		for from, to := range rule.As {
			if strings.TrimSuffix(from, ".") == strings.Join(labels[n:], ".") {
				return strings.TrimSuffix(strings.Join(append(slices.Clone(labels[:n]), to), "."), ".")
			}
		}
	}
	return name
}

// ReachedEndpoints returns the indices of the endpoints through which the instance is reached:
// those with a label that its selector names, or all if there is none.
func ReachedEndpoints(endpoints []federation.Endpoint, in federation.Instance) []int {
	var selected, every []int
	for i, e := range endpoints {
		every = append(every, i)
		if slices.ContainsFunc(e.Labels, func(l string) bool { return slices.Contains(in.EndpointSelector, l) }) {
			selected = append(selected, i)
		}
	}
	if selected == nil {
		return every
	}
	return selected
}

func stripField(s *federation.Service, field string) {
	s.Endpoints, s.Instances = slices.Clone(s.Endpoints), slices.Clone(s.Instances)
	switch field {
	case "description":
		s.Description = ""
		for i := range s.Endpoints {
			s.Endpoints[i].Description = ""
		}
		for i := range s.Instances {
			s.Instances[i].Description = ""
		}
	case "tags":
		s.Tags = nil
	case "sans":
		s.SANs = nil
	}
	if key, ok := strings.CutPrefix(field, "labels."); ok {
		s.Labels = removeKeys(s.Labels, key)
	}
	if key, ok := strings.CutPrefix(field, "metadata."); ok {
		for i := range s.Instances {
			s.Instances[i].Metadata = removeKeys(s.Instances[i].Metadata, key)
		}
	}
}

func removeKeys(pairs []federation.Pair, key string) (left []federation.Pair) {
	for _, pair := range pairs {
		if !MatchesGlob(key, pair.Key) {
			left = append(left, pair)
		}
	}
	return left
}
