package catalog

import (
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/internal/leftout"
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

// admit returns the error of Rules.Admit, with the service and the field in it, or
// nil. ErrNotImported stays what it is.
func (c *Catalog) admit(s *federation.Service) *federation.InvalidError {
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

// leaveOut takes a service that is not imported, as the open stream announces it in a
// message with that resource; nil: it is not known.
func (c *Catalog) leaveOut(name, id string, resource []byte) {
	if _, ok := c.records.get(name); ok {
		c.remove(name, CauseExcluded)
	}
	c.releaseID(name, id)
	var sent leftout.Sent
	if resource != nil && (id == "" || id == name) {
		sent = leftout.SentAs(name, resource)
	}
	c.leftOut.Add(name, id, sent, c.rules.MaxServices)
}

// leaveOutKnown takes services that are no longer imported.
func (c *Catalog) leaveOutKnown(names []string) {
	if limit := c.rules.MaxServices; limit > 0 && c.leftOut.Count()+len(names) > limit {
		slices.Sort(names) // not all of them count: the first
	}
	for _, name := range names {
		r, _ := c.records.get(name)
		id := c.ids.of[name]
		c.remove(name, CauseExcluded)
		if r.generation == c.generation && r.generation > 0 {
			c.leftOut.Add(name, id, leftout.Sent{}, c.rules.MaxServices)
		} else {
			c.leaveOutBefore()
		}
	}
}

// leaveOutBefore takes a service that is not imported, and that only an earlier stream
// has announced.
func (c *Catalog) leaveOutBefore() {
	if !c.stream.synced {
		c.leftOut.AddBefore(c.rules.MaxServices)
	}
}
