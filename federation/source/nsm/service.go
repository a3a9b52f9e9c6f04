package nsm

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// member is an endpoint in a service, with the ID of its instance.
type member struct {
	*content
	*offer

	id string
}

// service returns the service with these members, which is a function of nothing else.
func (r *rules) service(name string, fqdn federation.FQDN, members []member) *federation.Service {
	s := &federation.Service{
		Name: r.prefix + name, FQDN: fqdn, Labels: common(members),
		Endpoints: make([]federation.Endpoint, 0, len(members)), Instances: make([]federation.Instance, 0, len(members)),
	}
	for _, m := range members {
		labels := []string{m.id}
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: m.address, Port: m.port, Labels: labels})
		s.Instances = append(s.Instances, federation.Instance{
			ID: m.id, Protocol: m.protocol, Metadata: m.metadata, EndpointSelector: labels,
		})
	}
	return s
}

// common returns the labels that all members have.
func common(members []member) []federation.Pair {
	var pairs []federation.Pair
	for _, pair := range members[0].metadata {
		if !slices.ContainsFunc(members[1:], func(m member) bool { return !has(m.metadata, pair) }) {
			pairs = append(pairs, pair)
		}
	}
	return pairs
}

func has(pairs []federation.Pair, pair federation.Pair) bool {
	i, found := slices.BinarySearchFunc(pairs, pair.Key, func(p federation.Pair, key string) int { return strings.Compare(p.Key, key) })
	return found && pairs[i] == pair
}

// chosen returns the members that are published of the endpoints of a network service,
// in the order of their names, and how many there is no room for.
func chosen(service string, endpoints map[string]*endpoint) (members []member, over int) {
	all := make([]member, 0, len(endpoints))
	for _, e := range endpoints {
		i, _ := slices.BinarySearchFunc(e.offers, service, func(o offer, s string) int { return strings.Compare(o.service, s) })
		all = append(all, member{content: &e.content, offer: &e.offers[i]})
	}
	slices.SortFunc(all, func(a, b member) int { return strings.Compare(a.name, b.name) })
	if len(all) > federation.MaxEndpoints {
		over = len(all) - federation.MaxEndpoints
		all = all[:federation.MaxEndpoints]
	}
	identify(all)
	return all, over
}

// identify gives the members their IDs. Who is called as names in DNS are has it as the
// ID; others make room.
func identify(members []member) {
	taken := make(map[string]bool, len(members))
	for _, exact := range []bool{true, false} {
		for i := range members {
			m := &members[i]
			if m.id == "" && m.label != "" && (m.label == m.name) == exact && !taken[m.label] {
				m.id = m.label
				taken[m.id] = true
			}
		}
	}
	for i := range members {
		m := &members[i]
		for _, id := range []string{derive(m.name, shortHash), derive(m.name, longHash), m.name} {
			if m.id == "" && !taken[id] {
				m.id = id
				taken[id] = true
			}
		}
	}
}

// How much of a derived ID can be read, and how many digits of the hash it has: the long
// form is as long as a label can be. Whose both forms are taken, on purpose, has an ID
// that is no name in DNS, but nobody else's.
const (
	readableBytes = 40
	shortHash     = 8
	longHash      = 63 - readableBytes - 1
)

// derive returns an ID that is a label, with some digits of the hash of the name.
func derive(name string, digits int) string {
	readable := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
			return r
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	readable = strings.Trim(readable[:min(len(readable), readableBytes)], "-")
	return cmp.Or(readable, "nse") + "-" + digest(name)[:digits]
}

// sortedKeys returns the keys of m, sorted.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
