// Package pages says what zones have of an owner, for who reads it in pages.
package pages

import (
	"time"
	"weak"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/paging"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

// Part is what one zone has of an owner.
type Part struct {
	Zone  *zone.Zone
	Owner int // by index in zone.Config.Owners
}

// Offer is a zone.Offer in less memory.
type Offer struct {
	service packed.Service
	updated uint32 // seconds from 1970; 0: it is not known
	stale   bool
}

// Catalog returns the catalog of an owner, which is what any of the parts has. Size is about
// how many services there are.
func Catalog(id string, parts []Part, size int) paging.Catalog[Offer] {
	version := make([]any, len(parts))
	for i, p := range parts {
		version[i] = weak.Make(p.Zone) // so that a list does not keep a zone of which nothing else is left
	}
	return paging.Catalog[Offer]{Name: id, Version: version, Size: size, All: func(yield func(Offer) bool) {
		for _, p := range parts {
			for o := range p.Zone.Offers(p.Owner) {
				of := Offer{service: o.Service, stale: o.Stale}
				if !o.Updated.IsZero() {
					of.updated = uint32(o.Updated.Unix()) //nolint:gosec // until 2106
				}
				if !yield(of) {
					return
				}
			}
		}
	}}
}

// Name returns the name of the service.
func (o Offer) Name() string { return o.service.Name() }

// Service returns the service.
func (o Offer) Service() *federation.Service { return o.service.Unpack() }

// Report returns what the status has of the service.
func (o Offer) Report() (status.Service, error) {
	var updated time.Time
	if o.updated != 0 {
		updated = time.Unix(int64(o.updated), 0)
	}
	return status.NewService(o.Service(), updated, o.stale)
}
