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
	"slices"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
	"github.com/hamlet-federation/coredns-federation/federation/owner/gate"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/page"
	"github.com/hamlet-federation/coredns-federation/federation/status/paging"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Reporter reports on an owner, which Observe watches from its beginning, and which For
// names before anything else is called. Its methods are safe for concurrent use.
type Reporter struct {
	version    string
	publisher  *serve.Publisher
	lists      paging.Lists[held]
	turnedAway turnedAway

	mu       sync.Mutex // guards the fields below
	events   map[string]*recentEvents
	observed int // how often Observe was called
}

var _ page.Source = (*Reporter)(nil)

// New returns the reporter of a program of that version.
func New(version string) *Reporter {
	return &Reporter{version: version, events: make(map[string]*recentEvents)}
}

// Observe returns what is to observe the catalog with that server name, whenever it is
// made anew.
func (r *Reporter) Observe(serverName string) source.Observer {
	r.mu.Lock()
	r.observed++
	r.mu.Unlock()
	return r.recentEvents(serverName)
}

// TurnedAway observes a peer that is not let in.
func (r *Reporter) TurnedAway(p gate.TurnedAway) { r.turnedAway.turnedAway(p, time.Now()) }

// For names the owner.
func (r *Reporter) For(p *serve.Publisher) { r.publisher = p }

func (r *Reporter) recentEvents(serverName string) *recentEvents {
	r.mu.Lock()
	defer r.mu.Unlock()
	j := r.events[serverName]
	if j == nil {
		j = &recentEvents{}
		r.events[serverName] = j
	}
	return j
}

// catalogs returns what is published, and forgets what happened in catalogs that there are
// no more.
func (r *Reporter) catalogs() map[string]serve.Catalog {
	r.mu.Lock()
	before := r.observed
	r.mu.Unlock()
	catalogs := r.publisher.Catalogs()
	r.forget(catalogs, before)
	return catalogs
}

// forget forgets what happened in other catalogs than these, which there were when Observe
// had been called so often, unless it has been called since: the events of a catalog that
// is new must stay the one that observes it.
func (r *Reporter) forget(catalogs map[string]serve.Catalog, observed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.observed != observed {
		return
	}
	maps.DeleteFunc(r.events, func(name string, _ *recentEvents) bool {
		_, known := catalogs[name]
		return !known
	})
}

// Status implements page.Source.
func (r *Reporter) Status() status.Status {
	r.catalogs()
	now := time.Now()
	s := Convert(r.publisher.Status(), now)
	s.Version, s.Publisher.Listen = r.version, r.publisher.Addr().String()
	s.Publisher.TurnedAway = r.turnedAway.read()
	for i := range s.Catalogs {
		of := &s.Catalogs[i]
		of.Refusals, _, of.Updates = r.recentEvents(of.Name).read(now)
		of.Refusals = of.Refusals[:min(len(of.Refusals), maxRefusals)]
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

// held is a service with the time at which its version came.
type held struct {
	*wire.Encoded

	updated time.Time
}

// Report implements paging.Entry.
func (h held) Report() (status.Service, error) {
	return status.NewService(h.Service(), h.updated, false)
}

// catalog returns the catalog with that server name, as it is read in pages.
func (r *Reporter) catalog(of string) (paging.Catalog[held], error) {
	c, err := r.of(of)
	if err != nil {
		return paging.Catalog[held]{}, err
	}
	return paging.Catalog[held]{
		Name: of, Version: []any{c.Sources, c.Sources.Version()}, Size: c.Registry.Len(), All: func(yield func(held) bool) {
			for s, updated := range c.Sources.All() {
				if !yield(held{s, updated}) {
					return
				}
			}
		},
	}, nil
}

// Services implements page.Source.
func (r *Reporter) Services(of, after string, limit int) (status.Services, error) {
	c, err := r.catalog(of)
	if err != nil {
		return status.Services{}, err
	}
	return r.lists.Page(c, after, limit) //nolint:wrapcheck // it names the service
}

// Catalog implements page.Source. The services come in the order of their names.
func (r *Reporter) Catalog(of string) (iter.Seq2[status.Service, error], error) {
	c, err := r.catalog(of)
	if err != nil {
		return nil, err
	}
	return r.lists.Services(c), nil
}

// Why implements page.Source.
func (r *Reporter) Why(_ context.Context, name string, _ uint16) (status.Why, error) {
	catalogs, reported := r.catalogs(), r.Status()
	why := status.Why{Role: status.Owner, Name: name}
	for i := range reported.Catalogs {
		of := &reported.Catalogs[i]
		c, known := catalogs[of.Name]
		if !known {
			continue // it is new
		}
		q := newQuestion(name, c, of.Consumers)
		p := status.Publication{Catalog: of.Name, Unavailable: of.Unavailable, Sources: of.Sources, Services: q.offered()}
		refusals, gone, _ := r.recentEvents(of.Name).read(reported.Now)
		p.Refusals, p.Gone = q.refusals(refusals), q.gone(gone)
		why.Catalogs = append(why.Catalogs, p)
	}
	why.Now = time.Now().UTC() // after all that it tells of
	return why, nil
}
