// Package endpoint maps endpoints of a Network Service Mesh registry to services of a
// catalog, or names the rule by which an endpoint is not published. It is pure: messages go
// in, services come out. The comment of package nsm describes the mapping.
package endpoint

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/networkservicemesh/api/pkg/api/registry"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// The rules by which an entry of the registry is not published, beside the reasons of
// package federation.
const (
	Expired     = "expired"     // its expiration_time is over, or the clocks differ
	Scheme      = "scheme"      // the URL has another scheme, such as kernel or unix
	URL         = "url"         // the URL is malformed
	Interdomain = "interdomain" // it belongs to another domain
	Missing     = string(federation.ReasonMissing)
	Name        = string(federation.ReasonName)
	Port        = string(federation.ReasonPort)
	Address     = string(federation.ReasonAddress)
	Limit       = string(federation.ReasonLimit)
)

// The limits of an endpoint, beside those of package federation.
const (
	maxServices      = 64 // network services that it names
	maxPayloadBytes  = 256
	maxMetadataBytes = 4 << 10 // of its labels for one network service
)

// protocols has the protocol for each scheme of a URL.
var protocols = map[string]federation.Protocol{
	"tcp": federation.TCP, "tls": federation.TLS, "mtls": federation.MTLS,
	"http": federation.HTTP, "https": federation.HTTPS, "http2": federation.HTTP2,
	"grpc": federation.GRPC, "mongo": federation.MONGO,
}

// ServiceOffer is what an endpoint contributes to one network service.
type ServiceOffer struct {
	Service string // network service

	fqdn     federation.FQDN
	metadata []federation.Pair
}

// Endpoint is the published form of an endpoint. The zero value publishes nothing. An Endpoint is
// never changed once it is shared.
type Endpoint struct {
	Offers  []ServiceOffer // sorted by Service
	Refused []string       // the rule of each entry that is not published

	name     string
	san      string // its SPIFFE ID; empty where the registry does not know one
	label    string // the name as names in DNS have it; empty where it cannot be one
	address  federation.Address
	port     uint16
	protocol federation.Protocol
}

// Equal reports whether e and f are published in the same way.
func (e *Endpoint) Equal(f *Endpoint) bool {
	return e.name == f.name && e.san == f.san && e.address == f.address && e.port == f.port && e.protocol == f.protocol &&
		slices.Equal(e.Refused, f.Refused) && slices.EqualFunc(e.Offers, f.Offers, func(a, b ServiceOffer) bool {
		return a.Service == b.Service && a.fqdn == b.fqdn && slices.Equal(a.metadata, b.metadata)
	})
}

// Rules say how endpoints are published. They are read-only.
type Rules struct {
	Prefix string // of the names of services
	Zone   federation.FQDN
	Policy wire.AddressPolicy
}

// KeyOf returns the key by which endpoints are told apart: the name, or a hash of the name where
// the name is too long to be kept.
func KeyOf(name string) string {
	if len(name) <= limits.NameBytes {
		return name
	}
	return "\x00" + hexDigest(name)
}

// hexDigest returns the SHA-256 of a name in hexadecimal digits.
func hexDigest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// Read returns the published form of an endpoint in a message of the registry. A message may hold
// anything; the endpoint that Read returns is valid.
func (r *Rules) Read(message *registry.NetworkServiceEndpoint) Endpoint {
	name, services := message.GetName(), message.GetNetworkServiceNames()
	rule := r.refusalRule(name, services)
	if rule != "" {
		return Endpoint{Refused: []string{rule}}
	}
	e := Endpoint{name: name, san: spiffeID(message)}
	target, _ := splitDomain(name)
	if label, err := federation.ParseLabel(target); err == nil {
		e.label = label.String()
	}
	if e.protocol, e.address, e.port, rule = parseURL(message.GetUrl()); rule != "" {
		e.Refused = []string{rule}
		return e
	}
	if len(services) > maxServices {
		services = services[:maxServices]
		e.Refused = []string{Limit}
	}
	for i, service := range services {
		if slices.Contains(services[:i], service) {
			continue
		}
		target, _ := splitDomain(service)
		o, rule := r.readOffer(&e, target, message.GetNetworkServiceLabels()[service].GetLabels())
		switch {
		case rule != "":
			e.Refused = append(e.Refused, rule)
		case !slices.ContainsFunc(e.Offers, func(other ServiceOffer) bool { return other.Service == o.Service }):
			e.Offers = append(e.Offers, o)
		}
	}
	slices.SortFunc(e.Offers, func(a, b ServiceOffer) int { return strings.Compare(a.Service, b.Service) })
	return e
}

