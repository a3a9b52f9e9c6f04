package policy

import (
	"fmt"
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
	Changes string            `json:"changes,omitempty"` // to what it is in the catalog
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
	reason string              // why it is not told, or how it is changed
}

// decide returns what becomes of a service of the catalog.
func (c *Catalog) decide(to consumer, s *wire.Encoded) outcome {
	whole := s.Service()
	switch {
	case !to.allowed:
		return outcome{reason: c.refusal()}
	case c.policy == nil:
		return outcome{told: whole}
	}
	d := c.policy.Explain(to.class, whole)
	switch {
	case d.Rule == 0:
		return outcome{reason: d.Reason}
	case d.Service == nil:
		r := &c.rules[d.Rule-1]
		return outcome{rule: r, reason: r.String() + " hides it: " + d.Reason}
	case d.Service == whole:
		return outcome{rule: &c.rules[d.Rule-1], told: whole}
	}
	return outcome{&c.rules[d.Rule-1], d.Service, strings.TrimPrefix(d.Reason, "told ")}
}

// shape returns the form in which the service is told.
func (o outcome) shape() *Shape {
	return &Shape{plainFQDN(o.told.FQDN), printable.Service{Service: o.told}, o.reason}
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
func (s *Shape) rows() string {
	_, fqdn, instances, endpoints := printable.Cells(s.Service.Service)
	rows := fmt.Sprintf("  fqdn       %s\n  instances  %s\n  endpoints  %s\n", fqdn, instances, endpoints)
	if s.Changes != "" {
		rows += fmt.Sprintf("  changes    %s\n", s.Changes)
	}
	return rows
}
