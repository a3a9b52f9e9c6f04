package source

import (
	"maps"
	"time"
)

// Status is the state of a catalog at one moment, for metrics and for people.
type Status struct {
	Name        string         // as in Config
	Unavailable string         // why consumers cannot have it; empty when they can
	Sources     []SourceStatus // in their order
}

// SourceStatus is the state of one source.
type SourceStatus struct { //nolint:revive // Status is that of a catalog
	Name     string        // as in Entry
	Lifetime time.Duration // likewise
	Complete bool          // whether the whole state of its origin has been known once; the end of the catalog waits for that

	Lapsed bool // whether nothing of it is published because its lifetime is over

	Away  string    // why its origin cannot be asked; empty when it can
	Since time.Time // when it went away; zero when it can be asked

	// Services that its origin does not have any more, and that stay as they are too many at
	// once; they are among Services. The first of them go at WithdrawAt unless that is zero.
	Paused     int
	WithdrawAt time.Time

	Services int            // that it has, those included that are hidden
	Hidden   int            // that are hidden by sources before it
	Refused  map[string]int // entries of the origin that are no services, by rule
}

// Status returns the state of the catalog now.
func (c *Catalog) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{Name: c.name, Unavailable: c.reason}
	for _, p := range c.parts {
		s.Sources = append(s.Sources, p.sourceStatus())
	}
	return s
}

func (p *catalogPart) sourceStatus() SourceStatus {
	s := SourceStatus{
		Name: p.Name, Lifetime: p.Lifetime, Complete: p.complete, Lapsed: p.lapsed, Services: len(p.items), Hidden: p.hidden, Refused: maps.Clone(p.refused),
		Paused: len(p.paused), WithdrawAt: p.nextWithdrawal(),
	}
	if p.away != nil {
		s.Away, s.Since = p.away.Error(), p.awaySince
	}
	return s
}
