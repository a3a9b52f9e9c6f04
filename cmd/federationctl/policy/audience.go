package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// Audience says who is told of a service.
type Audience struct {
	Asked   string        `json:"asked"`
	Name    string        `json:"name"`
	FQDN    string        `json:"fqdn"` // in the catalog
	Told    []ToldGroup   `json:"told"`
	NotTold []UntoldGroup `json:"notTold"`
}

// ToldGroup has the consumers that are told of a service by one rule.
type ToldGroup struct {
	Consumers []string `json:"consumers"`
	Rule      *Rule    `json:"rule,omitempty"`
	*ToldService

	why string
}

// UntoldGroup has the consumers that may subscribe and are not told, for one reason.
type UntoldGroup struct {
	Consumers []string `json:"consumers"`
	Reason    string   `json:"reason"`
}

// String returns the audience as lines.
func (a *Audience) String() string {
	var b strings.Builder
	told, all := 0, 0
	for _, s := range a.Told {
		told += len(s.Consumers)
	}
	for _, r := range a.NotTold {
		all += len(r.Consumers)
	}
	fmt.Fprintf(&b, "%stold to %s of %s\n", lineStart(a.Asked, a.Name), status.FormatNumber(told), status.CountNoun(told+all, "consumer"))
	for _, s := range a.Told {
		fmt.Fprintf(&b, "%s\n%s%s", s.why, s.formatRows(), formatConsumers(s.Consumers))
	}
	for _, r := range a.NotTold {
		fmt.Fprintf(&b, "not told: %s\n%s", r.Reason, formatConsumers(r.Consumers))
	}
	return b.String()
}

// formatConsumers returns the consumers, one a line.
func formatConsumers(consumers []string) string {
	var b strings.Builder
	for _, id := range consumers {
		fmt.Fprintf(&b, "  consumer   %s\n", printable.QuoteWord(id))
	}
	return b.String()
}

// WhoCan returns who is told of the services with that name or fqdn, of which one may
// be an alias. Told reports whether anybody is.
func (c *Catalog) WhoCan(name string) (audiences []*Audience, told bool, err error) {
	var consumers []consumerClass
	for _, id := range c.allowed {
		consumers = append(consumers, c.newConsumer(id))
	}
	found, err := c.findServices(name, consumers...)
	if err != nil {
		return nil, false, err
	}
	for _, s := range found {
		a := &Audience{Asked: name, Name: s.Name(), FQDN: s.FQDN(), Told: []ToldGroup{}, NotTold: []UntoldGroup{}}
		for i, id := range c.allowed {
			a.addConsumer(id, c.decideOutcome(consumers[i], s))
		}
		told = told || len(a.Told) > 0
		audiences = append(audiences, a)
	}
	return audiences, told, nil
}

// addConsumer adds a consumer that may subscribe to those with the same outcome.
func (a *Audience) addConsumer(id federation.ID, o serviceOutcome) {
	if o.told == nil {
		i := slices.IndexFunc(a.NotTold, func(r UntoldGroup) bool { return r.Reason == o.reason })
		if i < 0 {
			i = len(a.NotTold)
			a.NotTold = append(a.NotTold, UntoldGroup{Reason: o.reason})
		}
		a.NotTold[i].Consumers = append(a.NotTold[i].Consumers, id.String())
		return
	}
	i := slices.IndexFunc(a.Told, func(s ToldGroup) bool { return s.Rule == o.rule })
	if i < 0 {
		i = len(a.Told)
		a.Told = append(a.Told, ToldGroup{Rule: o.rule, ToldService: o.toldForm(), why: o.toldReason()})
	}
	a.Told[i].Consumers = append(a.Told[i].Consumers, id.String())
}
