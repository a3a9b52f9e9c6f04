// Package ownreport says of an owner what package status has for it: how it is, what it
// publishes, and why a name is told to whom, or to nobody.
//
// Only packages of this module import it: it is not a stable API.
package ownreport

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
	"github.com/hamlet-federation/coredns-federation/federation/owner/gate"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/page"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Reporter reports on an owner, which Observe and TurnedAway watch from its beginning, and
// which For names before anything else is called. Its methods are safe for concurrent use.
type Reporter struct {
	version    string
	publisher  *serve.Publisher
	turnedAway turnedAway
}

var _ page.Source = (*Reporter)(nil)

// New returns the reporter of a program of that version.
func New(version string) *Reporter { return &Reporter{version: version} }

// Observe returns what is to observe a catalog.
func (*Reporter) Observe() source.Observer { return &recentEvents{} }

// TurnedAway observes a peer that is not let in.
func (r *Reporter) TurnedAway(p gate.TurnedAway) { r.turnedAway.turnedAway(p, time.Now()) }

// For names the owner, whose catalogs Observe observes.
func (r *Reporter) For(p *serve.Publisher) { r.publisher = p }

// Status implements page.Source.
func (r *Reporter) Status() status.Status {
	catalogs, now := r.publisher.Catalogs(), time.Now()
	s := Convert(r.publisher.Status(), now)
	s.Version, s.Host, s.PID, s.Publisher.Listen = r.version, status.Hostname(), os.Getpid(), r.publisher.Addr().String()
	s.Publisher.TurnedAway = r.turnedAway.read()
	consumers := r.publisher.Consumers()
	for i := range s.Catalogs {
		of := &s.Catalogs[i]
		subscribers(of, consumers[of.Name])
		if events, known := catalogs[of.Name].Observer.(*recentEvents); known { // otherwise it is new
			of.Refusals, _, of.Updates = events.read(now)
			of.Refusals = of.Refusals[:min(len(of.Refusals), maxRefusals)]
		}
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

// maxRefusals is how many refusals the status has of a catalog.
const maxRefusals = 20

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
	updated := maps.Collect(c.Sources.All())
	services := slices.SortedFunc(maps.Keys(updated), func(x, y *wire.Encoded) int { return strings.Compare(x.Name(), y.Name()) })
	services = slices.CompactFunc(services, func(x, y *wire.Encoded) bool { return x.Name() == y.Name() }) // one may have changed meanwhile
	return func(yield func(status.Service, error) bool) {
		for _, s := range services {
			if !yield(status.NewService(s.Service(), updated[s], false)) {
				return
			}
		}
	}, nil
}

// Why implements page.Source.
func (r *Reporter) Why(_ context.Context, name string, _ uint16) (status.Why, error) {
	catalogs, reported := r.publisher.Catalogs(), r.Status()
	why := status.Why{Role: status.Owner, Name: name}
	for i := range reported.Catalogs {
		of := &reported.Catalogs[i]
		c, known := catalogs[of.Name]
		if !known {
			continue // it is new
		}
		q := newQuestion(name, c, of.Consumers)
		p := status.Publication{Catalog: of.Name, Unavailable: of.Unavailable, Sources: of.Sources, Services: q.offered()}
		refusals, gone, _ := c.Observer.(*recentEvents).read(reported.Now)
		p.Refusals, p.Gone = q.refusals(refusals), q.gone(gone)
		why.Catalogs = append(why.Catalogs, p)
	}
	why.Now = time.Now().UTC() // after all that it tells of
	return why, nil
}
