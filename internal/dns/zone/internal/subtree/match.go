package subtree

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
)

// Match says what a name at or below the fqdn stands for.
type Match struct {
	Role      domain.Role
	Instance  *Instance           // for an instance, and for the labels of its protocol
	Endpoints Selection           // for a service, an instance or a protocol; by rank for SRV records
	Protocol  federation.Protocol // for an instance or a protocol
	Address   netip.Addr          // for an address
}

// HasLabels reports whether the labels in front of the fqdn stand for records or for an empty
// non-terminal.
func (t *Subtree) HasLabels(labels string) bool {
	if s := t.SharedName(); s != nil {
		return slices.ContainsFunc(s.Members, func(m Member) bool { return m.Tree.HasLabels(labels) })
	}
	return t.MatchLabels(labels).Role != domain.Missing
}

// MatchLabels returns what the labels in front of the fqdn stand for. For a shared name, t is the
// result of Joined.
func (t *Subtree) MatchLabels(labels string) Match {
	if strings.HasPrefix(labels, "_") {
		return t.matchService(labels)
	}
	if first, ok := strings.CutSuffix(labels, "."+domain.Addr); ok {
		if ip, ok := domain.ParseAddress(first); ok && t.hasAddress(ip) {
			return Match{Role: domain.Address, Address: ip}
		}
	}
	if in, ok := t.FindInstance(labels); ok {
		return Match{Role: domain.Instance, Instance: in, Endpoints: t.endpointsOf(in), Protocol: in.protocol}
	}
	if labels == domain.Addr && t.hasIP() || t.isAboveInstance(labels) {
		return Match{Role: domain.Empty}
	}
	return Match{}
}

// matchService returns the match of _<protocol>._tcp[.<instance>], or of the empty non-terminal
// _tcp[.<instance>].
func (t *Subtree) matchService(labels string) Match {
	for p := range t.protocols.each {
		for _, s := range domain.ServiceLabels(p) {
			label, ok := domain.CutLabels(labels, s)
			if !ok {
				continue
			}
			if label == "" {
				return Match{Role: domain.Protocol, Endpoints: t.endpointsOfProtocol(p), Protocol: p}
			}
			if in, ok := t.FindInstance(label); ok {
				if endpoints := t.endpointsSpeaking(in, p); endpoints != nil {
					return Match{Role: domain.Protocol, Instance: in, Endpoints: endpoints, Protocol: p}
				}
			}
			return Match{}
		}
	}
	if label, ok := domain.CutLabels(labels, domain.TCP); ok {
		if in, ok := t.FindInstance(label); ok || label == "" {
			return Match{Role: domain.EmptyAlways, Instance: in}
		}
	}
	return Match{}
}

// FindInstance returns the instance whose own name has the labels in front of the
// fqdn.
func (t *Subtree) FindInstance(labels string) (*Instance, bool) {
	instances := t.Instances()
	i, ok := slices.BinarySearchFunc(instances, labels, func(in Instance, label string) int { return strings.Compare(in.Label, label) })
	if !ok {
		return nil, false
	}
	return &instances[i], true
}

// isAboveInstance reports whether the labels stand for an empty non-terminal
// between the fqdn and an instance whose name has several labels (RFC 8020).
func (t *Subtree) isAboveInstance(labels string) bool {
	return slices.ContainsFunc(t.Instances(), func(in Instance) bool {
		return len(in.Label) > len(labels) && domain.IsWithin(in.Label, labels)
	})
}

// hasAddress reports whether one of the endpoints has the address.
func (t *Subtree) hasAddress(ip netip.Addr) bool {
	return slices.ContainsFunc(t.allEndpoints(), func(ep Endpoint) bool {
		own, ok := ep.Address.IP()
		return ok && own == ip
	})
}

// hasIP reports whether one of the endpoints is an IP address.
func (t *Subtree) hasIP() bool {
	return slices.ContainsFunc(t.allEndpoints(), func(ep Endpoint) bool { return !ep.IsHost() })
}
