// Package paging keeps what a catalog has in the order of its names, for as long as
// somebody reads it in pages.
//
// An index that every update would have to keep in order is not worth its time: pages are
// read by people, now and then. So the first of them sorts all, and the others find it done.
//
// Only packages of this module import it: it is not a stable API.
package paging

import (
	"context"
	"iter"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// Entry is what a list has of one service.
type Entry interface {
	Name() string
	Service() *federation.Service
	Report() (status.Service, error)
}

const (
	// Keep is how long a list is kept after it was read last.
	Keep = 10 * time.Second

	// A list of at least long entries serves, though the catalog has changed meanwhile,
	// share times as long as it took to make it, but no longer than mostOld. So however
	// many read a catalog that changes all the time, they take a twentieth of a processor.
	long    = 10_000
	share   = 20
	mostOld = 5 * time.Second
)

// Lists are the lists of several catalogs, by the name of each. One list at a time is made:
// who wants another one, or the same, waits. It is safe for concurrent use. The zero value
// is empty.
type Lists[E Entry] struct {
	making    sync.Mutex // held while a list is made
	searching sync.Mutex // held while all of a list is searched, so that searches take one processor

	mu  sync.Mutex // guards the field below, and is held for moments
	all map[string]*list[E]
}

// named is an entry with its name, which comparing would read again and again.
type named[E Entry] struct {
	name  string
	entry E
}

// list is never changed but for the timer.
type list[E Entry] struct {
	entries []named[E]
	version []any
	until   time.Time // when it is too old for another version
	forget  *time.Timer
}

// Catalog is a catalog at one moment.
type Catalog[E Entry] struct {
	Name    string
	Version []any // comparable values; a catalog of the same version is the same
	Size    int   // about how many services there are

	// All yields the services, in any order, some of them more than once. It is not called
	// by two goroutines at once.
	All iter.Seq[E]
}

// Page returns the services of a catalog that a query asks for, in the order of their names.
// They may be those of another version where there are many and they were read lately: 5 s
// ago at most, and mostly much less. It ends when ctx does.
func (l *Lists[E]) Page(ctx context.Context, c Catalog[E], q status.Query) (status.Services, error) {
	all := l.sorted(c)
	rest := all[sort.Search(len(all), func(i int) bool { return all[i].name > q.After }):]
	if q.Match != "" {
		var err error
		if rest, err = l.search(ctx, rest, q); err != nil {
			return status.Services{}, err
		}
	}
	first := rest[:min(len(rest), q.Limit)]
	page := status.Services{Of: c.Name, Total: len(all), Services: make([]status.Service, len(first))}
	for i, e := range first {
		var err error
		if page.Services[i], err = e.entry.Report(); err != nil {
			return status.Services{}, err //nolint:wrapcheck // it names the service
		}
	}
	if len(rest) > q.Limit {
		page.Next = first[q.Limit-1].name
	}
	return page, nil
}

// search returns the first entries that match a query, one more than it has room for.
func (l *Lists[E]) search(ctx context.Context, rest []named[E], q status.Query) (found []named[E], err error) {
	l.searching.Lock()
	defer l.searching.Unlock()
	for _, e := range rest {
		if len(found) > q.Limit {
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, err //nolint:wrapcheck // the reader is gone
		}
		if status.Matches(e.entry.Service(), q.Match) {
			found = append(found, e)
		}
	}
	return found, nil
}

// Services yields all services of a catalog in the order of their names, each once. They may
// be as old as those of Page.
func (l *Lists[E]) Services(c Catalog[E]) iter.Seq2[status.Service, error] {
	return func(yield func(status.Service, error) bool) {
		for _, e := range l.sorted(c) {
			if !yield(e.entry.Report()) {
				return
			}
		}
	}
}

// sorted returns the services of a catalog by name, each once. Nobody may change them.
func (l *Lists[E]) sorted(c Catalog[E]) []named[E] {
	if entries, ok := l.kept(c); ok {
		return entries
	}
	l.making.Lock()
	defer l.making.Unlock()
	if entries, ok := l.kept(c); ok {
		return entries // somebody else has made it meanwhile
	}
	begin := time.Now()
	entries := make([]named[E], 0, c.Size)
	for e := range c.All {
		entries = append(entries, named[E]{e.Name(), e})
	}
	slices.SortFunc(entries, func(x, y named[E]) int { return strings.Compare(x.name, y.name) })
	entries = slices.CompactFunc(entries, func(x, y named[E]) bool { return x.name == y.name })
	made := &list[E]{entries: entries, version: c.Version}
	if now := time.Now(); len(entries) >= long {
		made.until = now.Add(min(share*now.Sub(begin), mostOld))
	}
	l.keep(c.Name, made)
	return entries
}

// kept returns the list of a catalog, if there is one that will do.
func (l *Lists[E]) kept(c Catalog[E]) ([]named[E], bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.all[c.Name]
	if of == nil || !slices.Equal(of.version, c.Version) && !time.Now().Before(of.until) {
		return nil, false
	}
	of.forget.Reset(Keep)
	return of.entries, true
}

func (l *Lists[E]) keep(name string, made *list[E]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before := l.all[name]; before != nil {
		before.forget.Stop()
	}
	if l.all == nil {
		l.all = make(map[string]*list[E])
	}
	l.all[name] = made
	made.forget = time.AfterFunc(Keep, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.all[name] == made {
			delete(l.all, name)
		}
	})
}
