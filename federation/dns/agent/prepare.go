package agent

import (
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

// A service is judged and compiled for all blocks that publish its owner before it comes to the
// writer, which all owners share: to compile one of 1,000 endpoints and instances takes tens of
// milliseconds.

// compiled is one service, prepared for the block of each member.
type compiled struct {
	members *[]*member // that Config.Prepare has seen
	service packed.Service
	offers  []zone.Prepared // member by member
}

// compile is consumer.Config.Prepare, for a service from the file.
func (o *owner) compile(p packed.Service, s *federation.Service) any {
	members := o.members.Load()
	return compiled{members, p, prepareFor(*members, p, s)}
}

func prepareFor(members []*member, p packed.Service, s *federation.Service) []zone.Prepared {
	offers := make([]zone.Prepared, len(members))
	for i, m := range members {
		offers[i] = m.block.builder.Prepare(m.index, p, s)
	}
	return offers
}

// prepare returns for each change that offers a service what the blocks make of it.
func (o *owner) prepare(members *[]*member, changes *consumer.Changes) [][]zone.Prepared {
	offers := make([][]zone.Prepared, len(changes.Services))
	known := changes.Prepared
	for n := range changes.Services {
		change := &changes.Services[n]
		if change.Op() != catalog.Offered {
			continue
		}
		// Services that compile has seen and that have no change were refused by the catalog.
		for len(known) > 0 && offers[n] == nil {
			if c := known[0].(compiled); c.service == change.Packed && c.members == members { //nolint:forcetypeassert // compile has made it
				offers[n] = c.offers
			}
			known = known[1:]
		}
		if offers[n] == nil {
			offers[n] = prepareFor(*members, change.Packed, o.unpacker.Unpack(change.Packed))
		}
	}
	return offers
}
