package catalog

import (
	"fmt"
	"hash/maphash"

	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// fqdnCounts counts the services of each fqdn, and refuses one that is beyond
// packed.MaxServicesPerFQDN. The limit exists because a zone looks at all services of an fqdn when
// one of them changes. The fqdn is the one that the owner has sent: each zone may rename it
// otherwise. Only replaceRecord of the catalog changes the counts.
//
// Services of an earlier stream count until they are swept, so that there are never more than the
// limit. An owner that comes back with other services at an fqdn may therefore have some of them
// refused. The sweep makes room, which freed records, so that a new stream brings these services.
type fqdnCounts struct {
	services map[fqdnHash]uint8    // none of them 0
	refused  map[fqdnHash]struct{} // those, all full, of which the open stream announced one more
	freed    bool                  // one of those refused is not full any more
	seed     maphash.Seed          // random, so that a peer cannot choose names that collide
}

// fqdnHash stands for an fqdn, because with a million services every word counts. Of that many
// fqdns, one in 2^28 has the same hash as another one.
type fqdnHash [6]byte

func newFQDNCounts() fqdnCounts {
	return fqdnCounts{services: make(map[fqdnHash]uint8), refused: make(map[fqdnHash]struct{}), seed: maphash.MakeSeed()}
}

// hashFQDN returns the hash of the fqdn of a service.
func (f *fqdnCounts) hashFQDN(s packed.Service) fqdnHash {
	h := maphash.String(f.seed, s.FQDN())
	return fqdnHash{byte(h), byte(h >> 8), byte(h >> 16), byte(h >> 24), byte(h >> 32), byte(h >> 40)} //nolint:gosec // a part is enough
}

// forgetRefused forgets which services an earlier stream was refused.
func (f *fqdnCounts) forgetRefused() {
	f.refused, f.freed = make(map[fqdnHash]struct{}), false
}

// exceededRule returns the rule that would be broken if next took the place of prev, or "". Either
// service may be zero.
func (f *fqdnCounts) exceededRule(prev, next packed.Service) string {
	if next.IsZero() || prev.FQDN() == next.FQDN() {
		return ""
	}
	key := f.hashFQDN(next)
	if f.services[key] < packed.MaxServicesPerFQDN {
		return ""
	}
	f.refused[key] = struct{}{}
	return fmt.Sprintf("an owner may have %d services at one fqdn, and this is one more; give it another fqdn", packed.MaxServicesPerFQDN)
}

// replaceService counts next in the place of prev. Either service may be zero.
func (f *fqdnCounts) replaceService(prev, next packed.Service) {
	if prev.FQDN() == next.FQDN() {
		return
	}
	if !next.IsZero() {
		f.services[f.hashFQDN(next)]++
	}
	if prev.IsZero() {
		return
	}
	key := f.hashFQDN(prev)
	if _, refused := f.refused[key]; refused {
		delete(f.refused, key)
		f.freed = true
	}
	if f.services[key]--; f.services[key] == 0 {
		delete(f.services, key)
	}
	if len(f.services) == 0 {
		f.services = make(map[fqdnHash]uint8) // a catalog that was large does not stay so
	}
}
