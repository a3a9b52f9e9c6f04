package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// serviceShape is how a rule changes a service. The zero value changes nothing.
type serviceShape struct {
	as        []zoneAlias // sorted by from, each of which is there once
	endpoints []string    // labels; none: all endpoints

	description, tags, sans bool // are left out
	labels, metadata        []pattern.Key
}

type zoneAlias struct{ from, to federation.FQDN }

// The reasons for which a service is hidden although a rule gives it.
var (
	errNoEndpoint = errors.New("none of its endpoints has a label that the rule asks for")
	errNoInstance = errors.New("every instance is reached only through endpoints that the rule leaves out")
)

// addStrip adds a field that the shape leaves out.
func (sh *serviceShape) addStrip(field string) error {
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
	var patterns *[]pattern.Key
	switch list {
	case "labels":
		patterns = &sh.labels
	case "metadata":
		patterns = &sh.metadata
	default:
		return fmt.Errorf("%s %w", safetext.Quote(field), errStrip)
	}
	if key == "" {
		return fmt.Errorf("%s names no key; %s.* is all of them", safetext.Quote(field), list)
	}
	p, err := pattern.ParseKey(key)
	*patterns = append(*patterns, p)
	return err
}

// uniqueKey returns a text that only equal shapes have.
func (sh *serviceShape) uniqueKey() string { return fmt.Sprintf("%#v", *sh) }

// applyTo returns the service in the shape, or why it is hidden. The result is s itself where the
// shape changes nothing. It is valid, as s is, and shares memory with s.
func (sh *serviceShape) applyTo(s *federation.Service) (*federation.Service, error) {
	told := *s
	if err := sh.pickEndpoints(&told); err != nil {
		return nil, err
	}
	if sh.stripFields(&told); told.Equal(s) {
		return s, nil
	}
	return &told, nil
}

// pickEndpoints replaces the fqdn, and removes the endpoints without a label of the shape, with
// those instances that are reached through them alone.
func (sh *serviceShape) pickEndpoints(s *federation.Service) (err error) {
	if s.FQDN, err = sh.renameFQDN(s.FQDN); err != nil || len(sh.endpoints) == 0 {
		return err
	}
	asked, keptLabels, removedLabels := stringSet{}, stringSet{}, stringSet{}
	asked.addAll(sh.endpoints)
	kept := make([]federation.Endpoint, 0, len(s.Endpoints))
	for _, e := range s.Endpoints {
		if slices.ContainsFunc(e.Labels, asked.has) {
			kept = append(kept, e)
			keptLabels.addAll(e.Labels)
		} else {
			removedLabels.addAll(e.Labels)
		}
	}
	if len(kept) == 0 {
		return errNoEndpoint
	}
	// Hamlet, 'Complex Type Instance': a selector that matches nothing selects all
	// endpoints. An instance whose endpoints are all gone would come to be reached through
	// the others; one whose selector has matched nothing before is reached through all that
	// remain.
	instances := slices.DeleteFunc(slices.Clone(s.Instances), func(in federation.Instance) bool {
		return !slices.ContainsFunc(in.EndpointSelector, keptLabels.has) && slices.ContainsFunc(in.EndpointSelector, removedLabels.has)
	})
	if len(instances) == 0 {
		return errNoInstance
	}
	s.Endpoints, s.Instances = kept, instances
	return nil
}

// renameFQDN returns the fqdn that replaces the given one.
func (sh *serviceShape) renameFQDN(fqdn federation.FQDN) (federation.FQDN, error) {
	var longest *zoneAlias
	for i := range sh.as {
		if a := &sh.as[i]; fqdn.Within(a.from) && (longest == nil || a.from.Within(longest.from)) {
			longest = a
		}
	}
	if longest == nil || longest.from == longest.to {
		return fqdn, nil
	}
	name, err := fqdn.Rename(longest.from, longest.to)
	if err == nil {
		name, err = federation.ParseFQDN(name.String()) // not every name of DNS is one of a service
	}
	if err != nil {
		return name, fmt.Errorf("as %s for %s: %w", longest.to, longest.from, err)
	}
	return name, nil
}

// stripFields removes the fields that the shape leaves out. It never removes labels of endpoints,
// because an instance is reached through the endpoints whose labels its selector has.
func (sh *serviceShape) stripFields(s *federation.Service) {
	if sh.tags {
		s.Tags = nil
	}
	if sh.sans {
		s.SANs = nil
	}
	s.Labels = removeKeys(s.Labels, sh.labels)
	if sh.description {
		s.Description, s.Endpoints = "", slices.Clone(s.Endpoints)
		for i := range s.Endpoints {
			s.Endpoints[i].Description = ""
		}
	}
	if !sh.description && len(sh.metadata) == 0 {
		return
	}
	s.Instances = slices.Clone(s.Instances)
	for i := range s.Instances {
		in := &s.Instances[i]
		in.Metadata = removeKeys(in.Metadata, sh.metadata)
		if sh.description {
			in.Description = ""
		}
	}
}

// removeKeys returns the pairs whose keys no pattern matches: the list itself where these are all
// pairs, and nil where they are none.
func removeKeys(list []federation.Pair, keys []pattern.Key) []federation.Pair {
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

// stringSet is a set of strings.
type stringSet map[string]bool

func (s stringSet) addAll(list []string) {
	for _, entry := range list {
		s[entry] = true
	}
}

func (s stringSet) has(entry string) bool { return s[entry] }
