package zone

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

const (
	addrLabel = "addr" // <ip>.addr.<fqdn> is the SRV target of an IP endpoint
	tcpLabel  = "_tcp" // every protocol of the specification runs over TCP

	// maxName is the longest name in presentation form with its final dot
	// (RFC 1035 section 2.3.4: 255 octets on the wire).
	maxName = 254
)

// entry is one service as one owner offers it, compiled. It is immutable.
type entry struct {
	// What most queries need comes first and in one place: in a large catalog a
	// look-up takes as long as the memory that it touches.
	home        item // that of its fqdn, while nothing else is there or below
	generation  uint64
	owner       uint32      // index in Config.Owners
	hosts       bool        // an endpoint is a host, so addresses must be looked up
	endpoints   []endpoint  // sorted by SRV target and port, each pair once
	oneEndpoint [1]endpoint // endpoints when there is one, as there mostly is
	instances   []instance  // those with a name of their own, sorted by label
	oneInstance [1]instance // instances when there is one

	service   *federation.Service
	protocols []protocol // sorted by protocol
	faults    faults

	texts        string    // the RDATA of the TXT records of the service and of each instance
	textEnds     []uint32  // of each in texts
	described    ends      // the instances with a TXT record at the fqdn, by index in service.Instances
	oneDescribed [1]uint16 // described when there is one
}

// fqdn returns where the service is published: lower case, absolute.
func (e *entry) fqdn() string { return e.home.Name }

// endpoint is what answers show of an endpoint.
type endpoint struct {
	Address federation.Address
	Port    uint16
}

func (ep *endpoint) isHost() bool {
	_, ok := ep.Address.Host()
	return ok
}

// instance is an instance with a name of its own.
type instance struct {
	label    string // relative to the fqdn
	index    uint16 // in service.Instances
	protocol federation.Protocol
	ends     ends
}

// protocol is the set of endpoints that speak one protocol.
type protocol struct {
	protocol federation.Protocol
	ends     ends
}

// Fault is a kind of name or record that a catalog asks for and that cannot be
// published, or not by this owner. It is the value of a metric label.
type Fault string

// The faults. Services whose fqdn is refused are refused when they arrive; they
// are counted here when another server block admits them.
const (
	FaultOutOfZone    = Fault(federation.ReasonOutOfZone)
	FaultReservedName = Fault(federation.ReasonReservedName)
	FaultName         = Fault(federation.ReasonName) // the fqdn is too long where it is renamed to
	FaultFQDN         = Fault("fqdn_conflict")       // another service has the fqdn
	FaultInstanceID   = Fault("instance_id")         // the ID is no DNS name, so the instance has no name of its own
	FaultInstanceName = Fault("instance_conflict")   // an instance, or a service, wants a name that an instance or a service has
	FaultNameTooLong  = Fault("name_too_long")       // a derived name is longer than DNS allows
	FaultTXT          = Fault("txt_dropped")         // a string does not fit or is no DNS-SD pair
	FaultSize         = Fault("rrset_too_large")     // an RRset does not fit a message
)

// faults counts faults by kind.
type faults map[Fault]int

func (f *faults) add(kind Fault, n int) {
	if n == 0 {
		return
	}
	if *f == nil {
		*f = make(faults)
	}
	(*f)[kind] += n
}

// compile makes the entry of a service that is published as fqdn.
func compile(s *federation.Service, fqdn string, zones origins, owner int, generation uint64) *entry {
	e := &entry{service: s, owner: uint32(owner), generation: generation} //nolint:gosec // an index of Config.Owners
	e.home = item{Name: fqdn, Value: node{first: e}}
	e.name(zones, e.selections(e.order()))
	e.describe()
	e.check()
	return e
}

// confirmed returns the same offer in another generation.
func (e *entry) confirmed(generation uint64) *entry {
	c := *e
	c.home.Value.first, c.generation = &c, generation
	// What e holds itself would keep e for c.
	if len(e.endpoints) == 1 {
		c.endpoints = append(c.oneEndpoint[:0], e.endpoints...)
	}
	if len(e.instances) == 1 {
		c.instances = append(c.oneInstance[:0], e.instances...)
	}
	if len(e.described) == 1 {
		c.described = append(c.oneDescribed[:0], e.described...)
	}
	return &c
}

