package zone

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
)

// ends lists endpoints of a service by index, ordered by SRV target and port,
// each pair once.
type ends []uint16

// only is the list of a service with one endpoint.
var only = [...]uint16{0}

// order fills all: RFC 2181 section 5 allows no record twice in an RRset, and
// the order is a function of the content so that signatures over a set can be
// cached. It returns for every endpoint the one in all that has its target and
// port.
func (e *entry) order() []uint16 {
	endpoints := e.endpoints
	if len(endpoints) == 1 {
		_, e.hosts = endpoints[0].Address.Host()
		e.all = only[:]
		return e.all
	}
	order := make(ends, len(endpoints))
	targets := make([]string, len(endpoints))
	for i := range endpoints {
		targets[i], order[i] = e.target(&endpoints[i]), uint16(i) // wire.MaxEndpoints is far below 1<<16
	}
	compare := func(a, b uint16) int {
		return cmp.Or(strings.Compare(targets[a], targets[b]), cmp.Compare(endpoints[a].Port, endpoints[b].Port))
	}
	// A host can be the name of an IP address of this service, which then stands
	// for both.
	isHost := func(i uint16) int {
		if _, ok := endpoints[i].Address.Host(); ok {
			return 1
		}
		return 0
	}
	slices.SortFunc(order, func(a, b uint16) int {
		return cmp.Or(compare(a, b), cmp.Compare(isHost(a), isHost(b)), cmp.Compare(a, b))
	})
	representative := make([]uint16, len(endpoints))
	e.all = order[:0]
	for _, i := range order {
		if n := len(e.all); n == 0 || compare(e.all[n-1], i) != 0 {
			e.all = append(e.all, i)
			e.hosts = e.hosts || isHost(i) == 1
		}
		representative[i] = e.all[len(e.all)-1]
	}
	e.all = slices.Clip(e.all)
	return representative
}

// target returns the SRV target of an endpoint: its host, or the name in this
// service that has its IP address and no other.
func (e *entry) target(ep *endpoint) string {
	if host, ok := ep.Address.Host(); ok {
		return host.String()
	}
	ip, _ := ep.Address.IP()
	var buf [maxAddress + len("."+addrLabel+".") + maxName]byte
	b := append(appendAddress(buf[:0], ip), "."+addrLabel+"."...)
	return string(append(b, strings.TrimPrefix(e.fqdn(), ".")...))
}

// selections returns for every instance the endpoints that its selector picks.
// Hamlet, 'CREATE': 'If there is no matching selector for an Instance, then
// consumer agent implementors must associate to that Instance all endpoints.'
//
// Sets of bits keep the work within instances x selectors x endpoints/64, also
// for a service that is made to be expensive.
func (e *entry) selections(representative []uint16) []ends {
	s := e.service
	byLabel := make(map[string]bitset)
	for i := range s.Instances {
		for _, l := range s.Instances[i].EndpointSelector {
			byLabel[l] = nil
		}
	}
	if len(byLabel) == 0 {
		return slices.Repeat([]ends{e.all}, len(s.Instances))
	}
	for i := range s.Endpoints {
		for _, l := range s.Endpoints[i].Labels {
			set, ok := byLabel[l]
			if !ok {
				continue
			}
			if set == nil {
				set = newBitset(len(s.Endpoints))
				byLabel[l] = set
			}
			set.add(representative[i])
		}
	}
	selected := make([]ends, len(s.Instances))
	union := newBitset(len(s.Endpoints))
	for i := range s.Instances {
		clear(union)
		for _, l := range s.Instances[i].EndpointSelector {
			union.addAll(byLabel[l])
		}
		selected[i] = e.pick(union)
	}
	return selected
}

// pick returns the endpoints that are in the set, in the order of all; all of
// them when none is.
func (e *entry) pick(set bitset) ends {
	n := set.len()
	if n == 0 || n == len(e.all) {
		return e.all
	}
	picked := make(ends, 0, n)
	for _, i := range e.all {
		if set.has(i) {
			picked = append(picked, i)
		}
	}
	return picked
}

// bitset is a set of small numbers.
type bitset []uint64

func newBitset(size int) bitset { return make(bitset, (size+63)/64) }

func (s bitset) add(i uint16)      { s[i/64] |= 1 << (i % 64) }
func (s bitset) has(i uint16) bool { return s[i/64]&(1<<(i%64)) != 0 }

func (s bitset) addAll(t bitset) {
	for i, word := range t {
		s[i] |= word
	}
}

func (s bitset) len() int {
	n := 0
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}
