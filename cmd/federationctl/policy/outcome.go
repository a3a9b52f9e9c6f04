package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// ToldService is a service in the form in which somebody is told of it.
type ToldService struct {
	As      string                `json:"as"` // fqdn
	Service printable.JSONService `json:"service"`
	Changes string                `json:"changes,omitempty"` // to what it is in the catalog
}

// consumerClass is one who subscribes to a catalog.
type consumerClass struct {
	allowed bool
	class   policy.ConsumerClass
}

// newConsumer returns a consumer of the catalog whose certificate has these identities.
func (c *Catalog) newConsumer(ids ...federation.ID) consumerClass {
	if c.spiffe {
		ids = slices.DeleteFunc(slices.Clone(ids), func(id federation.ID) bool { return !id.IsSPIFFE() })
	}
	if !slices.ContainsFunc(ids, func(id federation.ID) bool { return slices.Contains(c.allowed, id) }) {
		return consumerClass{}
	}
	return consumerClass{true, c.policy.ClassOf(ids)}
}

// serviceOutcome is what becomes of a service for a consumer.
type serviceOutcome struct {
	rule   *Rule               // that decided, nil for none
	told   *federation.Service // nil where it is not told
	reason string              // why it is not told, or how it is changed
}

// decideOutcome returns what becomes of a service of the catalog.
func (c *Catalog) decideOutcome(to consumerClass, s *wire.EncodedService) serviceOutcome {
	whole := s.Service()
	switch {
	case !to.allowed:
		return serviceOutcome{reason: c.refusalReason()}
	case c.policy == nil:
		return serviceOutcome{told: whole}
	}
	d := c.policy.Explain(to.class, whole)
	switch {
	case d.Rule == 0:
		return serviceOutcome{reason: d.Reason}
	case d.Service == nil:
		r := &c.rules[d.Rule-1]
		return serviceOutcome{rule: r, reason: r.String() + " hides it: " + d.Reason}
	case d.Service == whole:
		return serviceOutcome{rule: &c.rules[d.Rule-1], told: whole}
	}
	return serviceOutcome{&c.rules[d.Rule-1], d.Service, strings.TrimPrefix(d.Reason, "told ")}
}

// toldForm returns the form in which the service is told.
func (o serviceOutcome) toldForm() *ToldService {
	return &ToldService{plainFQDN(o.told.FQDN), printable.JSONService{Service: o.told}, o.reason}
}

// refusalReason returns why a consumer may not subscribe.
func (c *Catalog) refusalReason() string {
	if c.spiffe {
		return "the consumer may not subscribe, allow does not name its SPIFFE ID; host names do not count with identity.spiffe"
	}
	return "the consumer may not subscribe, allow does not name it"
}

// toldReason returns that a service is told, and by what.
func (o serviceOutcome) toldReason() string {
	if o.rule == nil {
		return "told: a catalog without exports tells every consumer everything"
	}
	return "told by " + o.rule.String()
}

// formatRows returns lines with the form of a service.
func (s *ToldService) formatRows() string {
	_, fqdn, instances, endpoints := printable.ServiceCells(s.Service.Service)
	rows := fmt.Sprintf("  fqdn       %s\n  instances  %s\n  endpoints  %s\n", fqdn, instances, endpoints)
	if s.Changes != "" {
		rows += fmt.Sprintf("  changes    %s\n", s.Changes)
	}
	return rows
}
