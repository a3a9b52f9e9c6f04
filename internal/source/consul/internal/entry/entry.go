// Package entry says what the instances of a service in Consul become in a catalog, or by
// which rule they become nothing. It is pure: answers of Consul go in, services come out.
// The package consul says what the mapping is.
package entry

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// ACL is the rule by which a service is not published that has instances which the token must not
// read. The other rules are the reasons of package federation.
const ACL = "acl"

const (
	defaultID  = "default"      // of the instance that has every endpoint
	metaPrefix = "consul.meta/" // of labels
)

// Rules say what is published. They are read-only.
type Rules struct {
	Prefix    string // of the names of services
	Zone      federation.FQDN
	AddressOf string   // the key of tagged addresses; lan for the address of the instance
	Warning   bool     // whether instances are published of which a check warns
	Tags      []string // which instances must have
	ByTag     bool     // whether each tag is an instance that has the endpoints with the tag
	Policy    wire.AddressPolicy
}

// Instance is one entry in the answer to /v1/health/service: an instance of a service, which
// runs on a node.
type Instance struct {
	Node struct {
		Address         string
		TaggedAddresses map[string]string
	}
	Service struct {
		Kind            string // empty, or that of a proxy or a gateway of Consul's mesh
		Address         string // empty for that of the node
		Port            int
		TaggedAddresses map[string]struct {
			Address string
			Port    int // 0 for that of the instance
		}
		Tags []string
		Meta map[string]string
	}
	Checks []struct{ Status string } // of the node, and of the instance
}

// Verdict is what becomes of a service of Consul.
type Verdict struct {
	Service  *wire.EncodedService // nil where nothing is published
	Refused  map[string]int       // entries that are not published, by the rule
	Sidecars int                  // instances that are proxies or gateways, which are left out
}

// member is an instance that is published.
type member struct {
	address  federation.Address
	port     uint16
	tags     []string
	meta     map[string]string
	protocol federation.Protocol
}

// FQDN returns the name of a service of Consul in the zone. It fails for a service whose name
// is no label: no name in DNS would be its own.
func (r *Rules) FQDN(service string) (federation.FQDN, error) {
	if label, err := federation.ParseLabel(service); err != nil || strings.Contains(label.String(), ".") {
		return federation.FQDN{}, errors.New("its name is not one label of DNS")
	}
	return federation.ParseFQDN(service + "." + r.Zone.String())
}

// Wants reports whether instances with these tags are published.
func (r *Rules) Wants(tags []string) bool {
	return !slices.ContainsFunc(r.Tags, func(tag string) bool { return !slices.Contains(tags, tag) })
}

// Judge returns what becomes of a service of Consul with these instances, in any order. The
// verdict is a function of nothing else.
func (r *Rules) Judge(name string, instances []Instance) Verdict {
	v := Verdict{Refused: make(map[string]int)}
	var members []member
	for i := range instances {
		switch in := &instances[i]; {
		case in.Service.Kind != "":
			v.Sidecars++
		case r.Wants(in.Service.Tags) && r.isHealthy(in):
			if m, rule := r.readMember(in); rule == "" {
				members = append(members, m)
			} else {
				v.Refused[string(rule)]++
			}
		}
	}
	if len(members) == 0 {
		return v
	}
	s := r.buildService(name, members)
	if over := len(s.Endpoints) - limits.Endpoints; over > 0 {
		s.Endpoints = s.Endpoints[:limits.Endpoints]
		v.Refused[string(federation.ReasonLimit)] += over
	}
	var err error
	if v.Service, err = wire.NewEncoded(s); err != nil {
		invalid, _ := errors.AsType[*federation.InvalidError](err)
		v.Refused[string(invalid.Reason)]++
	}
	return v
}

// isHealthy reports whether an instance is published by its checks. Maintenance is a critical
// check.
func (r *Rules) isHealthy(in *Instance) bool {
	for _, c := range in.Checks {
		if c.Status != "passing" && (c.Status != "warning" || !r.Warning) {
			return false
		}
	}
	return true
}

