// Package node holds what programs register: nodes of services.
package node

import (
	"net/netip"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// Key tells nodes apart. It is comparable.
type Key struct {
	Service federation.FQDN
	URI     URI
}

// Node is a place at which a provider provides a service. It is never changed once it
// is shared.
type Node struct {
	Key

	Instance    string            // the ID that the provider has given; empty when the node is an instance of its own
	Metadata    []federation.Pair // as federation.Pairs returns them
	Description string
	TTL         time.Duration

	Provider mtls.ID   // who has registered it
	Rule     string    // the name of the rule that allows it
	Owner    string    // the name of the owner to which the provider is connected, or was last
	Stream   uint64    // the provider's stream to that owner; random
	Since    time.Time // when it was registered; in UTC, in whole seconds
}

// URI is where a node is. The zero value is none. It is comparable: equal URIs are
// equal (==).
type URI struct {
	Protocol federation.Protocol
	Address  federation.Address
	Port     uint16
}

// ParseURI returns the URI that a provider spells; peer is the address from which it
// connects, and stands where the URI has no host.
func ParseURI(text string, peer netip.Addr) (URI, error) { panic("not written yet") }

// String returns the URI as ParseURI takes it, always with host and port.
func (u URI) String() string { panic("not written yet") }

// Append appends the node as stores keep it.
func (n *Node) Append(b []byte) []byte { panic("not written yet") }

// Parse returns a node that Append has written, and fails for everything else. Equal
// nodes have equal bytes.
func Parse(data []byte) (*Node, error) { panic("not written yet") }
