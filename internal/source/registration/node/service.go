package node

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
)

// ServiceName returns the name of the service that has the nodes of an fqdn.
func ServiceName(prefix string, fqdn federation.FQDN) string {
	return prefix + "/" + strings.TrimSuffix(fqdn.String(), ".")
}

// RenderService returns the service of the nodes, whose name is the prefix, a slash and its fqdn.
// Every node is an endpoint. Nodes that name the same instance share it; the protocol and the
// metadata of that instance are those of the node with the first URI. Every other node is an
// instance of its own, with an ID made of its URI.
//
// There must be at least one node, and all must be valid and of one service. RenderService sorts
// them. If there are more nodes than a service can have endpoints, those with the first URIs count.
//
// The SANs are the SPIFFE IDs with which the nodes have been registered, because their programs
// show these to clients as well, and consumers of v1alpha1 are sent no service without a SAN. A DNS
// name is no SAN of a program, because a whole host may have it.
//
// The service depends on the set of Key, Instance, Metadata, Description and Provider, and on
// nothing else: owners with the same nodes render the same service.
func RenderService(prefix string, nodes []*Node) *federation.Service {
	slices.SortFunc(nodes, func(a, b *Node) int { return a.URI.Compare(b.URI) })
	nodes = nodes[:min(len(nodes), limits.Endpoints)]
	fqdn := nodes[0].Service
	s := &federation.Service{
		Name:      ServiceName(prefix, fqdn),
		FQDN:      fqdn,
		SANs:      spiffeIDs(nodes),
		Endpoints: make([]federation.Endpoint, 0, len(nodes)),
		Instances: make([]federation.Instance, 0, len(nodes)),
	}
	taken := make(map[string]struct{}, len(nodes)) // IDs
	for _, n := range nodes {
		if n.Instance != "" {
			taken[n.Instance] = struct{}{}
		}
	}
	known := make(map[string]struct{}) // the instances that several nodes may share
	for _, n := range nodes {
		id := n.Instance
		if _, ok := known[id]; !ok {
			if id == "" {
				id = ownID(n, taken)
			} else {
				known[id] = struct{}{}
			}
			s.Instances = append(s.Instances, federation.Instance{
				ID: id, Protocol: n.URI.Protocol, Metadata: n.Metadata, EndpointSelector: []string{id},
			})
		}
		s.Endpoints = append(s.Endpoints, federation.Endpoint{
			Address: n.URI.Address, Port: n.URI.Port, Labels: []string{id}, Description: n.Description,
		})
	}
	return s
}

// spiffeIDs returns the SPIFFE IDs that have registered the nodes, in order, as many as a service
// can have.
func spiffeIDs(nodes []*Node) []string {
	var ids []string
	last := federation.ID{}
	for _, n := range nodes {
		if n.Provider != last && n.Provider.IsSPIFFE() {
			ids = append(ids, n.Provider.String())
		}
		last = n.Provider
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	return ids[:min(len(ids), limits.SANs)]
}

// ownID returns an ID for a node that has none, and adds it to taken: host and port where these are
// a DNS label that is not taken, and otherwise a hash of the URI. A hash need not be a DNS label,
// because none fits below the longest names of services.
func ownID(n *Node, taken map[string]struct{}) string {
	id := readableID(n.URI)
	_, used := taken[id]
	used = used || checkInstance(n.Service, id) != nil
	for try := 0; used; try++ {
		sum := sha256.Sum256([]byte(n.URI.String() + strings.Repeat("#", try))) // no URI has one
		id = "node-" + hex.EncodeToString(sum[:8])
		_, used = taken[id]
	}
	taken[id] = struct{}{}
	return id
}

// readableID returns host and port with hyphens between their parts. The result need not be a DNS
// label.
func readableID(u URI) string {
	host := u.hostText()
	if ip, ok := u.Address.IP(); ok && ip.Is6() {
		host = addressGroups(ip.As16())
	}
	return strings.ReplaceAll(host, ".", "-") + "-" + strconv.Itoa(int(u.Port))
}

// addressGroups returns the eight groups of an IPv6 address with hyphens. With the usual short form
// the ID could begin or end with a hyphen.
func addressGroups(octets [16]byte) string {
	b := make([]byte, 0, 39)
	for group := range slices.Chunk(octets[:], 2) {
		if len(b) > 0 {
			b = append(b, '-')
		}
		b = strconv.AppendUint(b, uint64(binary.BigEndian.Uint16(group)), 16)
	}
	return string(b)
}
