package zone

import (
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
)

// reachFinder finds the names whose records may change with a service, in one version of a zone.
// ChangesSince makes one for each version and drops it; its work and its sets are bounded by the
// services that it reaches.
//
// The records of a name depend on the services at it and above it, because a query goes from the
// name up (package zone). So a service that changes can only change names at and below its fqdn.
// The records of these names come from that service, from a service above it that has names there
// as well, or from a service at a name that it claims, which may be unpublished because of it and
// may claim further names itself. All of that holds before the change and after it, for what is
// gained and what is lost.
//
// Hosts are another way for a service to change the records of a name. They are left to the caller.
type reachFinder struct {
	*pastVersion

	origin   *zoneOrigin
	names    map[string]struct{} // that were found, in this version or others; some may have no records
	services map[string]struct{} // fqdns that addService was called with
	derived  map[string]struct{} // fqdns that addDerived was called with
}

// findNames adds the names that the services at some fqdns reach.
func (r *reachFinder) findNames(fqdns []string) {
	r.services, r.derived = make(map[string]struct{}), make(map[string]struct{})
	for _, fqdn := range fqdns {
		r.addService(fqdn)
	}
}

// addService adds the names that may change with the service at an fqdn.
func (r *reachFinder) addService(fqdn string) {
	if !addNew(r.services, fqdn) {
		return
	}
	r.addName(fqdn)
	for at := fqdn; at != r.origin.name; {
		at = domain.Parent(at)
		if p := r.firstOffer(at); p != nil && p.Subtree.HasLabels(domain.RelativeLabels(fqdn, at)) {
			r.addDerived(p)
		}
	}
	p := r.firstOffer(fqdn)
	if p == nil {
		return
	}
	r.addDerived(p)
	if !r.zone.tree.Node(fqdn).HasNodesBelow() {
		return
	}
	for labels := range p.Subtree.ClaimedLabels() {
		if below := domain.JoinLabels(labels, fqdn); r.hasName(below) && r.firstOffer(below) != nil {
			r.addService(below)
		}
	}
}

// addDerived adds all names of a service below its fqdn.
func (r *reachFinder) addDerived(p *precedence.Offer) {
	fqdn := p.FQDN()
	if !addNew(r.derived, fqdn) {
		return
	}
	for labels := range p.Subtree.RecordLabels() {
		r.addName(domain.JoinLabels(labels, fqdn))
	}
}

// addName adds a name, if it is short enough and in the zone.
func (r *reachFinder) addName(name string) {
	if len(name) <= domain.MaxName && r.hasName(name) {
		r.names[name] = struct{}{}
	}
}

// hasName reports whether a name is in this zone and in no zone within it.
func (r *reachFinder) hasName(name string) bool { return r.zone.origins.originOf(name) == r.origin }

// firstOffer returns the service that comes first at an fqdn, published or not.
func (r *reachFinder) firstOffer(fqdn string) *precedence.Offer {
	return r.zone.tree.FirstOffer(r.zone.tree.Node(fqdn), r.at)
}

// addNew adds a name to a set, and reports whether the name is new.
func addNew(set map[string]struct{}, name string) bool {
	if _, ok := set[name]; ok {
		return false
	}
	set[name] = struct{}{}
	return true
}
