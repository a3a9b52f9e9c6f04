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

// prepareServices returns for each change that offers a service what the blocks make of it. A service is
// compiled before it comes to the writer, which all owners share: one of 1,000 endpoints and
// instances takes tens of milliseconds. Those of a file, which are many, are compiled on all
// processors.
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
