package ownreport

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/history"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/stream"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Convert returns what a publisher says of itself as a report, but for what it does not
// know: its version, where it listens, and who was turned away.
func Convert(p serve.Status, now time.Time) status.Status {
	s := status.Status{
		Role: status.Owner, Now: now.UTC(), Began: p.Began.UTC(), Ready: len(p.Waiting) == 0, Waiting: p.Waiting,
		Publisher: &status.Publisher{
			Config: p.File, Restart: p.Restart, Connections: p.Server.Connections,
			Certificate: p.Certificate.UTC(), Authority: p.CA.UTC(),
		},
	}
	if p.Trouble != nil {
		s.Publisher.CertificateError, s.Publisher.CertificateRemedy = p.Trouble.Error(), stream.Remedy(p.Trouble)
	}
	if p.File != "" {
		s.Publisher.Applied = p.Applied.UTC()
	}
	for file, err := range p.Broken {
		if err == nil {
			continue
		}
		if s.Publisher.Broken == nil {
			s.Publisher.Broken = make(map[string]string)
		}
		s.Publisher.Broken[file] = err.Error()
	}
	for _, name := range slices.Sorted(maps.Keys(p.Catalogs)) {
		s.Catalogs = append(s.Catalogs, catalog(name, p, now))
	}
	return s
}

// catalog returns the report of the catalog with that server name.
func catalog(name string, p serve.Status, now time.Time) status.Catalog {
	of := p.Server.Catalogs[name]
	c := status.Catalog{
		Name: name, Unavailable: p.Catalogs[name].Unavailable, Services: of.Services, Classes: Classes(of),
		Unsent: of.Unsent, InFlight: of.InFlight, Oldest: of.Oldest.UTC(), Sources: []status.Source{},
		Consumers: byVersion(of.Consumers), Withheld: byVersion(of.Withheld),
	}
	for _, reported := range p.Catalogs[name].Sources {
		s := convertSource(reported)
		s.Confirm = func() int { return p.Catalogs[name].Confirm(reported.Name) }
		if g, ok := p.Catalogs[name].Registrations[reported.Name]; ok {
			s.Registration = &status.Registration{
				Address: g.Address.String(), Nodes: g.Nodes, Providers: g.Streams, Old: g.Old, Pending: g.Pending,
				Convergence: g.Convergence.Seconds(), StoreAway: g.StoreAway,
			}
		}
		if m, ok := p.Catalogs[name].Relays[reported.Name]; ok {
			of := history.Report(strings.TrimPrefix(reported.Name, "relay:"), &m.Status, max(reported.Lifetime, 0), new(history.Log), now)
			of.Retry = m.Retry
			history.Certify(&of, p.Certificate, p.CA, p.Trouble)
			s.Relay = &of
		}
		c.Sources = append(c.Sources, s)
	}
	return c
}

// subscribers adds the consumers of a catalog to its report.
func subscribers(of *status.Catalog, consumers owner.Consumers) {
	of.Behind, of.Lost = consumers.Behind, consumers.Lost
	for _, c := range consumers.Worst {
		s := status.Subscriber{Consumer: c.Name, Address: c.Address, State: "current", Behind: c.Behind, Since: c.Since.UTC()}
		switch {
		case c.Address == "":
			s.State = "lost"
		case c.Behind > 0:
			s.State = "behind"
		default:
			s.Since = time.Time{}
		}
		of.Subscribers = append(of.Subscribers, s)
	}
}

// byVersion returns numbers by the name of a version of the API.
func byVersion(of map[wire.Version]int) map[string]int {
	named := make(map[string]int, len(of))
	for version, n := range of {
		named[version.String()] = n
	}
	return named
}

// convertSource returns the report of a source.
func convertSource(of source.SourceStatus) status.Source {
	s := status.Source{
		Name: of.Name, State: "current", Away: of.Away, Since: of.Since.UTC(), Lifetime: of.Lifetime.Seconds(),
		Services: of.Services, Hidden: of.Hidden, Refused: of.Refused,
		Held: of.Held, Release: of.Release.UTC(),
	}
	if s.Lifetime < 0 {
		s.Lifetime = -1 // NoLifetime, a nanosecond
	}
	switch {
	case of.Lapsed:
		s.State = "lapsed"
	case !of.Complete:
		s.State = "waiting"
	case of.Away != "":
		s.State = "away"
	}
	return s
}

// MaxClasses and MaxClassName bound the classes of a catalog that are shown one by one, and
// their names, in bytes.
const (
	MaxClasses   = 100
	MaxClassName = 64
)

// otherClasses stands for the classes beyond the bounds.
const otherClasses = "other"

// Classes returns the classes of a catalog in the order of their rules, the other classes
// last, with their services added up. There are none while it has no exports.
func Classes(of owner.CatalogStats) []status.Class {
	var shown []status.Class
	other := status.Class{Name: otherClasses}
	more := false
	for _, c := range of.Classes {
		name := className(c.Rules)
		if len(shown) == MaxClasses || len(name) > MaxClassName {
			other.Consumers, other.Services, more = other.Consumers+c.Consumers, other.Services+c.Services, true
			continue
		}
		shown = append(shown, status.Class{Name: name, Consumers: c.Consumers, Services: c.Services})
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
	numbers := make([]string, len(rules))
	for i, rule := range rules {
		numbers[i] = strconv.Itoa(rule)
	}
	return strings.Join(numbers, "+")
}
