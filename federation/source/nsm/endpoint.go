package nsm

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/networkservicemesh/api/pkg/api/registry"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// The rules by which an entry of the registry is not published, beside the reasons of
// package federation.
const (
	ruleScheme      = "scheme"      // of a URL, such as kernel or unix
	ruleURL         = "url"         // that is none
	ruleInterdomain = "interdomain" // it belongs to another domain
	ruleExpired     = "expired"     // its expiration_time is over, or the clocks differ
	ruleMissing     = string(federation.ReasonMissing)
	ruleName        = string(federation.ReasonName)
	rulePort        = string(federation.ReasonPort)
	ruleAddress     = string(federation.ReasonAddress)
	ruleLimit       = string(federation.ReasonLimit)
)

// The limits of an endpoint, beside those of package federation.
const (
	maxServices      = 64      // network services that it names
	maxMetadataBytes = 4 << 10 // of its labels for one network service
)

// protocols are what the schemes of URLs stand for.
var protocols = map[string]federation.Protocol{
	"tcp": federation.TCP, "tls": federation.TLS, "mtls": federation.MTLS,
	"http": federation.HTTP, "https": federation.HTTPS, "http2": federation.HTTP2,
	"grpc": federation.GRPC, "mongo": federation.MONGO,
}

// offer is what is published of an endpoint in one service.
type offer struct {
	service  string // network service
	fqdn     federation.FQDN
	metadata []federation.Pair
}

// content is what is published of an endpoint.
type content struct {
	name     string
	label    string // the name as names in DNS have it; empty where it cannot be one
	address  federation.Address
	port     uint16
	protocol federation.Protocol
	offers   []offer  // sorted by service
	refused  []string // the rule of each entry that is not published
}

func (c *content) equal(d *content) bool {
	return c.name == d.name && c.address == d.address && c.port == d.port && c.protocol == d.protocol &&
		slices.Equal(c.refused, d.refused) && slices.EqualFunc(c.offers, d.offers, func(a, b offer) bool {
		return a.service == b.service && a.fqdn == b.fqdn && slices.Equal(a.metadata, b.metadata)
	})
}

// word is what the registry says of one endpoint.
type word struct {
	key     string // by which endpoints are told apart
	deleted bool
	content content
	until   time.Time // expiration_time; zero for none
}

// rules say what is published. They are read-only.
type rules struct {
	prefix string // of the names of services
	zone   federation.FQDN
	policy wire.Policy
}

// read turns a message of the registry into what is published of it. A message says
// anything; what it returns is valid.
func (r *rules) read(message *registry.NetworkServiceEndpoint, deleted bool) word {
	w := word{key: key(message.GetName()), deleted: deleted}
	if deleted {
		return w
	}
	if t := message.GetExpirationTime(); t.IsValid() {
		w.until = t.AsTime()
	}
	w.content = r.content(message)
	return w
}

// key returns the name, or where it is too long to be kept, what stands for it.
func key(name string) string {
	if len(name) <= federation.MaxNameBytes {
		return strings.Clone(name) // without holding on to the message
	}
	return "\x00" + digest(name)
}

func digest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

func (r *rules) content(message *registry.NetworkServiceEndpoint) content {
	name, services := message.GetName(), message.GetNetworkServiceNames()
	rule := r.refuse(name, services)
	if rule != "" {
		return content{refused: []string{rule}}
	}
	c := content{name: strings.Clone(name)}
	target, _ := cut(name)
	if label, err := federation.ParseLabel(target); err == nil {
		c.label = strings.Clone(label.String())
	}
	if c.protocol, c.address, c.port, rule = parseURL(message.GetUrl()); rule != "" {
		c.refused = []string{rule}
		return c
	}
	if len(services) > maxServices {
		services = services[:maxServices]
		c.refused = []string{ruleLimit}
	}
	for i, service := range services {
		if slices.Contains(services[:i], service) {
			continue
		}
		target, _ := cut(service)
		o, rule := r.offer(&c, target, message.GetNetworkServiceLabels()[service].GetLabels())
		switch {
		case rule != "":
			c.refused = append(c.refused, rule)
		case !slices.ContainsFunc(c.offers, func(other offer) bool { return other.service == o.service }):
			c.offers = append(c.offers, o)
		}
	}
	slices.SortFunc(c.offers, func(a, b offer) int { return strings.Compare(a.service, b.service) })
	return c
}

// refuse returns the rule by which an endpoint is not published at all, or "".
func (r *rules) refuse(name string, services []string) string {
	switch {
	case name == "" || len(services) == 0:
		return ruleMissing
	case len(name) > federation.MaxNameBytes:
		return ruleLimit
	case r.foreign(append([]string{name}, services[:min(len(services), maxServices)]...)):
		return ruleInterdomain
	}
	return ""
}

// foreign reports whether an endpoint belongs to another domain. As in the SDK, the
// domain is what stands behind the first @ of its name, or of its first network service
// that has one.
func (r *rules) foreign(names []string) bool {
	for _, name := range names {
		if _, domain := cut(name); strings.Contains(name, "@") {
			fqdn, err := federation.ParseFQDN(domain)
			return err != nil || fqdn != r.zone
		}
	}
	return false
}

// cut returns what stands before and behind the first @.
func cut(name string) (target, domain string) {
	target, domain, _ = strings.Cut(name, "@")
	return target, domain
}

// offer returns what is published in one service of an endpoint that has an address, or
// the rule by which that is nothing.
func (r *rules) offer(c *content, service string, labels map[string]string) (offer, string) {
	fqdn, err := federation.ParseFQDN(service + "." + strings.TrimSuffix(r.zone.String(), "."))
	if err != nil || !fqdn.Within(r.zone) {
		return offer{}, ruleName
	}
	size := 0
	for key, value := range labels {
		size += len(key) + len(value)
	}
	if size > maxMetadataBytes || len(service) > federation.MaxNameBytes {
		return offer{}, ruleLimit
	}
	o := offer{service: strings.Clone(service), fqdn: fqdn, metadata: federation.Pairs(labels)}
	alone := r.service(o.service, o.fqdn, []member{{content: c, offer: &o, id: cmp.Or(c.label, "nse")}})
	if err := cmp.Or(alone.Validate(), asError(r.policy.Check(alone))); err != nil {
		invalid, _ := errors.AsType[*federation.InvalidError](err)
		return offer{}, string(invalid.Reason)
	}
	return o, ""
}

// asError keeps a nil pointer from becoming an error.
func asError(err *federation.InvalidError) error {
	if err == nil {
		return nil
	}
	return err
}

// parseURL returns what the URL of an endpoint says, or the rule by which that cannot be
// published.
func parseURL(text string) (protocol federation.Protocol, address federation.Address, port uint16, rule string) {
	if text == "" {
		return 0, federation.Address{}, 0, ruleMissing
	}
	u, err := url.Parse(text)
	if err != nil {
		if strings.Contains(err.Error(), "invalid port") {
			return 0, federation.Address{}, 0, rulePort
		}
		return 0, federation.Address{}, 0, ruleURL
	}
	protocol, ok := protocols[strings.ToLower(u.Scheme)]
	if !ok {
		return 0, federation.Address{}, 0, ruleScheme
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil || n == 0 {
		return 0, federation.Address{}, 0, rulePort
	}
	address, err = federation.ParseAddress(u.Hostname())
	if err != nil {
		return 0, federation.Address{}, 0, ruleAddress
	}
	return protocol, address, uint16(n), ""
}
