// Package ownreport says of an owner what package status has for it: how it is, what it
// publishes, and why a name is told to whom, or to nobody.
//
// Only packages of this module import it: it is not a stable API.
package ownreport

import (
	"iter"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
	"github.com/hamlet-federation/coredns-federation/federation/owner/gate"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/page"
)

// Reporter reports on an owner, whose peers TurnedAway watches from its beginning, and which For
// names before anything else is called. Its methods are safe for concurrent use.
type Reporter struct {
	version    string
	publisher  *serve.Publisher
	turnedAway turnedAway
}

var _ page.Source = (*Reporter)(nil)

// New returns the reporter of a program of that version.
func New(version string) *Reporter { return &Reporter{version: version} }

// TurnedAway observes a peer that is not let in.
func (r *Reporter) TurnedAway(p gate.TurnedAway) { r.turnedAway.add(p, time.Now()) }

// For names the owner.
func (r *Reporter) For(p *serve.Publisher) { r.publisher = p }

// Status implements page.Source.
func (r *Reporter) Status() status.Status {
	s := Convert(r.publisher.Status(), time.Now())
	s.Version, s.Host, s.PID, s.Publisher.Listen = r.version, status.Hostname(), os.Getpid(), r.publisher.Addr().String()
	s.Publisher.TurnedAway = r.turnedAway.read()
	consumers := r.publisher.Consumers()
	for i := range s.Catalogs {
		subscribers(&s.Catalogs[i], consumers[s.Catalogs[i].Name])
	}
	return s
}

// Catalog implements page.Source. The services come in the order of their names.
func (r *Reporter) Catalog(of string) (iter.Seq2[status.Service, error], error) {
	catalogs := r.publisher.Catalogs()
	c, known := catalogs[of]
	if !known {
		return nil, &status.UnknownError{Of: of, Known: slices.Sorted(maps.Keys(catalogs))}
	}
	services := c.Sources.Services()
	return func(yield func(status.Service, error) bool) {
		for _, name := range slices.Sorted(maps.Keys(services)) {
			if !yield(status.NewService(services[name].Service(), time.Time{}, false)) {
				return
			}
		}
	}, nil
}
