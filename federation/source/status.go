package source

import (
	"maps"
	"time"
)

// Status is what there is to say of a catalog at one moment, for metrics and for people.
type Status struct {
	Name        string // as in Config
	Unavailable string // why consumers cannot have it; empty when they can

	// Sources has those of the list that is published, in its order, and then those of
	// the list that is about to be.
	Sources []SourceStatus
}

// SourceStatus is what there is to say of one source.
type SourceStatus struct { //nolint:revive // Status is that of a catalog
	Name      string        // as in Entry
	Lifetime  time.Duration // likewise
	Published bool          // whether it belongs to the list that is published
	Staying   bool          // whether it belongs to the list that the last Set gave
	Complete  bool          // whether the whole state of its origin has been known once

	Lapsed bool // whether nothing of it is published because its lifetime is over

	Away  string    // why its origin cannot be asked; empty when it can
	Since time.Time // when it went away; zero when it can be asked

	// Services that its origin does not have any more, and that stay as they are too many at
	// once; they are among Services. The first of them go at Release unless that is zero.
	Held    int
	Release time.Time

	Services int            // that it has, those included that are hidden
	Hidden   int            // that are hidden by sources before it
	Refused  map[string]int // entries of the origin that are no services, by rule
}

// Status returns what there is to say of the catalog now.
func (c *Catalog) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{Name: c.name, Unavailable: c.reason}
	for _, p := range c.active {
		status := p.status(p.Entry)
		status.Published, status.Staying = true, !c.coming
		s.Sources = append(s.Sources, status)
	}
	for _, l := range c.next {
		if l.part.level != inactive {
			s.Sources[l.part.level].Staying = true
			continue
		}
		status := l.part.status(l.Entry)
		status.Staying = true
		s.Sources = append(s.Sources, status)
	}
	return s
}

func (p *part) status(listed Entry) SourceStatus {
	s := SourceStatus{
		Name: listed.Name, Lifetime: listed.Lifetime, Complete: p.complete, Lapsed: p.lapsed, Services: len(p.items), Hidden: p.hidden, Refused: maps.Clone(p.refused),
		Held: len(p.held), Release: p.due(),
	}
	if p.away != nil {
		s.Away, s.Since = p.away.Error(), p.since
	}
	return s
}
