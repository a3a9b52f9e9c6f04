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

// Catalog returns all services of an owner, in the order of their names, each once: none if there is no owner with
// that ID. Catalog reads what is published, and waits for nobody.
func (a *Agent) Catalog(of string) iter.Seq2[status.CatalogService, error] {
	var offers []zone.OfferedService
	if o := a.findOwner(of); o != nil {
		offers = o.offeredServices()
	}
	return func(yield func(status.CatalogService, error) bool) {
		for i := range offers {
			if !yield(status.NewService(offers[i].Service.Unpack(), offers[i].Updated, offers[i].Stale)) {
				return
			}
		}
	}
}

// offeredServices returns the services that the zones have of the owner, by name.
func (o *mirroredOwner) offeredServices() (all []zone.OfferedService) {
	for z, m := range o.publishedZones() {
		all = append(all, z.OfferedServices(m.index)...)
	}
	slices.SortFunc(all, func(x, y zone.OfferedService) int { return status.CompareNames(x.Service.Name(), y.Service.Name()) })
	return slices.CompactFunc(all, func(x, y zone.OfferedService) bool { return x.Service.Name() == y.Service.Name() })
}
