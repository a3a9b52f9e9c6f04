package catalog

import (
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// ErrNotImported is what Rules.Admit returns for a service that this side does not want. The owner
// has made no mistake, so the service is accepted and not refused, but the catalog does not keep
// it: a version that was kept before is removed.
var ErrNotImported = &federation.InvalidError{Reason: "not imported", Rule: "is not imported"}

// admission says whether Rules.Admit admitted a version of a service, and the kind
// of reason if it did not.
type admission uint8

const (
	admitted admission = iota
	nameNotAdmitted
	addressNotAdmitted

	admissions = iota
)

// admissionOf returns the admission that stands for the reason r of a refusal.
func admissionOf(r federation.Reason) admission {
	if r == federation.ReasonAddress {
		return addressNotAdmitted
	}
	return nameNotAdmitted
}

// admissionError returns the error of Rules.Admit with the service and the field filled in, or nil
// if the service is admitted. ErrNotImported is returned unchanged.
func (c *Catalog) admissionError(s *federation.Service) *federation.InvalidError {
	if c.rules.Admit == nil {
		return nil
	}
	invalid := c.rules.Admit(s)
	if invalid == nil || invalid == ErrNotImported {
		return invalid
	}
	named := *invalid
	named.Service, named.FQDN = s.Name, s.FQDN.String()
	if named.Field == "" {
		named.Field = "fqdn"
	}
	return &named
}

// leftOutPatience is how long services that are not imported restart the silence of an open stream
// when nothing else comes. The catalog does not know which of these services the stream has
// announced before, and so an owner that keeps updating them would never be silent. A large catalog
// of which nothing is imported arrives in less time: a service behind such services must not be
// denied too early.
const leftOutPatience = 10 * time.Minute

// leftOut counts the updates with services that are not imported. The catalog keeps nothing else of
// them.
type leftOut struct {
	now    int // updates of the open or last stream: see Summary.NotImported
	before int // what was counted when the stream was opened, until its catalog is complete
}

// shownCount returns the count for Summary.NotImported, which does not fall while a new stream
// fills up.
func (l leftOut) shownCount() int { return max(l.now, l.before) }

// leaveOut counts a service of the open stream that is not imported, and removes the version of the
// service that was kept before. The owner is not silent meanwhile, for leftOutPatience.
func (c *Catalog) leaveOut(name, id string, now time.Time) {
	if now.Sub(c.stream.wanted) < leftOutPatience {
		c.stream.heard = now
	}
	if _, ok := c.records[name]; ok {
		c.removeRecord(name, CauseExcluded)
	}
	c.ids.releaseID(name, id)
	c.leftOut.now++
}
