package catalog

import "github.com/hamlet-federation/coredns-federation/federation"

// What a record is counted with beside the octets of its strings. Each is half of
// what the record takes in memory at most, in the catalog and in one zone that
// publishes it: Go's structures with their place in maps and size classes, and
// what package zone derives from them. See TestSize, which measures it.
//
//	perService   the service (176), its place in the catalog (110), the entry of
//	             the zone (290) with its place (60) and counts of faults (260)
//	perNode      a label of the fqdn is a name in the zone: node and leaf
//	perEndpoint  in the service (88) and in the entry (48), and 2 for each of up
//	             to eight protocols that are spoken there
//	perInstance  in the service (96) and in the entry (48), its ID once more where
//	             it has to be folded, and its TXT record without ID and metadata (32)
//	perPair      two strings in a list
//	perString    a string in a list, and what its size class adds
//	perName      a name that is known by itself: one that was refused, or an ID
const (
	perService  = 480
	perNode     = 48
	perEndpoint = 84
	perInstance = 100
	perPair     = 28
	perString   = 14
	perName     = 80
)

// ownNodes is how many labels of an fqdn are no names of its own, as services
// share those of their zone, or are counted with perService.
const ownNodes = 3

// MemoryFactor is how many octets of memory a catalog and one zone take at most
// for one that Size counts.
const MemoryFactor = 2

// Size returns what a service counts for Config.MaxCatalog: its octets as they
// came, and a constant for each record that they become. What equal lists share is
// counted once, but the octets of each.
func Size(s *federation.Service) int64 {
	n := perService + len(s.Name) + len(s.FQDN.String()) + perNode*max(labels(s.FQDN.String())-ownNodes, 0)
	n += text(s.Description) + texts(s.Tags) + texts(s.SANs) + pairs(s.Labels)
	known := lists{}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		n += perEndpoint + text(e.Description) + known.size(e.Labels)
		if host, ok := e.Address.Host(); ok {
			n += text(host.String())
		}
	}
	for i := range s.Instances {
		in := &s.Instances[i]
		n += perInstance + text(in.ID) + text(in.Description) + pairs(in.Metadata) + known.size(in.EndpointSelector)
		if len(in.EndpointSelector) > 0 {
			n += len(s.Endpoints) // the entry lists those that it picks, in 2 octets each
		}
	}
	return int64(n)
}

// sizeOfName returns what a name counts of which there is no service.
func sizeOfName(name string) int64 { return int64(perName + len(name)) }

// sizeOfID returns what the ID of a service counts.
func sizeOfID(name, id string) int64 {
	if id == "" || id == name {
		return 0
	}
	return int64(perName + len(id))
}

// lists are those that were counted, by where they are.
type lists map[*string]struct{}

// size returns what a list counts, and only its octets when it was counted before.
func (l lists) size(list []string) int {
	if len(list) == 0 {
		return 0
	}
	first := &list[0]
	if _, ok := l[first]; ok {
		n := 0
		for _, s := range list {
			n += len(s) + 2 // with the tag and the length that stood before it
		}
		return n
	}
	l[first] = struct{}{}
	return texts(list)
}

// labels returns how many labels a name has.
func labels(name string) int {
	n := 0
	for i := range len(name) {
		if name[i] == '.' {
			n++
		}
	}
	return n
}

func text(s string) int {
	if s == "" {
		return 0
	}
	return len(s) + perString
}

func texts(list []string) int {
	n := 0
	for _, s := range list {
		n += len(s) + perString
	}
	return n
}

func pairs(list []federation.Pair) int {
	n := 0
	for _, p := range list {
		n += len(p.Key) + len(p.Value) + perPair
	}
	return n
}
