package zone

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// ends lists endpoints of an entry by index, in ascending order.
type ends []uint16

// everything begins with the list of all endpoints, however many there are.
var everything = func() (all [1 << 16]uint16) { //nolint:gochecknoglobals // a constant that Go has no word for
	for i := range all {
		all[i] = uint16(i)
	}
	return all
}()

// all lists every endpoint.
func (e *entry) all() ends { return everything[:len(e.endpoints)] }

// order fills endpoints with those of the service, by SRV target and port, each
// pair once: RFC 2181 section 5 allows no record twice in an RRset, and the order
// is a function of the content so that signatures over a set can be cached. It
// returns for every endpoint of the service the index of the one that has its
// target and port.
func (e *entry) order() []uint16 {
	own := e.service.Endpoints
	if len(own) == 1 {
		e.endpoints = e.oneEndpoint[:0]
		e.add(&own[0])
		return e.all()
	}
	order, targets := make([]uint16, len(own)), make([]string, len(own))
	for i := range own {
		order[i], targets[i] = uint16(i), e.target(own[i].Address) // wire.MaxEndpoints is far below 1<<16
	}
	compare := func(a, b uint16) int {
		return cmp.Or(strings.Compare(targets[a], targets[b]), cmp.Compare(own[a].Port, own[b].Port))
	}
	// A host can be the name of an IP address of this service, which then stands
	// for both.
	isHost := func(i uint16) int {
		if _, ok := own[i].Address.Host(); ok {
			return 1
		}
		return 0
	}
	slices.SortFunc(order, func(a, b uint16) int {
		return cmp.Or(compare(a, b), cmp.Compare(isHost(a), isHost(b)), cmp.Compare(a, b))
	})
	e.endpoints = make([]endpoint, 0, len(own))
	places := make([]uint16, len(own))
	for n, i := range order {
		if n == 0 || compare(order[n-1], i) != 0 {
			e.add(&own[i])
		}
		places[i] = uint16(len(e.endpoints) - 1) //nolint:gosec // as above
	}
	return places
}

func (e *entry) add(ep *federation.Endpoint) {
	e.endpoints = append(e.endpoints, endpoint{ep.Address, ep.Port})
	if _, ok := ep.Address.Host(); ok {
		e.hosts = true
	}
}

// target returns the SRV target of an endpoint: its host, or the name in this
// service that has its IP address and no other.
func (e *entry) target(address federation.Address) string {
	if host, ok := address.Host(); ok {
		return host.String()
	}
	ip, _ := address.IP()
	var buf [maxAddress + len("."+addrLabel+".") + maxName]byte
	b := append(appendAddress(buf[:0], ip), "."+addrLabel+"."...)
	return string(append(b, strings.TrimPrefix(e.fqdn(), ".")...))
}

// targetLen returns the length of an endpoint's target.
func (e *entry) targetLen(address federation.Address) int {
	if host, ok := address.Host(); ok {
		return len(host.String())
	}
	ip, _ := address.IP()
	return addressLen(ip) + len("."+addrLabel+".") + len(strings.TrimPrefix(e.fqdn(), "."))
}

// selections returns for every instance the endpoints that its selector picks.
// Hamlet, 'CREATE': 'If there is no matching selector for an Instance, then
// consumer agent implementors must associate to that Instance all endpoints.'
//
// Sets of bits keep the work within instances x selectors x endpoints/64, also
// for a service that is made to be expensive.
func (e *entry) selections(places []uint16) []ends {
	s := e.service
	if !slices.ContainsFunc(s.Instances, func(in federation.Instance) bool { return len(in.EndpointSelector) > 0 }) {
		return slices.Repeat([]ends{e.all()}, len(s.Instances))
	}
	labels := 0
	for i := range s.Endpoints {
		labels += len(s.Endpoints[i].Labels)
	}
	sets := make([]labeled, 0, labels)
	byLabel := make(map[string]uint32, labels) // to the index of its set
	for i := range s.Endpoints {
		for _, l := range s.Endpoints[i].Labels {
			n, ok := byLabel[l]
			if !ok {
				byLabel[l] = uint32(len(sets)) //nolint:gosec // at most wire.MaxEndpoints times wire.MaxLabels
				sets = append(sets, labeled{first: places[i]})
				continue
			}
			if sets[n].all == nil {
				sets[n].all = newBitset(len(s.Endpoints))
				sets[n].all.add(sets[n].first)
			}
			sets[n].all.add(places[i])
		}
	}
	selected := make([]ends, len(s.Instances))
	union := newBitset(len(s.Endpoints))
	for i := range s.Instances {
		clear(union)
		for _, l := range s.Instances[i].EndpointSelector {
			if n, ok := byLabel[l]; ok && sets[n].all != nil {
				union.addAll(sets[n].all)
			} else if ok {
				union.add(sets[n].first)
			}
		}
		selected[i] = e.pick(union)
	}
	return selected
}

// labeled holds the endpoints with one label.
type labeled struct {
	first uint16
	all   bitset // nil when that is the only one
}

// pick returns the endpoints that are in the set; all of them when none is.
func (e *entry) pick(set bitset) ends {
	n := set.len()
	if n == 0 || n == len(e.endpoints) {
		return e.all()
	}
	picked := make(ends, 0, n)
	for at, word := range set {
		for ; word != 0; word &= word - 1 {
			picked = append(picked, uint16(64*at+bits.TrailingZeros64(word))) //nolint:gosec // an index of endpoints
		}
	}
	return picked
}

// bitset is a set of small numbers.
type bitset []uint64

func newBitset(size int) bitset { return make(bitset, (size+63)/64) }

func (s bitset) add(i uint16) { s[i/64] |= 1 << (i % 64) }

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
