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

// ServiceName returns the name of the service that the nodes of an fqdn become.
func ServiceName(prefix string, fqdn federation.FQDN) string {
	return prefix + "/" + strings.TrimSuffix(fqdn.String(), ".")
}

// RenderService returns the service that the nodes are, whose name is its fqdn behind the
// prefix and a slash. Every node is an endpoint. Nodes that name the same instance share it;
// its protocol and its metadata are those of the node whose URI is the first of
// them. Every other node is an instance of its own, with an ID made of its URI.
//
// The nodes must be valid, of one service, and at least one. They are put in order. Of more
// nodes than a service can have endpoints, those count whose URIs are first.
//
// The SANs are the SPIFFE IDs with which the nodes have been registered: it is what their
// programs show to clients as well, and consumers of v1alpha1 are told of no service that
// has none. A DNS name is no SAN of a program, as a whole host may have it.
//
// What comes out depends on the set of Key, Instance, Metadata, Description and Provider,
// and on nothing else: whoever knows the same nodes renders the same.
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

// spiffeIDs returns the SPIFFE IDs of those who have registered the nodes, as many as a service
// can have, in order.
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

// ownID returns an ID for a node that has none, and takes it: host and port where
// these are a DNS label that nobody has, and a hash of the URI otherwise. A hash need
// be no name in DNS: below the longest names of services none fits.
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

// readableID returns host and port with hyphens between their parts, which need not be
// a DNS label.
func readableID(u URI) string {
	host := u.hostText()
	if ip, ok := u.Address.IP(); ok && ip.Is6() {
		host = addressGroups(ip.As16())
	}
	return strings.ReplaceAll(host, ".", "-") + "-" + strconv.Itoa(int(u.Port))
}

// addressGroups returns the eight groups of an IPv6 address. In its usual form it may begin
// or end with a hyphen here.
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
