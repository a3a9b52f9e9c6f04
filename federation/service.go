package federation

import (
	"net"
	"slices"
	"strconv"
	"strings"
)

// Service is one entry of an owner's catalog: what a client needs to reach the
// service by name. It is never changed once [Service.Validate] has accepted it,
// because goroutines share it.
type Service struct {
	Name        string     // the owner's unique ID of the service, of 1 to 512 bytes
	FQDN        FQDN       // as the owner sent it, before any rename
	Description string     // for people, of at most 4096 bytes
	Tags        []string   // at most 64, each of 1 to 512 bytes
	Labels      []Pair     // at most 64, as Pairs returns them
	SANs        []string   // at most 64 identities in the certificate of the service, such as SPIFFE IDs, each of 1 to 2048 bytes
	Endpoints   []Endpoint // 1 to 1000
	Instances   []Instance // 1 to 1000
}

// Instance is one of the backing services that share the fqdn of a Service.
type Instance struct {
	ID               string   // unique in the service, of 1 to 512 bytes
	Protocol         Protocol // never 0
	Metadata         []Pair   // told to clients; at most 64, as Pairs returns them
	EndpointSelector []string // labels of the endpoints through which it is reached; at most 64, each of 1 to 512 bytes
	Description      string   // for people, of at most 4096 bytes

	// Unnamed marks an instance of a service of v1alpha1, which lists protocols
	// instead of instances. It has a protocol and no ID. An owner publishes it with the
	// protocol, in lower case, for its ID.
	Unnamed bool
}

// Endpoint is a place in the network where the service is reached.
type Endpoint struct {
	Address     Address
	Port        uint16   // never 0
	Labels      []string // by which instances select it; at most 64, each of 1 to 512 bytes
	Description string   // for people, of at most 4096 bytes
}

// String returns the address and the port as net.JoinHostPort joins them, for example
// 192.0.2.1:443, [2001:db8::1]:443 or host.example:443. A host name has no final dot.
func (e Endpoint) String() string {
	return net.JoinHostPort(strings.TrimSuffix(e.Address.String(), "."), strconv.Itoa(int(e.Port)))
}

// Pair is one entry of a map that the protocol carries: a key of at most 512 bytes, and a value
// of at most 16,384, as owners put certificates there. A list of pairs is sorted by key, bytewise,
// and has no key twice.
type Pair struct{ Key, Value string }

// Pairs returns the entries of m in the order that lists of pairs have, or nil for an empty map.
func Pairs(m map[string]string) []Pair {
	if len(m) == 0 {
		return nil
	}
	pairs := make([]Pair, 0, len(m))
	for key, value := range m {
		pairs = append(pairs, Pair{Key: key, Value: value})
	}
	slices.SortFunc(pairs, func(a, b Pair) int { return strings.Compare(a.Key, b.Key) })
	return pairs
}

// Equal reports whether s and t are the same in every field. An update to an
// equal service changes nothing. The order of lists counts.
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

// Selects reports whether the instance is reached through an endpoint with the
// given labels, that is, whether its selector has one of them.
func (i Instance) Selects(labels []string) bool {
	return slices.ContainsFunc(labels, func(l string) bool { return slices.Contains(i.EndpointSelector, l) })
}

// Protocol is what an instance speaks. The zero value is none.
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

// ParseProtocol returns the protocol that s names, in upper or lower case, and
// whether there is one of that name. The specification lists the names in upper
// case and has one in lower case in its examples.
func ParseProtocol(s string) (Protocol, bool) {
	i := slices.Index(protocolNames[:], strings.ToUpper(s))
	return Protocol(max(i, 0)), i > 0 //nolint:gosec // an index of protocolNames
}

// String returns the specification's name of the protocol, or "" where p is none.
func (p Protocol) String() string {
	if int(p) < len(protocolNames) {
		return protocolNames[p]
	}
	return ""
}
