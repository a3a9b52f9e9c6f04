// Package ownreport says of an owner what package status has for it: how it is, what it
// publishes, and why a name is told to whom, or to nobody.
//
// Only packages of this module import it: it is not a stable API.
package ownreport

import (
	"fmt"
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

// Retry implements page.Source.
func (r *Reporter) Retry(of string) (status.FollowedOwner, error) {
	unknown := &status.UnknownError{Of: of}
	for _, c := range Convert(r.publisher.Status(), time.Now()).Catalogs {
		for _, s := range c.Sources {
			switch {
			case s.Relay == nil:
			case c.Name == of:
				r.publisher.Retry(of)
				return *s.Relay, nil
			default:
				unknown.Known = append(unknown.Known, c.Name)
			}
		}
	}
	return status.FollowedOwner{}, unknown
}

// Confirm implements page.Source.
func (r *Reporter) Confirm(of, name string) (status.Source, error) {
	c, err := r.of(of)
	if err != nil {
		return status.Source{}, err
	}
	var was status.Source
	var known, held []string
	for _, s := range c.Sources.Status().Sources {
		known = append(known, s.Name)
		if s.Held > 0 && (name == "" || s.Name == name) {
			was, held = convertSource(s), append(held, s.Name)
		}
	}
	switch {
	case name != "" && !slices.Contains(known, name):
		return was, fmt.Errorf("there is no source %q; there are %q", name, known)
	case len(held) > 1:
		return was, fmt.Errorf("services of several sources are held; name one of %q", held)
	case len(held) == 1:
		was.Held = c.Sources.Confirm(was.Name)
	}
	return was, nil
}

// of returns the catalog with that server name.
func (r *Reporter) of(name string) (serve.Catalog, error) {
	catalogs := r.publisher.Catalogs()
	c, known := catalogs[name]
	if !known {
		return c, &status.UnknownError{Of: name, Known: slices.Sorted(maps.Keys(catalogs))}
	}
	return c, nil
}

// Catalog implements page.Source. The services come in the order of their names.
func (r *Reporter) Catalog(of string) (iter.Seq2[status.Service, error], error) {
	c, err := r.of(of)
	if err != nil {
		return nil, err
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
