// Package board is the table of an owner's services that federationctl watch
// keeps on a terminal: what is in it, what changed a moment ago, and how it is
// cut to the size of the terminal.
//
// It stands behind the subscription, whose events it takes, and before the
// terminal, which shows its lines. It is pure: no clock, no goroutine, no
// terminal. Time and size come in as arguments, lines go out as values.
package board

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/catalog"
)

// recent is how long a change is marked, and a service that is gone is shown.
const recent = 10 * time.Second

// Board is what is known of an owner's services. It is not safe for concurrent
// use.
type Board struct {
	address string
	catalog *catalog.Catalog

	rows  map[string]*row // by the owner's name of the service
	order []*row          // sorted, as far as they are not in fresh; may hold dead ones
	fresh []*row          // not sorted in yet
	dead  int             // rows of order that are to be left out

	marked []stamp // what was marked, oldest first
	last   stamp   // the last of them
	told   int     // responses that were refused

	since  time.Time // when the stream was lost, or there was none to begin with
	reason string    // why there is no stream; "" while there is one
	note   string    // what is to be said besides

	widths [columns]int // the widest cells that were shown
}

// row is one service. Its place in the order never changes: a service with a
// new fqdn is a new row.
type row struct {
	service *federation.Service
	mark    byte
	at      time.Time // of the mark
	dead    bool      // it is shown no more
}

// The marks of a row.
const (
	still   byte = ' ' // nothing happened of late
	added   byte = '+'
	changed byte = '*'
	gone    byte = '-'
)

// stamp is a mark that a row was given.
type stamp struct {
	row  *row
	mark byte
	at   time.Time
}

// New returns an empty board for the owner at the address. A catalog whose end
// the owner does not mark is complete after the silence settle.
func New(address string, settle time.Duration, now time.Time) *Board {
	return &Board{
		address: Plain(address),
		catalog: catalog.New(catalog.Config{Settle: settle}),
		rows:    make(map[string]*row),
		since:   now,
	}
}

// Opened notes that there is a stream.
func (b *Board) Opened(now time.Time) {
	b.catalog.Opened(now)
	b.reason = ""
}

// Marked notes that the owner will mark the end of its catalog.
func (b *Board) Marked() { b.catalog.Marked() }

// Refused notes that a response was refused, and the service that it named.
func (b *Board) Refused(name string, now time.Time) {
	b.told++
	b.catalog.Refused(name, "", now)
	b.take(now)
}

// Apply takes an event of the open stream.
func (b *Board) Apply(event federation.Event, now time.Time) error {
	known := b.catalog.Status().Known // before the first catalog is complete nothing is a change
	err := b.catalog.Apply(event, now)
	b.update(known, now)
	return err
}

// Lost notes that there is no stream, and why.
func (b *Board) Lost(reason string, now time.Time) {
	if b.reason == "" {
		b.since = now
	}
	b.reason = reason
	b.catalog.Lost(now)
}

// Note sets what is said below the state.
func (b *Board) Note(text string) { b.note = text }

// Advance does what is due at now: silence completes a catalog, and marks fade.
// It must be called before Lines.
func (b *Board) Advance(now time.Time) {
	b.catalog.Advance(now)
	b.take(now)
	i := 0
	for ; i < len(b.marked) && now.Sub(b.marked[i].at) >= recent; i++ {
		s := b.marked[i]
		switch {
		case !s.row.at.Equal(s.at) || s.row.mark != s.mark: // it was marked again
		case s.mark == gone:
			b.remove(s.row)
		default:
			s.row.mark = still
		}
	}
	clear(b.marked[:i])
	b.marked = b.marked[i:]
}

// take brings the rows up to date with a catalog that changed by itself.
func (b *Board) take(now time.Time) { b.update(b.catalog.Status().Known, now) }

// update brings the rows up to date with the catalog. Changes are marked if the
// catalog was known before.
func (b *Board) update(known bool, now time.Time) {
	for _, change := range b.catalog.Changes() {
		r := b.rows[change.Name]
		switch {
		case change.Service == nil:
			if r != nil && r.mark != gone {
				b.mark(r, gone, now)
			}
			continue
		case r != nil && r.service == change.Service && r.mark != gone: // announced again
			continue
		}
		mark := changed
		switch {
		case r == nil || r.service.FQDN != change.Service.FQDN:
			if r != nil && r.mark != gone {
				b.mark(r, gone, now)
			}
			r = &row{mark: still}
			b.rows[change.Name] = r
			b.fresh = append(b.fresh, r)
			mark = added
		case r.mark == gone:
			mark = added
		}
		r.service = change.Service
		if known {
			b.mark(r, mark, now)
		} else {
			r.mark = still
		}
	}
}

func (b *Board) mark(r *row, mark byte, now time.Time) {
	r.mark, r.at = mark, now
	b.last = stamp{r, mark, now}
	b.marked = append(b.marked, b.last)
}

func (b *Board) remove(r *row) {
	r.dead = true
	b.dead++
	if b.rows[r.service.Name] == r {
		delete(b.rows, r.service.Name)
	}
}

// sorted returns the rows in the order of their fqdns, then of their names. It
// costs nothing when no row has come or gone, and one pass over all of them
// when one has.
func (b *Board) sorted() []*row {
	if b.dead > 0 {
		isDead := func(r *row) bool { return r.dead }
		b.order = slices.DeleteFunc(b.order, isDead)
		b.fresh = slices.DeleteFunc(b.fresh, isDead)
		b.dead = 0
	}
	if len(b.fresh) == 0 {
		return b.order
	}
	slices.SortFunc(b.fresh, compare)
	old, merged := b.order, make([]*row, 0, len(b.order)+len(b.fresh))
	for _, r := range b.fresh {
		i, _ := slices.BinarySearchFunc(old, r, compare)
		merged = append(append(merged, old[:i]...), r)
		old = old[i:]
	}
	merged = append(merged, old...)
	b.order, b.fresh = merged, nil
	return merged
}

func compare(r, s *row) int {
	return cmp.Or(
		strings.Compare(r.service.FQDN.String(), s.service.FQDN.String()),
		strings.Compare(r.service.Name, s.service.Name),
	)
}
