package catalog

import "github.com/hamlet-federation/coredns-federation/federation"

// admission says whether Config.Admit admitted a version of a service, and the kind
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

// admit returns the error of Config.Admit, with the service and the field in it, or
// nil. ErrNotImported stays what it is.
func (c *Catalog) admit(s *federation.Service) *federation.InvalidError {
	if c.config.Admit == nil {
		return nil
	}
	invalid := c.config.Admit(s)
	if invalid == nil || invalid == ErrNotImported {
		return invalid
	}
	named := *invalid
	named.Service = s.Name
	if named.Field == "" {
		named.Field = "fqdn"
	}
	return &named
}
