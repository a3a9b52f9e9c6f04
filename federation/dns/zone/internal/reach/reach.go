// Package reach finds the names whose records may change with a service.
//
// What a name has depends on the services at it and above it, because a query goes
// from the name up (package zone). So a service that changes can only change names at
// and below its fqdn. Of these the records come from that service, from one above it
// that has names there as well, or from one at a name that it claims, which may not be
// published because of it and may claim further names itself. All of that before the
// change and after it: what is gained and what is lost.
//
// Hosts are another way for a service to change the records of a name. They are left
// to the caller.
package reach

import (
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/precedence"
)

// Names collects names, each once.
type Names struct {
	list []string
	set  map[string]struct{}
}

// List returns the names, in no particular order.
func (n *Names) List() []string { return n.list }

// Version is one version of a zone.
type Version struct {
	Tree   *precedence.Tree
	Origin string
	Has    func(name string) bool // reports whether a name is in this zone and no zone within it
	Now    time.Time
}

// Add adds the names that the services at some fqdns reach in a version. They belong
// to the zone. Some may have no records.
func (n *Names) Add(v *Version, fqdns []string) {
	if n.set == nil {
		n.set = make(map[string]struct{})
	}
	w := walk{Version: v, names: n, services: make(map[string]struct{}), derived: make(map[string]struct{})}
	for _, fqdn := range fqdns {
		w.service(fqdn)
	}
}

// walk is one call of Add.
type walk struct {
	*Version

	names    *Names
	services map[string]struct{} // fqdns that service was called with
	derived  map[string]struct{} // fqdns that derive was called with
}

// service adds the names that may change with the service at an fqdn.
func (w *walk) service(fqdn string) {
	if !first(w.services, fqdn) {
		return
	}
	w.name(fqdn)
	for at := fqdn; at != w.Origin; {
		at = domain.Parent(at)
		if p := w.offer(at); p != nil && p.Subtree.Has(domain.Relative(fqdn, at)) {
			w.derive(p)
		}
	}
	p := w.offer(fqdn)
	if p == nil {
		return
	}
	w.derive(p)
	if !w.Tree.Node(fqdn).Above() {
		return
	}
	for labels := range p.Subtree.Claims() {
		if below := domain.Below(labels, fqdn); w.Has(below) && w.offer(below) != nil {
			w.service(below)
		}
	}
}

// derive adds all names of a service below its fqdn.
func (w *walk) derive(p *precedence.Offer) {
	fqdn := p.FQDN()
	if !first(w.derived, fqdn) {
		return
	}
	for labels := range p.Subtree.Names() {
		w.name(domain.Below(labels, fqdn))
	}
}

// name adds a name, if it is one and in the zone.
func (w *walk) name(name string) {
	if len(name) <= domain.MaxName && w.Has(name) && first(w.names.set, name) {
		w.names.list = append(w.names.list, name)
	}
}

// offer returns the service that comes first at an fqdn, published or not.
func (w *walk) offer(fqdn string) *precedence.Offer { return w.Tree.First(w.Tree.Node(fqdn), w.Now) }

// first adds a name to a set, and reports whether it was not there.
func first(set map[string]struct{}, name string) bool {
	if _, ok := set[name]; ok {
		return false
	}
	set[name] = struct{}{}
	return true
}
