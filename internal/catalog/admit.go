package catalog

import (
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// ErrNotImported is what Rules.Admit returns for a service that this side does not
// want. That is no fault of the owner, so the service is not refused: it is accepted
// and not kept, and a version that was kept before goes.
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

// admissionOf returns the admission of a version that was not admitted for r.
func admissionOf(r federation.Reason) admission {
	if r == federation.ReasonAddress {
		return addressNotAdmitted
	}
	return nameNotAdmitted
}

// admissionError returns the error of Rules.Admit, with the service and the field in it, or
// nil. ErrNotImported stays what it is.
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

// leftOutPatience is for how long services that are not imported keep a catalog from settling,
// where nothing else comes. Which of them the stream has announced before is not known, and so an
// owner that keeps updating them would never be silent. It is longer than a large catalog takes
// in which none is imported: what is behind these must not be denied.
const leftOutPatience = 10 * time.Minute

// leftOut counts what is not imported. Nothing else is known of it.
type leftOut struct {
	now    int // see Summary.NotImported
	before int // what was counted when the stream was opened, until its catalog is complete
}

func (l leftOut) shownCount() int { return max(l.now, l.before) }

// leaveOut takes a service that is not imported, as the open stream announces it.
func (c *Catalog) leaveOut(name, id string, now time.Time) {
	if now.Sub(c.stream.wanted) < leftOutPatience {
		c.stream.heard = now
	}
	if _, ok := c.records.get(name); ok {
		c.removeRecord(name, CauseExcluded)
	}
	c.ids.releaseID(name, id)
	c.leftOut.now++
}
