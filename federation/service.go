package federation

import (
	"slices"
	"strings"
)

// Service is one entry of an owner's catalog: what a client needs to reach it
// by name. It is immutable once made; values are shared between goroutines.
type Service struct {
	Name        string // the owner's unique ID of the service
	FQDN        FQDN   // as the owner sent it, before any rename
	Description string
	Tags        []string
	Labels      []Pair // sorted by key
	SANs        []string
	Endpoints   []Endpoint // at least one
	Instances   []Instance // at least one
}

// Instance is one of the backing services that share the fqdn of a Service.
type Instance struct {
	ID               string
	Protocol         Protocol
	Metadata         []Pair   // sorted by key
	EndpointSelector []string // labels of endpoints
	Description      string

	// Unnamed marks an instance that v1alpha1 implies and does not identify:
	// it has a protocol but no name of its own.
	Unnamed bool
}

// Endpoint is a place in the network where the service is reached.
type Endpoint struct {
	Address     Address
	Port        uint16 // never 0
	Labels      []string
	Description string
}

// Pair is one entry of a map that the protocol carries. Lists of pairs are
// sorted by key, bytewise, and hold a key once.
type Pair struct{ Key, Value string }

// Equal tells whether s and t say the same. An update to an equal service is
// no change.
func (s *Service) Equal(t *Service) bool {
	return s == t ||
		s.Name == t.Name && s.FQDN == t.FQDN && s.Description == t.Description &&
			slices.Equal(s.Tags, t.Tags) && slices.Equal(s.Labels, t.Labels) && slices.Equal(s.SANs, t.SANs) &&
			slices.EqualFunc(s.Endpoints, t.Endpoints, Endpoint.equal) &&
			slices.EqualFunc(s.Instances, t.Instances, Instance.equal)
}

func (e Endpoint) equal(f Endpoint) bool {
	return e.Address == f.Address && e.Port == f.Port && e.Description == f.Description &&
		slices.Equal(e.Labels, f.Labels)
}

func (i Instance) equal(j Instance) bool {
	return i.ID == j.ID && i.Protocol == j.Protocol && i.Description == j.Description && i.Unnamed == j.Unnamed &&
		slices.Equal(i.Metadata, j.Metadata) && slices.Equal(i.EndpointSelector, j.EndpointSelector)
}

// Selects tells whether the instance is reached through an endpoint with the
// given labels: one of them is in its selector.
func (i Instance) Selects(labels []string) bool {
	return slices.ContainsFunc(labels, func(l string) bool { return slices.Contains(i.EndpointSelector, l) })
}

// Protocol is what an instance speaks.
type Protocol uint8

// The protocols of the specification ('Complex Type Instance').
const (
	HTTP Protocol = iota + 1
	HTTPS
	GRPC
	HTTP2
	MONGO
	TCP
	TLS
	MTLS
)

// protocolNames is indexed by Protocol.
var protocolNames = [...]string{HTTP: "HTTP", HTTPS: "HTTPS", GRPC: "GRPC", HTTP2: "HTTP2", MONGO: "MONGO", TCP: "TCP", TLS: "TLS", MTLS: "MTLS"}

// ParseProtocol returns the protocol that s names, and false for any other
// string. The specification lists the names in upper case and writes one in
// lower case in its examples, so either is taken.
func ParseProtocol(s string) (Protocol, bool) {
	i := slices.Index(protocolNames[:], strings.ToUpper(s))
	return Protocol(max(i, 0)), i > 0 //nolint:gosec // an index of protocolNames
}

// String returns the specification's name of the protocol.
func (p Protocol) String() string {
	if int(p) < len(protocolNames) {
		return protocolNames[p]
	}
	return ""
}
