package subtree

import "math/bits"

// Selection lists endpoints of a Subtree by index, in ascending order.
type Selection []uint16

// everything begins with the selection of all endpoints, however many there are.
var everything = func() (all [1 << 16]uint16) { //nolint:gochecknoglobals // a constant that Go has no word for
	for i := range all {
		all[i] = uint16(i)
	}
	return all
}()

// selectEndpoints returns the endpoints that the selector of each instance selects, or nil when no
// instance has a selector. Hamlet, 'CREATE': 'If there is no matching selector for an Instance,
// then consumer agent implementors must associate to that Instance all endpoints.'
//
// Sets of bits keep the work within instances x selectors x endpoints/64, even for a service that
// is made to be expensive.
func (c *serviceCompiler) selectEndpoints(places []uint16) []Selection {
	s := c.service
	byLabel := make(map[string]endpointSet) // for the labels that are selected
	for i := range s.Instances {
		for _, l := range s.Instances[i].EndpointSelector {
			if byLabel[l] == nil {
				byLabel[l] = newEndpointSet(len(s.Endpoints))
			}
		}
	}
	if len(byLabel) == 0 {
		return nil
	}
	for i := range s.Endpoints {
		for _, l := range s.Endpoints[i].Labels {
			if set := byLabel[l]; set != nil {
				set.addIndex(places[i])
			}
		}
	}
	selected := make([]Selection, len(s.Instances))
	union := newEndpointSet(len(s.Endpoints))
	for i := range s.Instances {
		clear(union)
		for _, l := range s.Instances[i].EndpointSelector {
			union.addAll(byLabel[l])
		}
		selected[i] = c.pickEndpoints(union)
	}
	return selected
}

// pickEndpoints returns the endpoints in the set, or all of them when the set is empty.
func (t *Subtree) pickEndpoints(set endpointSet) Selection {
	n := set.len()
	if n == 0 || n == len(t.allEndpoints()) {
		return t.SelectAll()
	}
	picked := make(Selection, 0, n)
	for at, word := range set {
		for ; word != 0; word &= word - 1 {
			picked = append(picked, uint16(64*at+bits.TrailingZeros64(word))) //nolint:gosec // an index of endpoints
		}
	}
	return picked
}

// endpointSet is a set of small numbers.
type endpointSet []uint64

func newEndpointSet(size int) endpointSet { return make(endpointSet, (size+63)/64) }

func (s endpointSet) addIndex(i uint16) { s[i/64] |= 1 << (i % 64) }

func (s endpointSet) addAll(t endpointSet) {
	for i, word := range t {
		s[i] |= word
	}
}

func (s endpointSet) len() int {
	n := 0
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}