// readMember returns what an instance says, or the rule by which it is not published.
func (r *Rules) readMember(in *Instance) (m member, rule federation.Reason) {
	text, port := r.findAddress(in)
	address, err := federation.ParseAddress(text)
	switch {
	case text == "":
		return m, federation.ReasonMissing
	case err != nil:
		return m, federation.ReasonAddress
	case port < 1 || port > 65535:
		return m, federation.ReasonPort
	case slices.ContainsFunc(in.Service.Tags, func(tag string) bool { return len(tag) > limits.TagBytes }) || len(in.Service.Tags) > limits.Tags:
		return m, federation.ReasonLimit
	}
	m = member{address: address, port: uint16(port), tags: in.Service.Tags, meta: in.Service.Meta, protocol: readProtocol(in)}
	if invalid := r.Policy.Check(&federation.Service{Endpoints: []federation.Endpoint{{Address: address, Port: m.port}}}); invalid != nil {
		return m, invalid.Reason
	}
	return m, ""
}

// findAddress returns where an instance is reached. Its own address is that of its node where it
// says none; a tagged one is that of its node only then, as the node may be another machine.
func (r *Rules) findAddress(in *Instance) (address string, port int) {
	if r.AddressOf == "lan" {
		return cmp.Or(in.Service.Address, in.Node.Address), in.Service.Port
	}
	if tagged, ok := in.Service.TaggedAddresses[r.AddressOf]; ok {
		return tagged.Address, cmp.Or(tagged.Port, in.Service.Port)
	}
	if in.Service.Address == "" || in.Service.Address == in.Node.Address {
		return in.Node.TaggedAddresses[r.AddressOf], in.Service.Port
	}
	return "", 0
}

// readProtocol returns the protocol of an instance: that of its meta, else that of the first tag
// that is the name of one, else TCP.
func readProtocol(in *Instance) federation.Protocol {
	if p, ok := federation.ParseProtocol(in.Service.Meta["protocol"]); ok {
		return p
	}
	for _, tag := range in.Service.Tags {
		switch p, _ := federation.ParseProtocol(tag); p {
		case federation.HTTP, federation.HTTPS, federation.GRPC, federation.HTTP2, federation.TCP:
			return p
		}
	}
	return federation.TCP
}

// buildService returns the service with these members, whose name is a label.
func (r *Rules) buildService(name string, members []member) *federation.Service {
	slices.SortFunc(members, func(a, b member) int {
		return cmp.Or(strings.Compare(a.address.String(), b.address.String()), cmp.Compare(a.port, b.port))
	})
	s := &federation.Service{Name: r.Prefix + name, Labels: commonMeta(members)}
	s.FQDN, _ = r.FQDN(name) // the service is not valid without
	tagged := map[string][]member{defaultID: members}
	for _, m := range members {
		if n := len(s.Endpoints); n == 0 || s.Endpoints[n-1].Address != m.address || s.Endpoints[n-1].Port != m.port {
			s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: m.address, Port: m.port})
		}
		e := &s.Endpoints[len(s.Endpoints)-1]
		for _, tag := range m.tags {
			label, err := federation.ParseLabel(tag)
			if id := label.String(); r.ByTag && err == nil && id != defaultID && !strings.Contains(id, ".") {
				e.Labels = append(e.Labels, id)
				tagged[id] = append(tagged[id], m)
			}
		}
		s.Tags = append(s.Tags, m.tags...)
		e.Labels = sortedUpTo(e.Labels, limits.Selectors)
	}
	s.Tags = sortedUpTo(s.Tags, limits.Tags)
	if len(tagged) > limits.Instances {
		tagged = map[string][]member{defaultID: members}
	}
	for _, id := range slices.Sorted(maps.Keys(tagged)) {
		in := federation.Instance{ID: id, Protocol: commonProtocol(tagged[id])}
		if id != defaultID { // which has all, as nothing selects
			in.EndpointSelector = []string{id}
		}
		s.Instances = append(s.Instances, in)
	}
	return s
}

// sortedUpTo returns the first texts in order, each once, without empty ones.
func sortedUpTo(texts []string, most int) []string {
	slices.Sort(texts)
	texts = slices.DeleteFunc(slices.Compact(texts), func(text string) bool { return text == "" })
	return texts[:min(len(texts), most)]
}

// commonMeta returns the entries of meta that all members have, as labels.
func commonMeta(members []member) []federation.Pair {
	common := make(map[string]string)
	for key, value := range members[0].meta {
		if !slices.ContainsFunc(members, func(m member) bool { other, ok := m.meta[key]; return !ok || other != value }) {
			common[metaPrefix+key] = value
		}
	}
	return federation.Pairs(common)
}

// commonProtocol returns the protocol that all members speak, or TCP.
func commonProtocol(members []member) federation.Protocol {
	if slices.ContainsFunc(members, func(m member) bool { return m.protocol != members[0].protocol }) {
		return federation.TCP
	}
	return members[0].protocol
}
