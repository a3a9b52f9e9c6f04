package importer

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/status/history"
)

// mostReported is how many services a report has.
const mostReported = 100

// Status implements page.ReportSource. A replica that does not lead is ready once it knows the owners and the
// leader.
func (m *Importer) Status() status.Status {
	now := time.Now()
	s := status.Status{Role: status.Importer, Version: m.config.Version, Host: status.Hostname(), PID: os.Getpid(), Now: now.UTC(), Began: m.began.UTC()}
	for _, f := range m.owners {
		u := f.reportOwner(now)
		if s.Owners = append(s.Owners, u); !u.Known {
			s.Waiting = append(s.Waiting, "the first complete catalog of owner "+f.Name)
		}
	}
	services := m.reportServices()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leader == "" || m.queue != nil && !m.listed {
		s.Waiting = append(s.Waiting, "the API server")
	}
	s.Ready = len(s.Waiting) == 0
	s.Imports = m.reportImports(services)
	return s
}

// reportOwner returns the report of an owner.
func (f *followedOwner) reportOwner(now time.Time) status.FollowedOwner {
	s := f.mirror.Status()
	u := history.ReportOwner(f.Name, &s, f.Retention, &f.events, now)
	u.Retry = f.mirror.Retry
	history.AddCertificates(&u, f.importer.config.Identity, f.importer.identity)
	return u
}

// reportImports returns what has become of the services, the newest state first. The caller holds mu.
func (m *Importer) reportImports(services []status.ImportedService) *status.Imports {
	r := &status.Imports{
		Cluster: m.server, Namespace: m.config.Target.Namespace, Leads: m.queue != nil, Leader: m.leader,
		Services: make(map[string]int), Refused: make(map[string]int),
	}
	if of := slices.Sorted(maps.Keys(m.trouble)); len(of) > 0 {
		r.Failure = of[0] + ": " + m.trouble[of[0]].Error()
	}
	for _, s := range services {
		if s.Rule != "" {
			r.Refused[s.State]++
			r.Problems = append(r.Problems, s)
			continue
		}
		if r.Services[s.State]++; s.State == status.ImportPending {
			r.PendingSince = s.Since // of the last one, which is the oldest
		}
	}
	r.Problems = r.Problems[:min(len(r.Problems), mostReported)]
	return r
}

// reportServices returns what has become of each service that an owner offers, and of objects that are of none, the
// newest state first.
func (m *Importer) reportServices() (all []status.ImportedService) {
	m.mu.Lock()
	for name, n := range m.names {
		all = append(all, m.reportName(name, n)...)
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b status.ImportedService) int {
		return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Service, b.Service), cmp.Compare(a.FQDN, b.FQDN))
	})
	return slices.Compact(all) // the objects of one service are many
}

// reportName does the work of reportServices for a name. The caller holds mu.
func (m *Importer) reportName(name types.NamespacedName, n *importedName) (all []status.ImportedService) {
	each := status.ImportedService{Object: name.String(), State: status.ImportWritten}
	switch {
	case m.queue == nil:
		each.State = status.ImportStandby
	case n.refused.State != "":
		each = n.refused
	case !n.changed.IsZero():
		each.State, each.Since = status.ImportPending, n.changed.UTC()
	}
	service := n.service(name)
	holder, _ := m.offerOf(service)
	var parts []offer // of several services, with ServiceImports
	if len(n.offers) > 1 && m.config.Target.MCS {
		parts, _ = m.partsOf(name, n)
	}
	for _, o := range n.offers {
		s := each
		s.Owner, s.Service, s.FQDN = o.owner.Name, o.service.Name(), o.service.FQDN()
		updated := time.Unix(int64(o.updated), 0).UTC()
		switch {
		case m.isOurs(service) && holder != o:
			has := service.GetAnnotations()
			s.State, s.Since, s.Rule = status.ImportRival, updated, "the objects of the name are those of the service at "+has[fqdnAnnotation]+" of owner "+has[ownerKey]
		case len(parts) > 0 && !slices.ContainsFunc(parts, func(part offer) bool { return part.owner == o.owner && part.service == o.service }):
			s.State, s.Since, s.Rule = status.ImportRival, updated, "another service has the part of cluster "+o.export.Cluster+" already"
		case s.State == status.ImportWritten && o.generation < o.owner.status.Live: // no stream vouches for it
			s.State = status.ImportStale
		}
		all = append(all, s)
	}
	for _, there := range n.objects {
		s, of := each, there.GetAnnotations()
		if _, left := m.offerOf(there); left > 0 {
			s.State, s.Since, s.Rule = status.ImportKept, time.Time{}, ""
		} else if len(n.offers) > 0 || !m.isOurs(there) && n.refused.State == "" {
			continue
		}
		s.Owner, s.Service, s.FQDN = of[ownerKey], of[serviceAnnotation], of[fqdnAnnotation]
		all = append(all, s)
	}
	return all
}

// Catalog implements page.ReportSource.
func (m *Importer) Catalog(of string) iter.Seq2[status.CatalogService, error] {
	f := m.owners[slices.IndexFunc(m.owners, func(f *followedOwner) bool { return f.Name == of })]
	var offers []offer // as they are now
	m.mu.Lock()
	for _, o := range f.offers {
		offers = append(offers, *o)
	}
	live := f.status.Live
	m.mu.Unlock()
	return status.YieldServices(offers, func(o offer) string { return o.service.Name() }, func(o offer) (status.CatalogService, error) {
		return status.NewService(o.service.Unpack(), time.Unix(int64(o.updated), 0), o.generation < live)
	})
}

// Why implements page.ReportSource. The name is an fqdn, that of a service, or that of an object.
func (m *Importer) Why(_ context.Context, name string, _ uint16) (status.NameExplanation, error) {
	now := time.Now()
	w := status.NameExplanation{Role: status.Importer, Now: now.UTC(), Name: name}
	isMeant := func(service, fqdn string) bool { return fqdn == name || status.IsCalled(service, name) }
	w.Imports = slices.DeleteFunc(m.reportServices(), func(s status.ImportedService) bool {
		return !isMeant(s.Service, s.FQDN) && !isMeant(s.Object, "") && !isMeant(path.Base(s.Object), "")
	})
	w.Imports = w.Imports[:min(len(w.Imports), mostReported)]
	fqdn, err := federation.ParseFQDN(name)
	for _, f := range m.owners {
		u := f.reportOwner(now)
		p := f.events.PartOf(&u, isMeant)
		if err == nil && len(w.Imports) == 0 {
			p.NotImported = f.Import.Missed(fqdn)
		}
		w.Refused = append(w.Refused, p)
	}
	return w, nil
}
