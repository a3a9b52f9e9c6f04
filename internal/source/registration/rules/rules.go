// Package rules decides which identity may register which services, at which addresses, for how long
// and how many. A [Request] that no rule of [Rules] allows is refused.
//
// The package is pure: [Parse] compiles a file of rules once, and then requests go
// in and grants or refusals come out.
package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern/capture"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
)

// The words for the rule that a refused node breaks. Providers get them and metrics count them, so that
// they stay the same.
const (
	Malformed = "malformed" // the service, the URI, the metadata, ... is not valid
	NoRule    = "no-rule"   // no rule names the identity and the service
	Address   = "address"   // the rule does not allow the address
	TTL       = "ttl"       // the ttl is out of the bounds of the rule
	Quota     = "quota"     // the identity has as many nodes as the rule allows
	Taken     = "taken"     // the node is registered by another identity
	Full      = "full"      // the service, or the owner, has as many nodes as it can have
)

// Request is what a provider asks for: to register one node.
type Request struct {
	IDs     []federation.ID // of its certificate
	Peer    netip.Addr      // from which it connects
	Service federation.FQDN
	URI     node.URI
	TTL     time.Duration // 0: the provider did not ask for one
}

// Grant is what a provider may do.
type Grant struct {
	Provider federation.ID // the identity that the rule names
	Rule     string        // the name of that rule
	TTL      time.Duration
	Quota    int // how many nodes the identity may have under the rule
}

// Refusal says why a request is refused.
type Refusal struct {
	Rule   string // one of the words above
	Reason string // for the provider; names what the provider has asked for, and the owner's rule if one decided
	Detail string // for the owner alone: what the rules allow instead; or empty
}

// FullReason returns the reason with the detail, for the owner.
func (r *Refusal) FullReason() string {
	if r.Detail == "" {
		return r.Reason
	}
	return r.Reason + "; " + r.Detail
}

func refusef(word, format string, args ...any) *Refusal {
	return &Refusal{Rule: word, Reason: fmt.Sprintf(format, args...)}
}

// Rules are compiled rules. They never change, so goroutines share them. The zero
// value refuses everything.
type Rules struct{ rules []compiledRule }

// compiledRule is a rule that was parsed.
type compiledRule struct {
	name      string
	providers []providerPattern
	services  []capture.Name

	// Addresses: one of these.
	peer   bool
	ranges []netip.Prefix
	hosts  []capture.Name

	min, max, usual time.Duration
	quota           int
}

// providerPattern is a pattern of identities, with its text before the first '*' or capture. Most
// of a thousand rules are passed over because of that text alone.
type providerPattern struct {
	capture.ID

	start string
}

func newProviderPattern(p capture.ID) providerPattern {
	start, _, _ := strings.Cut(p.Pattern().String(), "*")
	return providerPattern{p, start}
}

// Matches reports whether the pattern matches the identity. No pattern matches the empty identity.
func (p *providerPattern) Matches(id federation.ID) bool {
	text := id.String()
	return text != "" && strings.HasPrefix(text, p.start) && p.ID.Matches(id)
}

// Judge returns the grant of the first rule that names one of the identities and the service, or a
// Refusal.
func (r *Rules) Judge(q Request) (Grant, *Refusal) { return r.judgeRequest(q, false) }

// CheckStored returns the Refusal of a stored node that may no longer be registered, or nil. A rule
// that allows the address of the connection allows each IP address here, because a stored node does
// not have the address from which its provider connected.
func (r *Rules) CheckStored(n *node.Node) *Refusal {
	_, refusal := r.judgeRequest(Request{IDs: []federation.ID{n.Provider}, Service: n.Service, URI: n.URI, TTL: n.TTL}, true)
	return refusal
}

// MayName reports whether any rule names the service, for any provider.
func (r *Rules) MayName(service federation.FQDN) bool {
	return slices.ContainsFunc(r.rules, func(r compiledRule) bool {
		return slices.ContainsFunc(r.services, func(n capture.Name) bool { return n.MayMatch(service) })
	})
}

// judgeRequest returns the result of Judge or, with anyPeer, of CheckStored.
func (r *Rules) judgeRequest(q Request, anyPeer bool) (Grant, *Refusal) {
	if q.Service.IsZero() || q.URI == (node.URI{}) {
		return Grant{}, refusef(Malformed, "a node has a service and a URI")
	}
	for i := range r.rules {
		rule := &r.rules[i]
		if id, named, allowed := rule.matchRequest(&q, anyPeer); named {
			return rule.grantRequest(&q, id, allowed)
		}
	}
	return Grant{}, r.unnamedRefusal(&q)
}

// matchRequest returns the first identity that the rule names together with the service, whether
// there is one, and whether the rule allows the address to it.
func (r *compiledRule) matchRequest(q *Request, anyPeer bool) (id federation.ID, named, allowed bool) {
	for _, id := range q.IDs {
		for i := range r.providers {
			p := &r.providers[i]
			if !p.Matches(id) || !namesOne(r.services, &p.ID, id, q.Service) {
				continue
			}
			if named = true; r.allowsAddress(q, &p.ID, id, anyPeer) {
				return id, true, true
			}
		}
		if named {
			return id, true, false
		}
	}
	return federation.ID{}, false, false
}

