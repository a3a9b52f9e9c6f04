package serve

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Why implements page.ReportSource.
func (p *Publisher) Why(_ context.Context, name string, _ uint16) (status.NameExplanation, error) {
	reported := p.Status()
	why := status.NameExplanation{Role: status.Owner, Name: name}
	for i := range reported.Catalogs {
		of := &reported.Catalogs[i]
		c, published := p.catalogs[of.Name], status.CatalogPublication{Catalog: of.Name, Unavailable: of.Unavailable, Sources: of.Sources}
		for _, f := range c.findServices(strings.TrimSuffix(name, "."), p.exportsOf(of.Name)) {
			published.Services = append(published.Services, c.reportOffer(f, of.Consumers[wire.V1Alpha1.String()] > 0))
		}
		why.Catalogs = append(why.Catalogs, published)
	}
	why.Now = time.Now().UTC() // after all that it tells of
	return why, nil
}

// exportsOf returns the rules of a catalog that are in effect.
func (p *Publisher) exportsOf(serverName string) []*config.Export {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.config.Catalogs, func(of config.Catalog) bool { return of.ServerName == serverName })
	return p.config.Catalogs[i].Exports
}

// maxFound bounds the services of one answer.
const maxFound = 100

// findServices returns the services that have a name in DNS, or are called so, those that are published
// first. The name is in lower case, without the final dot.
func (c *servedCatalog) findServices(name string, exports []*config.Export) []source.FoundService {
	names := config.OriginalNames(name, exports)
	found := c.sources.Find(func(s *wire.EncodedService) bool {
		return strings.EqualFold(s.Name(), name) || slices.ContainsFunc(names, func(name string) bool {
			return strings.HasSuffix("."+name, "."+s.FQDN()) && zone.HasName(s.Service(), name)
		})
	})
	slices.SortFunc(found, func(a, b source.FoundService) int {
		return cmp.Or(cmp.Compare(min(len(a.Hidden), 1), min(len(b.Hidden), 1)),
			strings.Compare(a.Service.Name(), b.Service.Name()), strings.Compare(a.Source, b.Source))
	})
	return found[:min(len(found), maxFound)]
}

// reportOffer returns the report of a service that was found: to whom it is told, and whether there
// are consumers of v1alpha1, which cannot be told every service.
func (c *servedCatalog) reportOffer(f source.FoundService, v1alpha1 bool) status.OfferedService {
	s := f.Service.Service()
	o := status.OfferedService{
		Name: s.Name, FQDN: f.Service.FQDN(), Source: f.Source, Hidden: f.Hidden, Paused: f.Paused,
		Endpoints: len(s.Endpoints), Instances: len(s.Instances),
	}
	if o.Hidden != "" {
		return o
	}
	if _, err := wire.EncodeV1Alpha1(wire.Event{Operation: wire.Upsert, Name: s.Name, Service: s}, "", false); err != nil && v1alpha1 {
		o.Withheld = fmt.Sprintf("consumers of %s get neither the service nor the end of the catalog: %v", wire.V1Alpha1, err)
	}
	told := c.registry.AudiencesOf(s.Name)
	for _, t := range told[:min(len(told), maxClasses)] {
		o.Audience = append(o.Audience, reportAudience(t, o.FQDN))
	}
	return o
}

// reportAudience returns what a class of consumers is told of a service with that fqdn.
func reportAudience(t registry.Audience, fqdn string) status.ToldClass {
	a := status.ToldClass{Class: className(t.Rules), Consumers: t.Consumers, Rule: t.Rule, Hidden: t.Service == nil}
	if t.Everybody {
		a.Class = "everybody"
	}
	if !a.Hidden && t.Service.FQDN() != fqdn {
		a.As = t.Service.FQDN()
	}
	return a
}
