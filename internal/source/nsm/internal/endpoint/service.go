package endpoint

import (
	"cmp"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// serviceMember is an endpoint as a member of a service, with the ID of its instance.
type serviceMember struct {
	*Endpoint
	*ServiceOffer

	id string
}

// buildService returns the service with these members. The result depends on the arguments and on
// the rules only.
func (r *Rules) buildService(name string, fqdn federation.FQDN, members []serviceMember) *federation.Service {
	s := &federation.Service{
		Name: r.Prefix + name, FQDN: fqdn, Labels: commonLabels(members),
		Endpoints: make([]federation.Endpoint, 0, len(members)), Instances: make([]federation.Instance, 0, len(members)),
	}
	for _, m := range members {
		if m.san != "" {
			s.SANs = append(s.SANs, m.san)
		}
		labels := []string{m.id}
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: m.address, Port: m.port, Labels: labels})
		s.Instances = append(s.Instances, federation.Instance{
			ID: m.id, Protocol: m.protocol, Metadata: m.metadata, EndpointSelector: labels,
		})
	}
	slices.Sort(s.SANs)
	s.SANs = slices.Compact(s.SANs)
	s.SANs = s.SANs[:min(len(s.SANs), limits.SANs)]
	return s
}

// payloadKey is the key of the payload in the metadata of an instance.
const payloadKey = "payload"

// addPayload adds the payload to the metadata of every instance, and replaces a label with the same
// key. It leaves out an instance that has as much metadata as is allowed.
func addPayload(s *federation.Service, payload string) {
	for i := range s.Instances {
		in := &s.Instances[i]
		at, found := slices.BinarySearchFunc(in.Metadata, payloadKey, func(p federation.Pair, key string) int { return strings.Compare(p.Key, key) })
		switch pair := (federation.Pair{Key: payloadKey, Value: payload}); {
		case found:
			in.Metadata = slices.Clone(in.Metadata) // the endpoint shares it
			in.Metadata[at] = pair
		case len(in.Metadata) < limits.Metadata:
			in.Metadata = slices.Insert(slices.Clone(in.Metadata), at, pair)
		}
	}
}

// commonLabels returns the labels that all members have.
func commonLabels(members []serviceMember) []federation.Pair {
	var pairs []federation.Pair
	for _, pair := range members[0].metadata {
		if !slices.ContainsFunc(members[1:], func(m serviceMember) bool { return !hasPair(m.metadata, pair) }) {
			pairs = append(pairs, pair)
		}
	}
	return pairs
}

// hasPair reports whether the sorted pairs have the pair.
func hasPair(pairs []federation.Pair, pair federation.Pair) bool {
	i, found := slices.BinarySearchFunc(pairs, pair.Key, func(p federation.Pair, key string) int { return strings.Compare(p.Key, key) })
	return found && pairs[i] == pair
}

// Encode returns the service of a network service with these endpoints, and how many endpoints
// there was no room for. The order of the endpoints does not matter. Encode returns nil when no
// endpoint has an offer of the network service. The payload is empty for none.
func (r *Rules) Encode(service, payload string, endpoints []*Endpoint) (encoded *wire.EncodedService, over int) {
	members := make([]serviceMember, 0, len(endpoints))
	for _, e := range endpoints {
		i, found := slices.BinarySearchFunc(e.Offers, service, func(o ServiceOffer, s string) int { return strings.Compare(o.Service, s) })
		if found {
			members = append(members, serviceMember{Endpoint: e, ServiceOffer: &e.Offers[i]})
		}
	}
	if len(members) == 0 {
		return nil, 0
	}
	slices.SortFunc(members, func(a, b serviceMember) int { return strings.Compare(a.name, b.name) })
	if len(members) > limits.Endpoints {
		over = len(members) - limits.Endpoints
		members = members[:limits.Endpoints]
	}
	assignIDs(members)
	s := r.buildService(service, members[0].fqdn, members)
	if payload != "" {
		addPayload(s, payload)
	}
	encoded, err := wire.NewEncoded(s)
	if err != nil { // cannot happen: each member is valid alone, and they have different IDs
		return nil, len(endpoints)
	}
	return encoded, over
}

// assignIDs gives each member its ID. A member whose name is a label has the name as its ID. Any
// other has the name in lower case where that is a label that is free, and else a derived ID.
func assignIDs(members []serviceMember) {
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
		for _, id := range []string{deriveID(m.name, shortHash), deriveID(m.name, longHash), m.name} {
			if m.id == "" && !taken[id] {
				m.id = id
				taken[id] = true
			}
		}
	}
}

// How much of the name a derived ID shows, and how many digits of the hash it has. The long form
// is as long as a label can be. A member whose two forms are both taken, which somebody must have
// meant, has its name as the ID, which is no name in DNS, but unique.
const (
	readableBytes = 40
	shortHash     = 8
	longHash      = 63 - readableBytes - 1
)

// deriveID returns an ID that is a label: the readable part of the name, and so many digits of the
// hash of the name.
func deriveID(name string, digits int) string {
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
	return cmp.Or(readable, "nse") + "-" + hexDigest(name)[:digits]
}
