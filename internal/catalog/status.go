package catalog

import "time"

// State says how far the catalog of an owner is. A catalog does not know whether its owner is
// parked: the subscription does.
type State uint8

// The states of an owner.
const (
	Connecting State = iota // never had a service, and no stream is open
	Syncing                 // a stream is open, its catalog not yet complete; the retention clock goes on
	Synced                  // the catalog of the open stream is complete, or was until a moment ago: see Grace
	Stale                   // no stream vouches for the services; the retention clock runs
	Expired                 // as Stale, but the retention is over and the services are gone
)

// String returns the state in lower case, as metrics and logs show it.
func (s State) String() string {
	return [...]string{Connecting: "connecting", Syncing: "syncing", Synced: "synced", Stale: "stale", Expired: "expired"}[s]
}

// Summary is a catalog at a glance.
type Summary struct {
	State State

	// Generation is that of the open or last stream; 0 before the first.
	Generation uint64

	// Live is the first generation that is not stale. The last stream that
	// announced a service of an older one has been lost.
	Live uint64

	// Expires is the end of the retention, from which stale services are gone. It is
	// zero when the services stay without limit, or when no clock is running.
	Expires time.Time

	// Soonest is when the first of them are gone. It is before Expires when the
	// guard paused their removal while another stream was lost: their own clock goes on.
	Soonest time.Time

	// Expired reports whether the retention is over. It stays true while a stream
	// is open whose catalog is not complete.
	Expired bool

	Lost     time.Time // when the retention clock was started; kept after expiry, until the next sync
	LastSync time.Time // when a catalog was last complete

	// Known reports whether a catalog was ever complete, or restored. Before that,
	// nothing can be said of a name that is not in the catalog.
	Known bool

	Services  int // published
	Instances int // of the published services
	Stale     int // published services of a generation before Live
	Paused    int // those of them whose removal the guard pauses: a complete catalog left them out
	Refused   int // names whose last version Rules.Admit did not admit

	// NotImported counts the updates of the open or last stream that brought a service which
	// is not imported: a service that is updated twice counts twice. So do services that were
	// left out of what is held, as the rules have changed. Until a catalog is complete, it is
	// not less than before the stream was opened.
	NotImported int

	Octets int64 // size of the catalog, as Size counts

	// Omits reports whether the owner has offered services that are not in the catalog, because the
	// rules do not admit them. Covers are those words of Rules.Admits for which nothing is missing.
	Omits  bool
	Covers string
}

// Summary returns the state of the catalog at a glance. It costs the same for any size.
func (c *Catalog) Summary() Summary {
	s := Summary{
		State:      c.currentState(),
		Generation: uint64(c.generation),
		Live:       uint64(c.liveGeneration()),
		Expired:    c.retention.over,
		LastSync:   c.lastSync,
		Known:      c.known,
		Services:   c.count.services,
		Instances:  c.count.instances,
		Stale:      c.count.stale,
		Refused:    c.count.notAdmitted[nameNotAdmitted] + c.count.notAdmitted[addressNotAdmitted],
		Octets:     c.count.octets,

		NotImported: c.leftOut.shownCount(),
		Covers:      c.covers,
	}
	s.Omits = c.omitsServices()
	if s.State == Synced {
		s.Paused = c.count.stale
	}
	losses := c.retention.losses
	if c.grace > 0 {
		losses = losses[:len(losses)-1] // nobody is to see the last one yet
	}
	if n := len(losses); n > 0 {
		last := losses[n-1]
		s.Lost = last.at
		if expiry, ok := last.expiresAt(c.rules.Retention); ok && !c.retention.over {
			s.Expires = expiry
			s.Soonest, _ = losses[0].expiresAt(c.rules.Retention)
		}
	}
	return s
}

// omitsServices returns what Summary.Omits reports.
func (c *Catalog) omitsServices() bool {
	return c.omitted || c.count.notAdmitted[nameNotAdmitted] > 0 || c.leftOut.shownCount() > 0
}

// currentState returns the state, which follows from the stream, the grace and the retention.
func (c *Catalog) currentState() State {
	switch {
	case c.stream.synced, c.grace > 0:
		return Synced
	case c.stream.open:
		return Syncing
	case c.retention.over:
		return Expired
	case len(c.retention.losses) > 0:
		return Stale
	}
	return Connecting
}
