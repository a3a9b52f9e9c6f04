package serve

import (
	"cmp"
	"iter"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/file"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
	"github.com/hamlet-federation/coredns-federation/internal/source/relay"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/status/history"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

var _ page.ReportSource = (*Publisher)(nil)

// Report is what there is to say of an owner at one moment.
type Report struct {
	status.Status

	// For metrics alone.

	Server        owner.Stats
	Registrations map[string]map[string]registration.Numbers // by server name and source

	// Broken has the files that are followed: config, allow, catalog and rules, of which the
	// last two stand for all catalog files and for all rules of registrations. It says why what a
	// file holds now is not used, or nil.
	Broken map[string]error
}

// Status implements page.ReportSource.
func (p *Publisher) Status() status.Status { return p.Report().Status }

// Report returns what there is to say of the owner now.
func (p *Publisher) Report() Report {
	now, waiting := time.Now(), p.WaitingFor()
	r := Report{
		Status: status.Status{
			Role: status.Owner, Version: p.version, Host: status.Hostname(), PID: os.Getpid(), Now: now.UTC(), Began: p.began.UTC(),
			Ready: len(waiting) == 0, Waiting: waiting,
		},
		Server: p.server.Stats(), Registrations: make(map[string]map[string]registration.Numbers), Broken: make(map[string]error),
	}
	r.Publisher = &status.PublishingOwner{
		Config: p.file, Listen: p.listener.Addr().String(), Connections: r.Server.Connections, TurnedAway: p.turnedAway.newestFirst(),
		Certificates: history.ReportCertificates(p.identity),
	}
	p.mu.Lock()
	r.Publisher.Restart = p.restart
	if p.file != "" {
		r.Publisher.Applied = p.applied.UTC()
	}
	p.mu.Unlock()
	if p.settings != nil {
		r.Broken["config"] = p.settings.Err()
	}
	if p.allowed != nil {
		r.Broken["allow"] = p.allowed.Err()
	}
	for _, name := range slices.Sorted(maps.Keys(p.catalogs)) {
		p.reportCatalog(&r, name)
	}
	for followed, err := range r.Broken {
		if err == nil {
			continue
		}
		if r.Publisher.Broken == nil {
			r.Publisher.Broken = make(map[string]string)
		}
		r.Publisher.Broken[followed] = err.Error()
	}
	return r
}

// reportCatalog adds the catalog with that server name to a report.
func (p *Publisher) reportCatalog(r *Report, name string) {
	of, sources, entries := r.Server.Catalogs[name], p.catalogs[name].sources.Status(), p.catalogs[name].entries
	c := status.Catalog{
		Name: name, Unavailable: sources.Unavailable, Services: of.Services, Classes: reportClasses(of),
		Unsent: of.Unsent, InFlight: of.InFlight, Oldest: of.Oldest.UTC(), Sources: []status.CatalogSource{},
		Consumers: byVersion(of.Consumers), Withheld: byVersion(of.Withheld), Behind: of.Behind, Lost: of.Lost,
	}
	for _, at := range of.Worst {
		c.Subscribers = append(c.Subscribers, reportSubscriber(at))
	}
	r.Registrations[name] = make(map[string]registration.Numbers)
	for i, reported := range sources.Sources {
		s := reportSource(reported)
		s.Confirm = func() int { return p.catalogs[name].sources.ConfirmWithdrawal(reported.Name) }
		switch from := entries[i].Source.(type) {
		case *file.File:
			r.Broken["catalog"] = cmp.Or(r.Broken["catalog"], from.Err())
		case *registrationSource:
			g := from.Stats()
			s.Registration = &status.RegistrationSource{
				Address: p.listener.Addr().String(), Nodes: g.Nodes, Providers: g.Streams, Old: g.Old, Pending: g.Pending,
				Convergence: g.Convergence.Seconds(), StoreAway: g.StoreAway,
			}
			if from.listener != nil {
				s.Registration.Address = from.listener.Addr().String()
			}
			r.Registrations[name][reported.Name] = g.Numbers
			r.Broken["rules"] = cmp.Or(r.Broken["rules"], from.rules.Err())
		case *relay.Source:
			followed := from.Status()
			u := history.ReportOwner(strings.TrimPrefix(reported.Name, "relay:"), &followed, max(reported.Lifetime, 0), new(history.ServiceLog), r.Now)
			history.AddCertificates(&u, mtls.Origin{}, p.identity) // whose files stand in the configuration of this owner
			u.Retry = from.Retry
			s.Relay = &u
		}
		c.Sources = append(c.Sources, s)
	}
	r.Catalogs = append(r.Catalogs, c)
}

// reportSubscriber returns the report of a consumer.
func reportSubscriber(c owner.Consumer) status.Subscriber {
	s := status.Subscriber{Consumer: c.Name, Address: c.Address, State: "current", Behind: c.Behind, Since: c.Since.UTC()}
	switch {
	case c.Address == "":
		s.State = "lost"
	case c.Behind > 0:
		s.State = "behind"
	default:
		s.Since = time.Time{}
	}
	return s
}

// byVersion returns numbers by the name of a version of the API.
func byVersion(of map[wire.APIVersion]int) map[string]int {
	named := make(map[string]int, len(of))
	for version, n := range of {
		named[version.String()] = n
	}
	return named
}

// reportSource returns the report of a source.
func reportSource(of source.SourceStatus) status.CatalogSource {
	s := status.CatalogSource{
		Name: of.Name, State: "current", Away: of.Away, Since: of.Since.UTC(), Lifetime: of.Lifetime.Seconds(),
		Services: of.Services, Hidden: of.Hidden, Refused: of.Refused,
		Paused: of.Paused, WithdrawAt: of.WithdrawAt.UTC(),
	}
	if s.Lifetime < 0 {
		s.Lifetime = -1 // NoLifetime, a nanosecond
	}
	switch {
	case of.Lapsed: // and so it has been complete
		s.State = "lapsed"
	case !of.Complete:
		s.State = "waiting"
	case of.Away != "":
		s.State = "away"
	}
	return s
}

// maxClasses and maxClassName bound the classes of a catalog that are shown one by one, and
// their names, in bytes.
const (
	maxClasses   = 100
	maxClassName = 64
)

// otherClasses stands for the classes beyond the bounds.
const otherClasses = "other"

// reportClasses returns the classes of a catalog in the order of their rules, the other classes
// last, with their services added up. There are none while it has no exports.
func reportClasses(of owner.CatalogStats) []status.ConsumerClass {
	var shown []status.ConsumerClass
	other := status.ConsumerClass{Name: otherClasses}
	more := false
	for _, c := range of.Classes {
		name := className(c.Rules)
		if len(shown) == maxClasses || len(name) > maxClassName {
			other.Consumers, other.Services, more = other.Consumers+c.Consumers, other.Services+c.Services, true
			continue
		}
		shown = append(shown, status.ConsumerClass{Name: name, Consumers: c.Consumers, Services: c.Services})
	}
	if more {
		shown = append(shown, other)
	}
	return shown
}

func className(rules []int) string {
	if len(rules) == 0 {
		return "none"
	}
	return printable.JoinFew(rules, len(rules), "+", strconv.Itoa)
}

// Catalog implements page.ReportSource.
func (p *Publisher) Catalog(of string) iter.Seq2[status.CatalogService, error] {
	found := p.catalogs[of].sources.Find(func(*wire.EncodedService) bool { return true })
	found = slices.DeleteFunc(found, func(f source.FoundService) bool { return f.Hidden != "" })
	return status.YieldServices(found, func(f source.FoundService) string { return f.Service.Name() }, func(f source.FoundService) (status.CatalogService, error) {
		return status.NewService(f.Service.Service(), time.Time{}, false)
	})
}
