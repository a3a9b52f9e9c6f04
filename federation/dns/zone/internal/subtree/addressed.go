package subtree

import (
	"iter"
	"net/netip"
	"slices"
)

// Addressed yields each IP address with the label of each named instance that has it, up to the
// second: who looks for an address that one instance has needs no more.
func (t *Subtree) Addressed() iter.Seq2[netip.Addr, string] {
	return func(yield func(netip.Addr, string) bool) {
		endpoints, instances := t.endpoints(), t.Instances()
		found := make([][]*Instance, len(endpoints)) // at the first endpoint with the address
		first := make([]uint16, len(endpoints))
		for i := range endpoints {
			if first[i] = uint16(i); i > 0 && endpoints[i].Address == endpoints[i-1].Address {
				first[i] = first[i-1]
			}
		}
		for n := range instances {
			in := &instances[n]
			for _, i := range t.endpointsOf(in) {
				if at := first[i]; len(found[at]) < 2 && !slices.Contains(found[at], in) {
					found[at] = append(found[at], in)
				}
			}
		}
		for i := range found {
			ip, ok := endpoints[i].Address.IP()
			for _, in := range found[i] {
				if ok && !yield(ip, in.Label) {
					return
				}
			}
		}
	}
}
