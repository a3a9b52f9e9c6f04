package subtree

import (
	"cmp"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
)

// allEndpoints returns all endpoints. The caller must not change them.
func (t *Subtree) allEndpoints() []Endpoint {
	if r := t.rare; r != nil && r.endpoints != nil {
		return r.endpoints
	}
	return t.endpoint[:]
}

// SelectAll returns the selection of every endpoint.
func (t *Subtree) SelectAll() Selection { return everything[:len(t.allEndpoints())] }

// Endpoint returns an endpoint by its index. The caller must not change it.
func (t *Subtree) Endpoint(i uint16) *Endpoint { return &t.allEndpoints()[i] }

// HasHost reports whether one of the endpoints is a host.
func (t *Subtree) HasHost() bool {
	return slices.ContainsFunc(t.allEndpoints(), func(ep Endpoint) bool { return ep.IsHost() })
}

// orderEndpoints fills in the endpoints of the subtree. It returns, for every endpoint of the
// service, the index of the one with its target and port.
func (c *serviceCompiler) orderEndpoints() (places []uint16) {
	own := make([]Endpoint, len(c.service.Endpoints))
	for i, e := range c.service.Endpoints {
		own[i] = Endpoint{e.Address, e.Port}
	}
	if len(own) == 1 {
		c.endpoint[0] = own[0]
		return c.SelectAll()
	}
	c.ensureRare().endpoints, places = sortEndpoints(own, c.fqdn)
	return places
}

// sortEndpoints returns endpoints by SRV target and port, each pair once: RFC 2181 section 5 allows
// no record twice in an RRset, and the order depends on the content alone, so that signatures over
// a set can be cached. It also returns, for every one of own, the index of the endpoint with its
// target and port.
func sortEndpoints(own []Endpoint, fqdn string) (endpoints []Endpoint, places []uint16) {
	order, targets := make([]uint16, len(own)), make([]string, len(own))
	var text strings.Builder
	for i := range own {
		order[i], targets[i] = uint16(i), targetName(&text, own[i].Address, fqdn) // MaxMembers times limits.Endpoints is below 1<<16
	}
	compare := func(a, b uint16) int {
		return cmp.Or(strings.Compare(targets[a], targets[b]), cmp.Compare(own[a].Port, own[b].Port))
	}
	// A host can be the name of an IP address of this service. Then the IP address
	// stands for both.
	isHost := func(i uint16) int {
		if own[i].IsHost() {
			return 1
		}
		return 0
	}
	slices.SortFunc(order, func(a, b uint16) int {
		return cmp.Or(compare(a, b), cmp.Compare(isHost(a), isHost(b)), cmp.Compare(a, b))
	})
	endpoints, places = make([]Endpoint, 0, len(own)), make([]uint16, len(own))
	for n, i := range order {
		if n == 0 || compare(order[n-1], i) != 0 {
			endpoints = append(endpoints, own[i])
		}
		places[i] = uint16(len(endpoints) - 1) //nolint:gosec // as above
	}
	return endpoints, places
}

// Target returns the SRV target of an endpoint: its host, or the name below the fqdn that has its
// IP address and no other. It writes such a name to b, because one builder with room for all names
// saves an allocation for each.
func (t *Subtree) Target(b *strings.Builder, i uint16, fqdn string) string {
	return targetName(b, t.Endpoint(i).Address, fqdn)
}

// TargetLen returns the length of Target. If it is above domain.MaxName, the target is no name of
// DNS, and the endpoint has no SRV record.
func (t *Subtree) TargetLen(i uint16, fqdn string) int {
	return targetLen(t.Endpoint(i).Address, fqdn)
}

// HasTarget reports whether an endpoint has an SRV record.
func (t *Subtree) HasTarget(i uint16, fqdn string) bool {
	return t.TargetLen(i, fqdn) <= domain.MaxName
}

func targetName(b *strings.Builder, address federation.Address, fqdn string) string {
	if host, ok := address.Host(); ok {
		return host.String()
	}
	ip, _ := address.IP()
	begin := b.Len()
	b.Grow(targetLen(address, fqdn))
	var label [domain.MaxAddress]byte
	b.Write(domain.AppendAddress(label[:0], ip))
	b.WriteString("." + domain.Addr + ".")
	b.WriteString(strings.TrimPrefix(fqdn, "."))
	return b.String()[begin:]
}

func targetLen(address federation.Address, fqdn string) int {
	if host, ok := address.Host(); ok {
		return len(host.String())
	}
	ip, _ := address.IP()
	return domain.AddressLen(ip) + len("."+domain.Addr+".") + len(strings.TrimPrefix(fqdn, "."))
}
