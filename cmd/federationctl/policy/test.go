package policy

import (
	"fmt"
	"slices"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Answer says what a consumer is told of a service.
type Answer struct {
	Asked  string `json:"asked"`
	Name   string `json:"name"`
	FQDN   string `json:"fqdn"` // in the catalog
	Told   bool   `json:"told"`
	Rule   *Rule  `json:"rule,omitempty"`   // that decided
	Reason string `json:"reason,omitempty"` // why it is not told
	*ToldService

	why string
}

// String returns the answer as a line, and lines with the form of the service.
func (a *Answer) String() string {
	line := lineStart(a.Asked, a.Name)
	if !a.Told {
		return line + "not told: " + a.Reason + "\n"
	}
	return line + a.why + "\n" + a.formatRows()
}

// lineStart returns how a line about a service begins that was asked for by a name.
func lineStart(name, service string) string {
	if name == service {
		return printable.QuoteWord(name) + ": "
	}
	return printable.QuoteWord(name) + ": service " + printable.QuoteWord(service) + " is "
}

// ExplainServices returns what a consumer whose certificate has these identities is told of the
// services with that name or fqdn, be it the one that the consumer knows. Without an
// answer for a name there is an error. Told reports whether each name has an answer that
// is told.
func (c *Catalog) ExplainServices(ids []federation.ID, names []string) (answers []*Answer, told bool, err error) {
	to := c.newConsumer(ids...)
	told = true
	for _, name := range names {
		found, err := c.findServices(name, to)
		if err != nil {
			return nil, false, err
		}
		seen := false
		for _, s := range found {
			o := c.decideOutcome(to, s)
			a := &Answer{Asked: name, Name: s.Name(), FQDN: s.FQDN(), Told: o.told != nil, Rule: o.rule, why: o.toldReason()}
			if a.Told {
				a.ToldService, seen = o.toldForm(), true
			} else {
				a.Reason = o.reason
			}
			answers = append(answers, a)
		}
		told = told && seen
	}
	return answers, told, nil
}

// findServices returns the services with that name or fqdn, and those that one of the consumers
// knows by that fqdn.
func (c *Catalog) findServices(name string, consumers ...consumerClass) ([]*wire.EncodedService, error) {
	fqdn, err := federation.ParseFQDN(name)
	if err != nil {
		fqdn = federation.FQDN{} // which no service has
	}
	plain := plainFQDN(fqdn)
	origins := config.OriginalNames(plain, c.exports)
	var found []*wire.EncodedService
	for _, s := range c.services {
		its := s.FQDN()
		if s.Name() == name || its == plain || slices.Contains(origins, its) && slices.ContainsFunc(consumers, func(to consumerClass) bool {
			o := c.decideOutcome(to, s)
			return o.told != nil && o.told.FQDN == fqdn
		}) {
			found = append(found, s)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: %s has no service with the name or fqdn %s", c.file, catalogName(c.serverName), printable.QuoteWord(name))
	}
	return found, nil
}
