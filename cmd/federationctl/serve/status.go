package serve

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/source/file"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration"
	"github.com/hamlet-federation/coredns-federation/federation/source/relay"
)

// Consumers returns the consumers of each catalog, by server name.
func (p *Publisher) Consumers() map[string]owner.Consumers { return p.server.Consumers() }

// Status is what there is to say of an owner at one moment, for metrics, probes and
// people.
type Status struct {
	Began   time.Time
	Waiting []string // what the owner waits for before it is ready; none when it is

	File    string    // the configuration file; empty when there is none
	Applied time.Time // when what is in effect of it was applied
	Restart []string  // keys whose new values wait for a restart

	// Broken has the files that are followed: config, allow, catalog and rules, of which the
	// last two stand for all catalog files and for all rules of registrations. It says why what a file holds now is not used, or nil.
	Broken map[string]error

	// When the owner's certificate expires, and the next authority. Both are zero while
	// there is no certificate.
	Certificate, CA time.Time

	Trouble error // with the certificate, as mtls.Source.Trouble has it

	Server   owner.Stats
	Catalogs map[string]CatalogStatus // by server name
}

// CatalogStatus is what there is to say of a catalog and its sources.
type CatalogStatus struct {
	source.Status

	Registrations map[string]Registration // the sources in which programs register, by name
	Relays        map[string]Followed     // the subscriptions of relays, by the name of the source

	Confirm func(source string) int // withdraws what is held of a source
}

// Followed is the subscription of a relay.
type Followed struct {
	consumer.Status

	Retry func() // tries at once to open a stream where there is none
}

// Registration is what there is to say of a source in which programs register.
type Registration struct {
	registration.Stats

	Address net.Addr // that providers connect to
}

// Ready returns what the owner waits for before it is ready: it must have a certificate,
// one catalog must have been available once, and consumers be served: a catalog that cannot
// be served must not take the others with it. An owner that was ready stays so until it ends.
func (p *Publisher) Ready() (waiting []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.serving {
		if p.ready {
			return []string{"the owner is ending"}
		}
		waiting = append(waiting, "consumers are not served yet")
	}
	if p.ready {
		return waiting
	}
	if missing := p.identity.Missing(); missing != nil && p.config.Identity.SPIFFE.Socket != "" {
		waiting = append(waiting, "there is no certificate yet from the SPIFFE agent at "+p.config.Identity.SPIFFE.Socket)
	} else if missing != nil {
		waiting = append(waiting, missing.Error())
	}
	var incomplete []string
	for _, name := range slices.Sorted(maps.Keys(p.catalogs)) {
		select {
		case <-p.catalogs[name].sources.Published():
		default:
			incomplete = append(incomplete, fmt.Sprintf("catalog %s: %s", shown(name), p.catalogs[name].sources.Status().Unavailable))
		}
	}
	if len(incomplete) == len(p.catalogs) {
		waiting = append(waiting, incomplete...)
	}
	p.ready = len(waiting) == 0
	return waiting
}

// shown returns the server name of a catalog as people read it.
func shown(serverName string) string {
	if serverName == "" {
		return "(default)"
	}
	return serverName
}

// Catalog is what is published under one server name.
type Catalog struct {
	Sources  *source.Catalog
	Registry *registry.Registry
	Exports  []config.Export // that are in effect; none: everything is told to everyone who may subscribe
}

// Catalogs returns what is published, by server name.
func (p *Publisher) Catalogs() map[string]Catalog {
	p.mu.Lock()
	defer p.mu.Unlock()
	catalogs := make(map[string]Catalog, len(p.catalogs))
	for _, of := range p.config.Catalogs {
		c := p.catalogs[of.ServerName]
		catalogs[of.ServerName] = Catalog{c.sources, c.registry, of.Exports}
	}
	return catalogs
}

// Status returns what there is to say of the owner now.
func (p *Publisher) Status() Status {
	s := Status{
		Began: p.began, Waiting: p.Ready(), File: p.file, Server: p.server.Stats(),
		Broken: make(map[string]error), Catalogs: make(map[string]CatalogStatus),
	}
	if p.settings != nil {
		s.Broken["config"] = p.settings.Err()
	}
	s.Certificate, s.CA = p.identity.Expiry()
	s.Trouble = p.identity.Trouble()
	p.mu.Lock()
	s.Applied, s.Restart = p.applied, p.restart
	p.mu.Unlock()
	if p.allowed != nil {
		s.Broken["allow"] = p.allowed.Err()
	}
	for name, c := range p.catalogs {
		at := CatalogStatus{c.sources.Status(), make(map[string]Registration), make(map[string]Followed), c.sources.Confirm}
		for _, e := range c.entries {
			switch of := e.Source.(type) {
			case *file.File:
				s.Broken["catalog"] = cmp.Or(s.Broken["catalog"], of.Err())
			case *registered:
				address := p.listener.Addr()
				if of.listener != nil {
					address = of.listener.Addr()
				}
				at.Registrations[e.Name] = Registration{of.Stats(), address}
				s.Broken["rules"] = cmp.Or(s.Broken["rules"], of.rules.Err())
			case *relay.Source:
				at.Relays[e.Name] = Followed{of.Status(), of.Retry}
			}
		}
		s.Catalogs[name] = at
	}
	return s
}