// namesOne reports whether one of the patterns matches the name, with the captures of p in an
// identity.
func namesOne(list []capture.Name, p *capture.ID, id federation.ID, name federation.FQDN) bool {
	for i := range list {
		if list[i].Matches(p, id, name) {
			return true
		}
	}
	return false
}

// allowsAddress reports whether an identity that p matches may have a node at the address.
func (r *compiledRule) allowsAddress(q *Request, p *capture.ID, id federation.ID, anyPeer bool) bool {
	if host, ok := q.URI.Address.Host(); ok {
		return namesOne(r.hosts, p, id, host)
	}
	ip, ok := q.URI.Address.IP()
	switch {
	case !ok:
		return false
	case r.peer && (anyPeer || ip == unmapPeer(q.Peer)):
		return true
	}
	for _, addresses := range r.ranges {
		if addresses.Contains(ip) {
			return true
		}
	}
	return false
}

// unmapPeer returns the address of a connection in the spelling of a node's address. A listener for
// both families sees IPv4 as IPv4-mapped IPv6 (RFC 4291 section 2.5.5.2).
func unmapPeer(peer netip.Addr) netip.Addr { return peer.Unmap().WithZone("") }

// grantRequest returns the grant of the rule to an identity that it names, or why the rule refuses.
func (r *compiledRule) grantRequest(q *Request, id federation.ID, allowed bool) (Grant, *Refusal) {
	ttl := q.TTL
	switch {
	case !allowed:
		return Grant{}, r.addressRefusal(q)
	case ttl == 0:
		ttl = r.usual
	case ttl < r.min || ttl > r.max:
		return Grant{}, refusef(TTL, "rule %s allows a ttl from %v to %v, not %v", r.name, r.min, r.max, ttl)
	}
	return Grant{Provider: id, Rule: r.name, TTL: ttl, Quota: r.quota}, nil
}

// mostShown is how many entries of a list a reason shows, so that it stays short.
const mostShown = 3

// addressRefusal returns why the rule refuses the address. The reason, which the provider gets,
// names no other allowed address than that of the connection.
func (r *compiledRule) addressRefusal(q *Request) *Refusal {
	refusal := refusef(Address, "rule %s does not allow the address %s", r.name, q.URI.Address)
	if r.peer {
		refusal.Reason += "; it allows that of the connection"
		if q.Peer.IsValid() {
			refusal.Reason += " (" + unmapPeer(q.Peer).String() + ")"
		}
	}
	var list []string
	for _, addresses := range r.ranges {
		list = append(list, addresses.String())
	}
	for i := range r.hosts {
		list = append(list, r.hosts[i].String())
	}
	if list != nil {
		refusal.Detail = "it allows " + firstEntries(list)
	}
	return refusal
}

// firstEntries returns the text of the first entries of a list, and how many more there are.
func firstEntries(list []string) string {
	if more := len(list) - mostShown; more > 0 {
		list = append(list[:mostShown:mostShown], fmt.Sprintf("%d more", more))
	}
	return strings.Join(list, ", ")
}

// unnamedRefusal returns the refusal of a request for which no rule decides.
func (r *Rules) unnamedRefusal(q *Request) *Refusal {
	var ids, reasons []string
	for _, id := range q.IDs {
		if id == (federation.ID{}) {
			continue
		}
		if ids = append(ids, safetext.Quote(id.String())); len(reasons) > mostShown {
			continue
		}
		for i := range r.rules {
			if reason := r.rules[i].missingReason(id); reason != "" {
				reasons = append(reasons, reason)
			}
			if len(reasons) > mostShown {
				reasons[mostShown] = "and more rules do not allow it"
				break
			}
		}
	}
	switch {
	case ids == nil:
		return refusef(NoRule, "the certificate has neither a SPIFFE ID nor a DNS name")
	case reasons == nil:
		return refusef(NoRule, "no rule names %s", firstEntries(ids))
	}
	return &Refusal{
		Rule: NoRule, Reason: fmt.Sprintf("no rule lets %s register %s", firstEntries(ids), nameOf(q.Service)), Detail: strings.Join(reasons, "; "),
	}
}

// missingReason returns which services a rule allows to an identity, or why none, or "" when the
// rule does not name the identity.
func (r *compiledRule) missingReason(id federation.ID) string {
	for i := range r.providers {
		p := &r.providers[i]
		if !p.Matches(id) {
			continue
		}
		var names []string
		for j := range r.services {
			name, err := r.services[j].Expand(&p.ID, id)
			if err != nil {
				return fmt.Sprintf("rule %s: %v", r.name, err)
			}
			names = append(names, name)
		}
		return fmt.Sprintf("rule %s allows %s", r.name, firstEntries(names))
	}
	return ""
}

// nameOf returns a name without its final dot.
func nameOf(name federation.FQDN) string { return strings.TrimSuffix(name.String(), ".") }
