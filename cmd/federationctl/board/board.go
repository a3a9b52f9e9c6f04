// Package board is the table of an owner's services that federationctl watch
// keeps on a terminal: the services, what has changed a moment ago, and how all of
// it is cut to the size of the terminal.
//
// It takes the changes and the status of a mirror, and returns lines for the
// terminal. It is pure: it has no clock, no goroutine and no terminal. Time and
// size come in as arguments.
package board

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/catalog"
)

// recent is how long a change is marked, and how long a service that is gone is
// still shown.
const recent = 10 * time.Second

// Board is the table of one owner's services. It is not safe for concurrent use.
type Board struct {
	address string
	status  catalog.Status
	hops    int
	resumed bool

	rows  map[string]*row // by the owner's name of the service
	order []*row          // sorted, without those in fresh; may hold dead ones
	fresh []*row          // not sorted in yet
	dead  int             // rows of order and fresh that are to be removed

	marked  []stamp // marks that have not faded, oldest first
	last    stamp   // the last mark that was set
	refused int     // responses

	since  time.Time // when the stream was lost, or when the board was made
	reason string    // why there is no stream; "" while there is one
	note   string    // shown below the state, unless there is a reason

	widths [columns]int // of the widest cells that were shown so far
}

// row is one service. Its place in the order never changes: a service with a new
// fqdn gets a new row.
type row struct {
	service *federation.Service
	mark    byte
	at      time.Time // of the mark
	dead    bool      // not shown any more
}

// The marks of a row.
const (
	still   byte = ' ' // no recent change
	added   byte = '+'
	changed byte = '*'
	gone    byte = '-'
)

// stamp is a mark that was set on a row.
type stamp struct {
	row  *row
	mark byte
	at   time.Time
}

// New returns an empty board for the owner at the address.
func New(address string, now time.Time) *Board {
	return &Board{address: Plain(address), rows: make(map[string]*row), since: now}
}

// Update takes what has changed, and the status after it. Reason is why there is no
// stream; "" means that there is one, or that the first is about to be opened. The
// changes are marked, unless they belong to the first catalog.
func (b *Board) Update(changes []catalog.Change, status catalog.Status, reason string, now time.Time) {
	if b.reason == "" && reason != "" {
		b.since = now
	}
	b.reason = reason
	for _, change := range changes {
		b.apply(change, now)
	}
	b.status = status
}

// Through sets through how many owners the services come (0: it is not known), and
// whether the stream has brought only what differed.
func (b *Board) Through(hops int, resumed bool) { b.hops, b.resumed = hops, resumed }

// Refused counts a response that was refused.
func (b *Board) Refused() { b.refused++ }

// Note sets the text that is shown below the state while there is a stream.
func (b *Board) Note(text string) { b.note = text }

// Advance removes the marks that have faded at now. It must be called before Lines.
func (b *Board) Advance(now time.Time) {
	i := 0
	for ; i < len(b.marked) && now.Sub(b.marked[i].at) >= recent; i++ {
		s := b.marked[i]
		switch {
		case !s.row.at.Equal(s.at) || s.row.mark != s.mark: // it was marked again since
		case s.mark == gone:
			b.remove(s.row)
		default:
			s.row.mark = still
		}
	}
	clear(b.marked[:i])
	b.marked = b.marked[i:]
}

// apply brings one row up to date.
func (b *Board) apply(change catalog.Change, now time.Time) {
	r := b.rows[change.Name]
	switch {
	case change.Service.IsZero():
		if r != nil && r.mark != gone {
			b.mark(r, gone, now)
		}
		return
	case r != nil && change.Same && r.mark != gone: // announced on another stream
		return
	}
	service := change.Service.Unpack()
	mark := changed
	switch {
	case r == nil || r.service.FQDN != service.FQDN:
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
	r.service = service
	if b.status.Known {
		b.mark(r, mark, now)
	} else {
		r.mark = still // before the first catalog is complete nothing is a change
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

// sorted returns the rows ordered by fqdn, then by name. Its cost is constant when no
// row has come or gone, and linear in all rows when one has.
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
