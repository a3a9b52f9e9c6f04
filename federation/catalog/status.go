package catalog

import "time"

// State is where an owner stands. That it is parked is not seen from here: the
// subscription knows.
type State uint8

// The states of an owner.
const (
	Connecting State = iota // never had a service, and no stream is open
	Syncing                 // a stream is open, its catalog not yet complete; the retention clock goes on
	Synced                  // a stream is open, its catalog complete
	Stale                   // no stream vouches for the services; the retention clock runs
	Expired                 // as Stale, but the retention is over and the services are gone
)

// String returns the state in lower case, as metrics and logs show it.
func (s State) String() string {
	return [...]string{Connecting: "connecting", Syncing: "syncing", Synced: "synced", Stale: "stale", Expired: "expired"}[s]
}

// Status is a catalog at a glance.
type Status struct {
	State State

	// Generation is that of the open or last stream; 0 before the first.
	Generation uint64

	// Live is the first generation that is not stale. A service of an older
	// one was announced only on a stream that has been lost.
	Live uint64

	// Expires is the instant from which stale services are gone: a second
	// after the end of the retention, so that the whole seconds up to it can
	// be the TTL of an answer and 0 of them mean gone. Zero means that they
	// stay without limit, or that no clock is running.
	Expires time.Time

	// Soonest is when the first of them are gone. It is before Expires when the
	// guard has held services through another loss: they go at their own time.
	Soonest time.Time

	// Expired says that the retention is over, also while a stream is open on
	// which nothing is complete.
	Expired bool

	Lost     time.Time // when the retention clock was started; kept after expiry, until the next sync
	LastSync time.Time // when a catalog was last complete

	// Known tells whether a catalog was ever complete, or restored. Before
	// that nothing can be said of a name that is not in it.
	Known bool

	Services  int // published
	Instances int // of the published services
	Stale     int // published services of a generation before Live
	Held      int // of these, what a complete catalog left out and the guard kept
	Refused   int // names whose last version was not admitted
	Addresses int // of these, for an address

	Octets int64 // that the catalog counts, as Size does
}

// Status returns the state of the catalog. It costs the same for any size.
func (c *Catalog) Status() Status {
	s := Status{
		State:      c.state(),
		Generation: c.generation,
		Expired:    c.expired,
		Live:       c.live(),
		LastSync:   c.lastSync,
		Known:      c.known,
		Services:   c.services,
		Instances:  c.instances,
		Stale:      c.stale,
		Refused:    c.refused[refusedName] + c.refused[refusedAddress],
		Addresses:  c.refused[refusedAddress],
		Octets:     c.octets,
	}
	if c.stream.synced {
		s.Held = c.stale
	}
	if n := len(c.losses); n > 0 {
		last := c.losses[n-1]
		s.Lost = last.at
		if expiry, ok := c.expiry(last); ok && !c.expired {
			s.Expires = expiry
			s.Soonest, _ = c.expiry(c.losses[0])
		}
	}
	return s
}

func (c *Catalog) state() State {
	switch {
	case c.stream.synced:
		return Synced
	case c.stream.open:
		return Syncing
	case c.expired:
		return Expired
	case len(c.losses) > 0:
		return Stale
	}
	return Connecting
}
