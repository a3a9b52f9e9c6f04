package importer

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/status/history"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
)

// mostProblems is how many problems a report has.
const mostProblems = 20

var _ page.ReportSource = (*Importer)(nil)

// waitingFor returns what the importer waits for before it is ready, as far as this replica can say: one that
// does not lead only knows the owners.
func (m *Importer) waitingFor() (waiting []string) {
	for _, f := range m.owners {
		if s := f.mirror.Status(); !s.Known {
			waiting = append(waiting, "the first complete catalog of owner "+f.Name)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leader == "" || m.queue != nil && !m.listed {
		waiting = append(waiting, "the API server")
	}
	return waiting
}

// Status implements page.ReportSource.
func (m *Importer) Status() status.Status {
	now, waiting := time.Now(), m.waitingFor()
	s := status.Status{
		Role: status.Importer, Version: m.config.Version, Host: status.Hostname(), PID: os.Getpid(), Now: now.UTC(), Began: m.began.UTC(),
		Ready: len(waiting) == 0, Waiting: waiting,
	}
	for _, f := range m.owners {
		s.Owners = append(s.Owners, f.reportOwner(now))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Imports = m.reportImports()
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

// reportImports returns what has become of the names. The caller holds mu.
func (m *Importer) reportImports() *status.Imports {
	r := &status.Imports{
		Config: m.config.File, Cluster: m.server, Namespace: m.config.Target.Namespace, As: "services",
		Leads: m.queue != nil, Leader: m.leader, Refused: make(map[string]int), Requests: maps.Clone(m.codes),
	}
	if m.config.Target.MCS {
		r.As, r.Namespace = "mcs", ""
	}
	for of, t := range m.trouble {
		if r.Failure == "" || t.since.Before(r.Since) {
			r.Failure, r.Since = of+": "+t.err.Error(), t.since.UTC()
		}
	}
	for _, f := range m.owners {
		r.Problems = append(r.Problems, f.unnamed()...)
	}
	for _, n := range m.names {
		if n.refused != nil {
			r.Problems = append(r.Problems, *n.refused)
		}
		r.Problems = append(r.Problems, m.rivalsOf(n)...)
		switch {
		case !r.Leads:
		case n.kept:
			r.Kept++
		case !n.changed.IsZero():
			if r.Pending++; r.PendingSince.IsZero() || n.changed.Before(r.PendingSince) {
				r.PendingSince = n.changed.UTC()
			}
		case n.holder != nil && n.refused == nil:
			r.Written++
		}
	}
	for _, p := range r.Problems {
		r.Refused[p.Reason]++
	}
	slices.SortFunc(r.Problems, func(a, b status.ImportProblem) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Service, b.Service))
	})
	r.Problems = r.Problems[:min(len(r.Problems), mostProblems)]
	return r
}

// problem returns a problem of an offer. The caller holds mu.
func (o *offer) problem(reason, rule string) status.ImportProblem {
	p := status.ImportProblem{
		At: time.Unix(int64(o.updated), 0).UTC(), Owner: o.owner.Name, Service: o.service.Name(), FQDN: o.service.FQDN(), Reason: reason, Rule: rule,
	}
	if o.name.Name != "" {
		p.Object = o.name.String()
	}
	return p
}

// unnamed returns which services of the owner make no objects, as their names are not valid. The caller
// holds mu.
func (f *followedOwner) unnamed() (all []status.ImportProblem) {
	for _, o := range f.offers {
		if o.rule != "" {
			all = append(all, o.problem(status.ImportInvalidName, o.rule))
		}
	}
	return all
}

// rivalsOf returns which services do not have the name that they lead to. The caller holds mu.
func (m *Importer) rivalsOf(n *importedName) (all []status.ImportProblem) {
	for o := range n.offers {
		if n.holder != nil && n.holder != o && !m.config.Target.MCS {
			all = append(all, o.problem(status.ImportRival, "another service has the name of the objects already"))
		}
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
	live := f.summary.Live
	m.mu.Unlock()
	slices.SortFunc(offers, func(a, b offer) int { return status.CompareNames(a.service.Name(), b.service.Name()) })
	return func(yield func(status.CatalogService, error) bool) {
		for _, o := range offers {
			if !yield(status.NewService(o.service.Unpack(), time.Unix(int64(o.updated), 0), o.generation < live)) {
				return
			}
		}
	}
}

// Why implements page.ReportSource. The name is an fqdn, that of a service, or that of an object.
func (m *Importer) Why(_ context.Context, name string, _ uint16) (status.NameExplanation, error) {
	now := time.Now()
	w := status.NameExplanation{Role: status.Importer, Now: now.UTC(), Name: name}
	isMeant := func(service, fqdn string) bool { return fqdn == name || status.IsCalled(service, name) }
	m.mu.Lock()
	for of, n := range m.names {
		if status.IsCalled(of.Name, name) || status.IsCalled(of.String(), name) || n.hasOffer(isMeant) {
			w.Imports = append(w.Imports, m.explainName(of, n))
		}
	}
	for _, f := range m.owners {
		for _, p := range f.unnamed() {
			if isMeant(p.Service, p.FQDN) {
				w.Imports = append(w.Imports, status.ImportedName{Kind: m.objectKind(), Owner: p.Owner, Service: p.Service, FQDN: p.FQDN, Problem: &p})
			}
		}
	}
	m.mu.Unlock()
	slices.SortFunc(w.Imports, func(a, b status.ImportedName) int { return cmp.Compare(a.Object, b.Object) })
	for _, f := range m.owners {
		u := f.reportOwner(now)
		p := f.events.PartOf(&u, isMeant)
		if len(w.Imports) == 0 {
			fqdn, err := federation.ParseFQDN(name)
			if err == nil {
				p.NotImported = f.Import.Missed(fqdn)
			}
		}
		w.Refused = append(w.Refused, p)
	}
	return w, nil
}

// hasOffer reports whether a service is meant of those that lead to the name.
func (n *importedName) hasOffer(isMeant func(service, fqdn string) bool) bool {
	for o := range n.offers {
		if isMeant(o.service.Name(), o.service.FQDN()) {
			return true
		}
	}
	return false
}

// objectKind returns what a service becomes.
func (m *Importer) objectKind() string {
	if m.config.Target.MCS {
		return "ServiceImport"
	}
	return "Service"
}

// explainName returns what became of the offers of a name. The caller holds mu.
func (m *Importer) explainName(name types.NamespacedName, n *importedName) status.ImportedName {
	e := status.ImportedName{Object: name.String(), Kind: m.objectKind(), Kept: n.kept, Pending: m.queue != nil && !n.changed.IsZero(), Problem: n.refused}
	if o := n.holder; o != nil {
		e.Owner, e.Service, e.FQDN, e.Stale = o.owner.Name, o.service.Name(), o.service.FQDN(), o.isStale()
		if e.Stale {
			e.Expires = o.owner.summary.Expires.UTC()
		}
	}
	for _, p := range m.rivalsOf(n) {
		e.Rivals = append(e.Rivals, status.RivalService{Owner: p.Owner, Service: p.Service, FQDN: p.FQDN, Rule: p.Rule})
	}
	return e
}