// spiffeID returns the SPIFFE ID of an endpoint, or "". The field path_ids lists the programs that
// have passed the registration on, and the first of them has made the registration. The registry
// takes the IDs from the tokens of the requests.
func spiffeID(message *registry.NetworkServiceEndpoint) string {
	if path := message.GetPathIds(); len(path) > 0 {
		if id, err := federation.ParseID(path[0]); err == nil && id.IsSPIFFE() {
			return id.String()
		}
	}
	return ""
}

// ReadPayload returns the name of a network service, in the form of ServiceOffer.Service, and its
// payload, such as IP or ETHERNET. The payload is empty when the network service has none that can
// be published.
func (r *Rules) ReadPayload(message *registry.NetworkService) (service, payload string) {
	service, _ = splitDomain(message.GetName())
	payload = message.GetPayload()
	if r.isForeign([]string{message.GetName()}) || len(service) > limits.NameBytes ||
		limits.CheckText(payload, maxPayloadBytes) != nil {
		payload = ""
	}
	return service, payload
}

// refusalRule returns the rule by which an endpoint is not published at all, or "".
func (r *Rules) refusalRule(name string, services []string) string {
	switch {
	case name == "" || len(services) == 0:
		return Missing
	case len(name) > limits.NameBytes:
		return Limit
	case r.isForeign(append([]string{name}, services[:min(len(services), maxServices)]...)):
		return Interdomain
	}
	return ""
}

// isForeign reports whether an endpoint belongs to another domain. As in the SDK, the
// domain is what stands behind the first @ of its name, or of its first network service
// that has one.
func (r *Rules) isForeign(names []string) bool {
	for _, name := range names {
		if _, domain := splitDomain(name); strings.Contains(name, "@") {
			fqdn, err := federation.ParseFQDN(domain)
			return err != nil || fqdn != r.Zone
		}
	}
	return false
}

// splitDomain returns what stands before and behind the first @.
func splitDomain(name string) (target, domain string) {
	target, domain, _ = strings.Cut(name, "@")
	return target, domain
}

// readOffer returns what endpoint e, which has an address, contributes to one network service, or
// the rule by which it contributes nothing.
func (r *Rules) readOffer(e *Endpoint, service string, labels map[string]string) (ServiceOffer, string) {
	fqdn, err := federation.ParseFQDN(service + "." + strings.TrimSuffix(r.Zone.String(), "."))
	if err != nil || !fqdn.Within(r.Zone) {
		return ServiceOffer{}, Name
	}
	size := 0
	for key, value := range labels {
		size += len(key) + len(value)
	}
	if size > maxMetadataBytes || len(service) > limits.NameBytes {
		return ServiceOffer{}, Limit
	}
	o := ServiceOffer{Service: service, fqdn: fqdn, metadata: federation.Pairs(labels)}
	alone := r.buildService(o.Service, o.fqdn, []serviceMember{{Endpoint: e, ServiceOffer: &o, id: cmp.Or(e.label, "nse")}})
	if err := cmp.Or(alone.Validate(), asError(r.Policy.Check(alone))); err != nil {
		invalid, _ := errors.AsType[*federation.InvalidError](err)
		return ServiceOffer{}, string(invalid.Reason)
	}
	return o, ""
}

// asError returns err as an error, which is nil for a nil pointer.
func asError(err *federation.InvalidError) error {
	if err == nil {
		return nil
	}
	return err
}

// parseURL returns the protocol, the address and the port in the URL of an endpoint, or the rule by
// which the URL cannot be published.
func parseURL(text string) (protocol federation.Protocol, address federation.Address, port uint16, rule string) {
	if text == "" {
		return 0, federation.Address{}, 0, Missing
	}
	u, err := url.Parse(text)
	if err != nil {
		if strings.Contains(err.Error(), "invalid port") {
			return 0, federation.Address{}, 0, Port
		}
		return 0, federation.Address{}, 0, URL
	}
	protocol, ok := protocols[strings.ToLower(u.Scheme)]
	if !ok {
		return 0, federation.Address{}, 0, Scheme
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil || n == 0 {
		return 0, federation.Address{}, 0, Port
	}
	address, err = federation.ParseAddress(u.Hostname())
	if err != nil {
		return 0, federation.Address{}, 0, Address
	}
	return protocol, address, uint16(n), ""
}
