package catalog

import (
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// What a service counts beside the octets of its strings. Each constant is half of what the
// thing takes in memory at most, in the catalog and in one zone that publishes it:
// Go's structures with their place in maps and size classes, and what package zone
// derives from them. TestMemory measures it.
//
//	perService   the service (176), its place in the catalog (110), the entry of
//	             the zone (290) with its place (60) and counts of faults (260)
//	perNode      a label of the fqdn, which is a name in the zone: node and leaf
//	perEndpoint  in the service (88) and in the entry (48), and 2 for each of up
//	             to eight protocols that are spoken there
//	perInstance  in the service (96) and in the entry (48), its ID once more where
//	             it has to be folded, and its TXT record without ID and metadata (32)
//	perPair      two strings in a list
//	perString    a string in a list, and what its size class adds
//	perName      a name without a service, as it was not admitted; or an ID
//
// A name that owners share is in the zone a second time, as a union of their services, which has the
// service, its endpoints and its instances once more.
const (
	perService  = 480
	perNode     = 48
	perEndpoint = 84
	perInstance = 100
	perPair     = 28
	perString   = 14
	perName     = 80

	perShared         = 300
	perSharedEndpoint = 45
	perSharedInstance = 60
)

// ownNodes is how many labels of an fqdn do not count, because services share the labels of their
// zone and the first label is part of perService.
const ownNodes = 3

// Size returns what a service counts for Rules.MaxCatalog, in octets: those of its strings as they
// came, and a constant for each thing that is made of them. With shared, owners share the name of
// the service, which then counts more. The catalog and one zone together take at most twice that in
// memory.
func Size(s *federation.Service, shared bool) int64 {
	n := perService + len(s.Name) + len(s.FQDN.String()) + perNode*max(strings.Count(s.FQDN.String(), ".")-ownNodes, 0)
	n += sizeOfText(s.Description) + sizeOfTexts(s.Tags) + sizeOfTexts(s.SANs) + sizeOfPairs(s.Labels)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		n += perEndpoint + sizeOfText(e.Description) + sizeOfTexts(e.Labels)
		if host, ok := e.Address.Host(); ok {
			n += sizeOfText(host.String())
		}
	}
	for i := range s.Instances {
		in := &s.Instances[i]
		n += perInstance + sizeOfText(in.ID) + sizeOfText(in.Description) + sizeOfPairs(in.Metadata) + sizeOfTexts(in.EndpointSelector)
		if len(in.EndpointSelector) > 0 {
			n += len(s.Endpoints) // the entry lists those that it picks, in 2 octets each
		}
	}
	if shared {
		n += perShared + perSharedEndpoint*len(s.Endpoints) + perSharedInstance*len(s.Instances)
	}
	return int64(n)
}

// sizeOfID returns what the ID of a service counts: nothing where it is the name.
func sizeOfID(name, id string) int64 {
	if id == "" || id == name {
		return 0
	}
	return int64(perName + len(id))
}

// sizeOfText returns what a string that may be missing counts.
func sizeOfText(s string) int {
	if s == "" {
		return 0
	}
	return len(s) + perString
}

// sizeOfTexts returns what a list of strings counts.
func sizeOfTexts(list []string) int {
	n := 0
	for _, s := range list {
		n += len(s) + perString
	}
	return n
}

// sizeOfPairs returns what a list of pairs counts.
func sizeOfPairs(list []federation.Pair) int {
	n := 0
	for _, p := range list {
		n += len(p.Key) + len(p.Value) + perPair
	}
	return n
}
