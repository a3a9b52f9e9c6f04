package ownreport

import (
	"context"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/page"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

var _ page.Settler = (*Reporter)(nil)

// Settled implements page.Settler.
func (r *Reporter) Settled(ctx context.Context, q page.Question, progress func(status.Settlement)) (status.Settlement, error) {
	if q.Catalog != nil {
		if _, err := r.of(*q.Catalog); err != nil {
			return status.Settlement{}, err
		}
	}
	about := func(s status.Settlement) status.Settlement {
		s.Name = q.Name
		if q.Address.IsValid() {
			s.Address = q.Address.String()
		}
		return s
	}
	inquiry := r.publisher.Inquire(owner.Question{
		Matches: func(s *wire.Encoded) bool { return named(s, &q) }, There: q.There, Catalog: q.Catalog, Ignore: q.Ignore,
	})
	return about(inquiry.Wait(ctx, func(s status.Settlement) { progress(about(s)) })), nil
}

// named reports whether a service has the name that is asked for, and an endpoint with the
// address, if one is asked for.
func named(e *wire.Encoded, q *page.Question) bool {
	fqdn := strings.ToLower(e.FQDN())
	isName := q.Name == fqdn || strings.EqualFold(e.Name(), q.Name)
	if !isName && !strings.HasSuffix(q.Name, "."+fqdn) || isName && !q.Address.IsValid() {
		return isName
	}
	s := e.Service()
	return (isName || zone.HasName(s, q.Name)) && (!q.Address.IsValid() || slices.ContainsFunc(s.Endpoints, func(e federation.Endpoint) bool {
		ip, ok := e.Address.IP()
		return ok && ip == q.Address.Unmap()
	}))
}
