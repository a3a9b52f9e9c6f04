package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/pattern"
)

// shape is what a rule makes of a service. The zero value leaves it as it is.
type shape struct {
	as        []alias  // sorted by from, each of which is there once
	endpoints []string // labels; none: all endpoints

	description, tags, sans bool // are left out
	labels, metadata        []pattern.Key
}

type alias struct{ from, to federation.FQDN }

// The reasons for which a service is hidden that a rule would tell.
var (
	errNoEndpoint = errors.New("none of its endpoints has a label that the rule asks for")
	errNoInstance = errors.New("every instance is reached only through endpoints that the rule leaves out")
)

// addStrip adds a field that is left out.
func (sh *shape) addStrip(field string) error {
	keys := &sh.labels
	switch field {
	case "description":
		sh.description = true
		return nil
	case "tags":
		sh.tags = true
		return nil
	case "sans":
		sh.sans = true
		return nil
	}
	list, key, _ := strings.Cut(field, ".")
	switch list {
	case "labels":
	case "metadata":
		keys = &sh.metadata
	default:
		return fmt.Errorf("%s %w", federation.Quote(field), errStrip)
	}
	p, err := pattern.ParseKey(key)
	*keys = append(*keys, p)
	return err
}

// key returns a text that only equal shapes have.
func (sh *shape) key() string { return fmt.Sprintf("%#v", *sh) }

// apply returns the service in the shape, which is s itself where that changes nothing,
// or an error that says why it is hidden. What it returns may be invalid in its fqdn
// alone. It shares memory with s.
func (sh *shape) apply(s *federation.Service) (*federation.Service, error) {
	shaped := *s
	changed, err := sh.rename(&shaped)
	if err != nil {
		return nil, err
	}
	removed, err := sh.choose(&shaped)
	if err != nil {
		return nil, err
	}
	if stripped := sh.strip(&shaped); !changed && !removed && !stripped {
		return s, nil
	}
	return &shaped, nil
}

// rename replaces the fqdn, and reports whether that changed it.
func (sh *shape) rename(s *federation.Service) (bool, error) {
	var longest *alias
	for i := range sh.as {
		if a := &sh.as[i]; s.FQDN.Within(a.from) && (longest == nil || a.from.Within(longest.from)) {
			longest = a
		}
	}
	if longest == nil {
		return false, nil
	}
	name, err := s.FQDN.Rename(longest.from, longest.to)
	if err != nil {
		return false, fmt.Errorf("as %s for %s: %w", longest.to, longest.from, err)
	}
	changed := name != s.FQDN
	s.FQDN = name
	return changed, nil
}

// choose removes the endpoints without a label of the shape, with the instances that
// are reached through them alone, and reports whether there are any.
func (sh *shape) choose(s *federation.Service) (bool, error) {
	if len(sh.endpoints) == 0 {
		return false, nil
	}
	asked := setOf(sh.endpoints)
	keeps := func(e federation.Endpoint) bool { return slices.ContainsFunc(e.Labels, asked.has) }
	kept := make([]federation.Endpoint, 0, len(s.Endpoints))
	keptLabels, removedLabels := set{}, set{}
	for _, e := range s.Endpoints {
		if keeps(e) {
			kept = append(kept, e)
			keptLabels.add(e.Labels)
		} else {
			removedLabels.add(e.Labels)
		}
	}
	switch len(kept) {
	case 0:
		return false, errNoEndpoint
	case len(s.Endpoints):
		return false, nil
	}
	// Hamlet, 'Complex Type Instance': a selector that matches nothing selects all
	// endpoints. An instance of endpoints that are gone would come to be reached through
	// others.
	instances := slices.DeleteFunc(slices.Clone(s.Instances), func(in federation.Instance) bool {
		return !slices.ContainsFunc(in.EndpointSelector, keptLabels.has) && slices.ContainsFunc(in.EndpointSelector, removedLabels.has)
	})
	if len(instances) == 0 {
		return false, errNoInstance
	}
	s.Endpoints, s.Instances = slices.Clip(kept), slices.Clip(instances)
	return true, nil
}

// strip removes what the shape leaves out, and reports whether there is any of it.
// Labels of endpoints stay: an instance is reached through those that its selector
// names.
func (sh *shape) strip(s *federation.Service) (changed bool) {
	if sh.tags && len(s.Tags) > 0 {
		s.Tags, changed = nil, true
	}
	if sh.sans && len(s.SANs) > 0 {
		s.SANs, changed = nil, true
	}
	if labels := without(s.Labels, sh.labels); len(labels) < len(s.Labels) {
		s.Labels, changed = labels, true
	}
	var instances []federation.Instance // a copy, as soon as one changes
	for i, in := range s.Instances {
		metadata := without(in.Metadata, sh.metadata)
		if len(metadata) == len(in.Metadata) && (!sh.description || in.Description == "") {
			continue
		}
		if instances == nil {
			instances = slices.Clone(s.Instances)
			s.Instances, changed = instances, true
		}
		instances[i].Metadata = metadata
		if sh.description {
			instances[i].Description = ""
		}
	}
	if sh.description {
		changed = stripDescription(s) || changed
	}
	return changed
}

// stripDescription removes the descriptions of the service and its endpoints, and
// reports whether there is one.
func stripDescription(s *federation.Service) bool {
	changed := s.Description != ""
	s.Description = ""
	if slices.ContainsFunc(s.Endpoints, func(e federation.Endpoint) bool { return e.Description != "" }) {
		s.Endpoints, changed = slices.Clone(s.Endpoints), true
		for i := range s.Endpoints {
			s.Endpoints[i].Description = ""
		}
	}
	return changed
}

// without returns the pairs whose keys no pattern matches, which is the list itself
// where that is all of them, and nil where it is none.
func without(list []federation.Pair, keys []pattern.Key) []federation.Pair {
	matches := func(pair federation.Pair) bool {
		return slices.ContainsFunc(keys, func(p pattern.Key) bool { return p.Matches(pair.Key) })
	}
	if !slices.ContainsFunc(list, matches) {
		return list
	}
	var left []federation.Pair
	for _, pair := range list {
		if !matches(pair) {
			left = append(left, pair)
		}
	}
	return left
}

// set is a set of strings.
type set map[string]struct{}

func setOf(list []string) set {
	s := make(set, len(list))
	s.add(list)
	return s
}

func (s set) add(list []string) {
	for _, entry := range list {
		s[entry] = struct{}{}
	}
}

func (s set) has(entry string) bool {
	_, ok := s[entry]
	return ok
}
