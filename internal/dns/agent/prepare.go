package agent

import (
	"runtime"
	"sync"

	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// leastTogether is how many services one goroutine compiles at least.
const leastTogether = 64

// prepareServices returns, for each change that offers a service, the compiled service for each
// block. The writer of zones serves all owners, so services are compiled before they come to it:
// one of 1,000 endpoints and instances takes tens of milliseconds. The services of a file are many,
// and so all processors compile them.
func (o *mirroredOwner) prepareServices(members []*publishingBlock, changes []catalog.Change) [][]zone.PreparedOffer {
	offers := make([][]zone.PreparedOffer, len(changes))
	compile := func(unpacker *packed.Unpacker, from, to int) {
		for n := from; n < to; n++ {
			if change := &changes[n]; change.Kind() == catalog.Offered {
				s := unpacker.Unpack(change.Packed)
				offers[n] = make([]zone.PreparedOffer, len(members))
				for i, m := range members {
					offers[n][i] = m.block.builder.Prepare(m.index, change.Packed, s)
				}
			}
		}
	}
	together := max(leastTogether, len(changes)/runtime.GOMAXPROCS(0)+1)
	var others sync.WaitGroup
	for from := together; from < len(changes); from += together {
		others.Go(func() { compile(new(packed.Unpacker), from, min(from+together, len(changes))) })
	}
	compile(&o.unpacker, 0, min(together, len(changes)))
	others.Wait()
	return offers
}