// name fills instances and protocols.
func (e *entry) name(zones origins, selected []ends) {
	s := e.service
	var byProtocol [len(serviceLabels)]bitset
	e.instances = e.oneInstance[:0]
	if len(s.Instances) > 1 {
		e.instances = make([]instance, 0, len(s.Instances))
	}
	for i := range s.Instances {
		in := &s.Instances[i]
		if byProtocol[in.Protocol] == nil {
			byProtocol[in.Protocol] = newBitset(len(s.Endpoints))
		}
		for _, end := range selected[i] {
			byProtocol[in.Protocol].add(end)
		}
		if in.Unnamed {
			continue
		}
		label, fault := e.label(in, zones)
		if fault != "" {
			e.faults.add(fault, 1)
			continue
		}
		e.instances = append(e.instances, instance{label, uint16(i), in.Protocol, selected[i]}) // wire.MaxInstances is far below 1<<16
	}
	// Of IDs that are one name, the smallest has it, in whatever order they came.
	slices.SortFunc(e.instances, func(a, b instance) int {
		return cmp.Or(strings.Compare(a.label, b.label), strings.Compare(s.Instances[a.index].ID, s.Instances[b.index].ID))
	})
	n := len(e.instances)
	e.instances = slices.Clip(slices.CompactFunc(e.instances, func(a, b instance) bool { return a.label == b.label }))
	e.faults.add(FaultInstanceName, n-len(e.instances))

	for p, set := range byProtocol {
		if set != nil {
			e.protocols = append(e.protocols, protocol{federation.Protocol(p), e.pick(set)})
		}
	}
	e.protocols = slices.Clip(e.protocols)
}

// label returns the name of an instance relative to the fqdn, or why it has
// none.
func (e *entry) label(in *federation.Instance, zones origins) (string, Fault) {
	label, err := federation.ParseLabel(in.ID)
	if err != nil {
		return "", FaultInstanceID
	}
	name, origin := below(label.String(), e.fqdn()), zones.of(e.fqdn())
	switch {
	case len(name) > maxName:
		return "", FaultNameTooLong
	case zones.of(name) != origin:
		return "", FaultOutOfZone
	case reserved(name, origin.name) != "":
		return "", FaultReservedName
	}
	return label.String(), ""
}

// instance returns the instance whose own name is label.
func (e *entry) instance(label string) (*instance, bool) {
	i, ok := slices.BinarySearchFunc(e.instances, label, func(in instance, l string) int { return strings.Compare(in.label, l) })
	if !ok {
		return nil, false
	}
	return &e.instances[i], true
}

// above tells whether label is an empty non-terminal between the fqdn and an
// instance with a name of several labels (RFC 8020).
func (e *entry) above(label string) bool {
	return slices.ContainsFunc(e.instances, func(in instance) bool {
		return len(in.label) > len(label) && within(in.label, label)
	})
}

// claimed yields the names below the fqdn that a service could be offered at and
// that the entry has: those of instances, and the empty non-terminals above them
// and above addresses.
func (e *entry) claimed() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range e.instances {
			for at := below(e.instances[i].label, e.fqdn()); at != e.fqdn(); at = parent(at) {
				if !yield(at) {
					return
				}
			}
		}
		if e.hasIP() {
			yield(below(addrLabel, e.fqdn()))
		}
	}
}

// serviceLabels is indexed by federation.Protocol. RFC 8552; names of RFC 6335
// section 5.1 form. MongoDB has its registered name as well, which RFC 2782
// calls the only legal one.
var serviceLabels = [...][]string{
	federation.HTTP:  {"_http._tcp"},
	federation.HTTPS: {"_https._tcp"},
	federation.GRPC:  {"_grpc._tcp"},
	federation.HTTP2: {"_http2._tcp"},
	federation.MONGO: {"_mongo._tcp", "_mongodb._tcp"},
	federation.TCP:   {"_tcp._tcp"},
	federation.TLS:   {"_tls._tcp"},
	federation.MTLS:  {"_mtls._tcp"},
}

// has tells whether one of the endpoints has the address.
func (e *entry) has(ip netip.Addr) bool {
	return slices.ContainsFunc(e.endpoints, func(ep endpoint) bool {
		own, ok := ep.Address.IP()
		return ok && own == ip
	})
}

// derived yields the names that the entry has below its fqdn, relative to it.
func (e *entry) derived() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range e.protocols {
			for _, l := range serviceLabels[e.protocols[i].protocol] {
				if !yield(l) {
					return
				}
			}
		}
		for i := range e.instances {
			in := &e.instances[i]
			if !yield(in.label) {
				return
			}
			for _, l := range serviceLabels[in.protocol] {
				if !yield(l + "." + in.label) {
					return
				}
			}
		}
		last := netip.Addr{}
		var buf [maxAddress]byte
		for i := range e.endpoints {
			if ip, ok := e.endpoints[i].Address.IP(); ok && ip != last {
				last = ip
				if !yield(string(appendAddress(buf[:0], ip)) + "." + addrLabel) {
					return
				}
			}
		}
	}
}

// check counts what the answers of this entry leave out. Names and sets that are
// far from the limits are not looked at one by one.
func (e *entry) check() {
	room := maxName - len(e.fqdn()) - maxAddress - len("."+addrLabel+".")
	if room < 0 || slices.ContainsFunc(e.instances, func(in instance) bool { return len(in.label) > room }) {
		for labels := range e.derived() {
			if len(below(labels, e.fqdn())) > maxName {
				e.faults.add(FaultNameTooLong, 1)
			}
		}
	}
	if len(e.endpoints) > maxSet/(srvHeader+maxName) {
		size := 0
		for i := range e.endpoints {
			if n := e.targetLen(e.endpoints[i].Address); n <= maxName {
				size += srvHeader + n
			}
		}
		if size > maxSet {
			e.faults.add(FaultSize, 1)
		}
	}
}
