package agent

import (
	"iter"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/status/history"
)

// OwnerReports returns the reports of all owners, sorted by ID. It waits for nobody.
func (a *Agent) OwnerReports(now time.Time) []status.FollowedOwner {
	owners := *a.owners.Load()
	all := make([]status.FollowedOwner, len(owners))
	for i, o := range owners {
		all[i] = o.reportStatus(now)
	}
	return all
}

// reportStatus returns the report of the owner.
func (o *mirroredOwner) reportStatus(now time.Time) status.FollowedOwner {
	s, c := o.mirror.Status(), o.running.Load()
	var retention time.Duration
	if c != nil {
		retention = c.config().Rules.Retention
	}
	u := history.ReportOwner(o.id, &s, retention, &o.log, now)
	u.Retry = o.mirror.Retry
	u.Conflicts = o.countFaults()
	for _, m := range *o.members.Load() {
		for _, p := range m.block.config.Zone.UnsharedPatterns(m.index) {
			if text := p.String(); !slices.Contains(u.Unshared, text) {
				u.Unshared = append(u.Unshared, text)
			}
		}
	}
	if c != nil {
		history.AddCertificates(&u, c.config().Identity, c.source)
	}
	return u
}

// Catalog returns all services that the zones have of an owner, in the order of their names, each once: none if there
// is no owner with that ID. Catalog reads what is published, and waits for nobody.
func (a *Agent) Catalog(of string) iter.Seq2[status.CatalogService, error] {
	var offers []zone.OfferedService
	if o := a.findOwner(of); o != nil {
		for z, m := range o.publishedZones() {
			offers = append(offers, z.OfferedServices(m.index)...)
		}
	}
	return status.YieldServices(offers, func(o zone.OfferedService) string { return o.Service.Name() }, func(o zone.OfferedService) (status.CatalogService, error) {
		return status.NewService(o.Service.Unpack(), o.Updated, o.Stale)
	})
}
