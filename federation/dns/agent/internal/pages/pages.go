// Package pages reads what zones have of an owner, in the order of the services' names, a
// page at a time or all of it.
package pages

import (
	"iter"
	"time"
	"weak"

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

// Catalogs reads the catalogs of owners, each of which has an ID. While somebody reads one,
// it keeps a few octets for each service. It is safe for concurrent use. The zero value is
// ready to use.
type Catalogs struct{ lists paging.Lists[string, offer] }

// offer is a zone.Offer in less memory.
type offer struct {
	service packed.Service
	updated uint32 // seconds from 1970; 0: it is not known
	stale   bool
}

// Page returns up to limit services that any of the parts has, in the order of their names,
// from the first on that comes after a name, and the name after which the next page begins:
// empty where there is none. How old it may be is in package paging. Size is about how many
// services there are.
func (c *Catalogs) Page(id string, parts []Part, size int, after string, limit int) (services []status.Service, next string, err error) {
	page, more := paging.Page(c.sorted(id, parts, size), after, limit)
	services = make([]status.Service, len(page))
	for i := range page {
		if services[i], err = page[i].Value.report(); err != nil {
			return nil, "", err
		}
	}
	if more {
		next = page[len(page)-1].Name
	}
	return services, next, nil
}

// Services yields all services that any of the parts has, in the order of their names, each
// once. How old they may be is in package paging. Size is about how many there are.
func (c *Catalogs) Services(id string, parts []Part, size int) iter.Seq2[status.Service, error] {
	return func(yield func(status.Service, error) bool) {
		for _, of := range c.sorted(id, parts, size) {
			if !yield(of.Value.report()) {
				return
			}
		}
	}
}

func (c *Catalogs) sorted(id string, parts []Part, size int) []paging.Entry[offer] {
	version := make([]any, len(parts))
	for i, p := range parts {
		version[i] = weak.Make(p.Zone) // so that a list does not keep a zone of which nothing else is left
	}
	return c.lists.Of(id, version, size, func(add func(string, offer)) {
		for _, p := range parts {
			for o := range p.Zone.Offers(p.Owner) {
				of := offer{service: o.Service, stale: o.Stale}
				if !o.Updated.IsZero() {
					of.updated = uint32(o.Updated.Unix()) //nolint:gosec // until 2106
				}
				add(o.Service.Name(), of)
			}
		}
	})
}

func (o offer) report() (status.Service, error) {
	var updated time.Time
	if o.updated != 0 {
		updated = time.Unix(int64(o.updated), 0)
	}
	return status.NewService(o.service.Unpack(), updated, o.stale)
}
