package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Shape is a service in the form in which somebody is told of it.
type Shape struct {
	As      string            `json:"as"` // fqdn
	Service printable.Service `json:"service"`
	Changes []Field           `json:"changes,omitempty"` // to what it is in the catalog
}

func newShape(in, out *federation.Service) *Shape {
	return &Shape{plainFQDN(out.FQDN), printable.Service{Service: out}, Compare(in, out)}
}

// consumer is one who subscribes to a catalog.
type consumer struct {
	allowed bool
	class   policy.Class
}

// consumer returns a consumer of the catalog whose certificate has these identities.
func (c *Catalog) consumer(ids ...federation.ID) consumer {
	counting, allowed := c.admit(ids)
	if !allowed {
		return consumer{}
	}
	return consumer{true, c.policy.Class(counting)}
}

// outcome is what becomes of a service for a consumer.
type outcome struct {
	rule   *Rule               // that decided, nil for none
	told   *federation.Service // nil where it is not told
	reason string              // why it is not told
}

// decide returns what becomes of a service of the catalog, and its form there.
func (c *Catalog) decide(to consumer, s *wire.Encoded) (outcome, *federation.Service) {
	whole := s.Service()
	switch {
	case !to.allowed:
		return outcome{reason: c.refusal()}, whole
	case c.policy == nil:
		return outcome{told: whole}, whole
	}
	d := c.policy.Explain(to.class, whole)
	switch {
	case d.Rule == 0:
		return outcome{reason: d.Reason}, whole
	case d.Service == nil:
		r := &c.rules[d.Rule-1]
		return outcome{rule: r, reason: r.String() + " hides it: " + d.Reason}, whole
	}
	return outcome{rule: &c.rules[d.Rule-1], told: d.Service}, whole
}

// refusal returns why a consumer may not subscribe.
func (c *Catalog) refusal() string {
	if c.spiffe {
		return "the consumer may not subscribe, allow does not name its SPIFFE ID; host names do not count with identity.spiffe"
	}
	return "the consumer may not subscribe, allow does not name it"
}

// why returns that a service is told, and by what.
func (o outcome) why() string {
	if o.rule == nil {
		return "told, as the catalog has no exports: every consumer is told everything"
	}
	return "told by " + o.rule.String()
}

// rows returns lines with the form of a service.
func (s *Shape) rows(whole *federation.Service) string {
	_, fqdn, instances, endpoints := printable.Cells(s.Service.Service)
	var b strings.Builder
	if before := plainFQDN(whole.FQDN); before != fqdn {
		fqdn += ", an alias of " + before
	}
	fmt.Fprintf(&b, "  fqdn       %s\n  instances  %s\n  endpoints  %s\n", fqdn, instances, endpoints)
	rest := slices.DeleteFunc(slices.Clone(s.Changes), func(f Field) bool { return f.Field == "fqdn" })
	if len(rest) > 0 {
		fmt.Fprintf(&b, "  changes    %s\n", printable.Few(rest, most, ", ", Field.String))
	}
	return b.String()
}
