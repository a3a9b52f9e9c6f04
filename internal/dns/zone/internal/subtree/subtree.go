package subtree

import (
	"cmp"
	"iter"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/record"
)

// Subtree is a compiled service. It is immutable once Compile has filled it.
//
// Most services have one endpoint and one instance. In a large catalog there are a million of these, and
// a lookup takes as long as the memory that it touches, so that a Subtree has room for no more than that.
type Subtree struct {
	endpoint  [1]Endpoint // the only one
	instance  [1]Instance // the only one with a name of its own
	named     uint8       // how many of instance there are
	protocols protocolSet // that are spoken
	rare      *rareParts  // nil for a service with nothing else
}

// rareParts has what most services do not have.
type rareParts struct {
	faults Faults
	shared *SharedName // for a name that several owners share

	endpoints  []Endpoint          // sorted by SRV target and port, each pair once; nil: there is one
	instances  []Instance          // instances with a name of their own, sorted by label; nil: there is one, or none
	selections []Selection         // the endpoints of each of these; nil: each has all
	selected   []protocolEndpoints // the protocols that are not spoken at every endpoint, in order

	// Nil where there is one instance: its TXT records are made for each query.
	texts       []string // the RDATA of the TXT records of the service and of each instance
	describedBy []uint16 // the instances with a TXT record at the fqdn, by index in Service.Instances
}

// none is what a Subtree without rareParts has.
var none rareParts //nolint:gochecknoglobals // a constant that Go has no word for

// rareOrNone returns the rare parts of the service, or empty ones. The caller must not change them.
func (t *Subtree) rareOrNone() *rareParts {
	if t.rare == nil {
		return &none
	}
	return t.rare
}

// Endpoint is what answers show of an endpoint.
type Endpoint struct {
	Address federation.Address
	Port    uint16
}

// IsHost reports whether the endpoint is a host, whose addresses must be looked
// up, and no IP address.
func (ep *Endpoint) IsHost() bool {
	_, ok := ep.Address.Host()
	return ok
}

// Instance is an instance with a name of its own.
type Instance struct {
	Label    string // relative to the fqdn; several labels for an ID with dots
	Index    uint16 // in Service.Instances; of a shared name, in those of the first member that has it
	at       uint16 // in Subtree.Instances
	protocol federation.Protocol
}

// protocolSet is a set of protocols.
type protocolSet uint16

// each passes the protocols to yield, in order.
func (s protocolSet) each(yield func(federation.Protocol) bool) {
	for ; s != 0; s &= s - 1 {
		if !yield(federation.Protocol(bits.TrailingZeros16(uint16(s)))) { //nolint:gosec // at most 15
			return
		}
	}
}

// protocolEndpoints is the set of endpoints that speak one protocol.
type protocolEndpoints struct {
	protocol  federation.Protocol
	endpoints Selection
}

// endpointsOfProtocol returns the endpoints that speak a protocol of the service.
func (t *Subtree) endpointsOfProtocol(p federation.Protocol) Selection {
	for _, s := range t.rareOrNone().selected {
		if s.protocol == p {
			return s.endpoints
		}
	}
	return t.SelectAll()
}

// serviceCompiler is the work of one call of Compile.
type serviceCompiler struct {
	*Subtree

	service *federation.Service
	fqdn    string
	refuse  RefuseFunc
}

// RefuseFunc returns why an instance of the service at the fqdn cannot have a name, or "".
type RefuseFunc func(fqdn, name string) Fault

// Compile fills the zero Subtree for a service that is published at the fqdn. The Subtree keeps
// only strings of the service.
func (t *Subtree) Compile(s *federation.Service, fqdn string, refuse RefuseFunc) {
	c := serviceCompiler{Subtree: t, service: s, fqdn: fqdn, refuse: refuse}
	c.fillInstances(c.selectEndpoints(c.orderEndpoints()))
	c.compileTexts()
	c.checkSizes()
}

// ensureRare returns the rare parts, and makes them where there are none.
func (t *Subtree) ensureRare() *rareParts {
	if t.rare == nil {
		t.rare = new(rareParts)
	}
	return t.rare
}

// countFault adds n to the count of a fault.
func (c *serviceCompiler) countFault(kind Fault, n int) {
	if n > 0 {
		c.ensureRare().faults.Add(kind, n)
	}
}

// Faults returns how many names and records of the service are not published, by kind. The caller
// must not change them.
func (t *Subtree) Faults() Faults { return t.rareOrNone().faults }

// Instances returns the instances with a name of their own, by label. The caller
// must not change them.
func (t *Subtree) Instances() []Instance {
	if r := t.rare; r != nil && r.instances != nil {
		return r.instances
	}
	return t.instance[:t.named]
}

// endpointsOf returns the endpoints of an instance.
func (t *Subtree) endpointsOf(in *Instance) Selection {
	if s := t.rareOrNone().selections; s != nil {
		return s[in.at]
	}
	if s := t.SharedName(); s != nil {
		return s.endpointsOf(in, 0)
	}
	return t.SelectAll()
}

// endpointsSpeaking returns the endpoints of an instance that speak a protocol, or nil.
func (t *Subtree) endpointsSpeaking(in *Instance, p federation.Protocol) Selection {
	switch s := t.SharedName(); {
	case s != nil:
		return s.endpointsOf(in, p)
	case in.protocol != p:
		return nil
	}
	return t.endpointsOf(in)
}

// fillInstances fills in instances and protocols. Selections are the endpoints of each instance, or
// nil where each has all.
func (c *serviceCompiler) fillInstances(selections []Selection) {
	s := c.service
	named := c.instance[:0]
	if len(s.Instances) > 1 {
		named = make([]Instance, 0, len(s.Instances))
	}
	for i := range s.Instances {
		in := &s.Instances[i]
		c.protocols |= 1 << in.Protocol
		if in.Unnamed {
			continue
		}
		label, fault := c.instanceLabel(in)
		if fault != "" {
			c.countFault(fault, 1)
			continue
		}
		named = append(named, Instance{Label: label, Index: uint16(i), protocol: in.Protocol}) // limits.Instances is far below 1<<16
	}
	// Of IDs that are one name, the smallest has the name, in whatever order they came.
	slices.SortFunc(named, func(a, b Instance) int {
		return cmp.Or(strings.Compare(a.Label, b.Label), strings.Compare(s.Instances[a.Index].ID, s.Instances[b.Index].ID))
	})
	n := len(named)
	named = slices.CompactFunc(named, func(a, b Instance) bool { return a.Label == b.Label })
	c.countFault(FaultInstanceName, n-len(named))
	for i := range named {
		named[i].at = uint16(i) // as above
	}
	if len(s.Instances) > 1 {
		c.ensureRare().instances = slices.Clip(named)
	} else {
		c.named = uint8(len(named)) //nolint:gosec // 1 at most
	}
	if selections != nil {
		c.fillSelections(selections, named)
	}
}

// fillSelections fills in selections and selected.
func (c *serviceCompiler) fillSelections(selections []Selection, named []Instance) {
	for i := range named {
		c.ensureRare().selections = append(c.ensureRare().selections, selections[named[i].Index])
	}
	n := len(c.allEndpoints())
	for p := range c.protocols.each {
		set := newEndpointSet(n)
		for i := range selections {
			if c.service.Instances[i].Protocol == p {
				for _, at := range selections[i] {
					set.addIndex(at)
				}
			}
		}
		if endpoints := c.pickEndpoints(set); len(endpoints) < n {
			c.ensureRare().selected = append(c.ensureRare().selected, protocolEndpoints{p, endpoints})
		}
	}
}

// instanceLabel returns the name of an instance relative to the fqdn, or why it has none.
func (c *serviceCompiler) instanceLabel(in *federation.Instance) (string, Fault) {
	label, err := federation.ParseLabel(in.ID)
	if err != nil {
		return "", FaultInstanceID
	}
	name := domain.JoinLabels(label.String(), c.fqdn)
	if len(name) > domain.MaxName {
		return "", FaultNameTooLong
	}
	return label.String(), c.refuse(c.fqdn, name)
}

// MemberTrees returns the subtrees of the members of a shared name, with their owners. For a
// service it returns t itself and the given owner.
func (t *Subtree) MemberTrees(owner uint32) iter.Seq2[uint32, *Subtree] {
	return func(yield func(uint32, *Subtree) bool) {
		s := t.SharedName()
		if s == nil {
			yield(owner, t)
			return
		}
		for i := range s.Members {
			if !yield(s.Members[i].Owner, s.Members[i].Tree) {
				return
			}
		}
	}
}

// ClaimedLabels returns the labels of those names of the subtree below the fqdn at which a service
// could be offered: names of instances, and empty non-terminals above them and above addresses.
// Some labels come more than once.
func (t *Subtree) ClaimedLabels() iter.Seq[string] {
	if t.SharedName() != nil {
		return t.ofMembers((*Subtree).ClaimedLabels)
	}
	return func(yield func(string) bool) {
		instances := t.Instances()
		for i := range instances {
			for labels := instances[i].Label; labels != ""; _, labels, _ = strings.Cut(labels, ".") {
				if !yield(labels) {
					return
				}
			}
		}
		if t.hasIP() {
			yield(domain.Addr)
		}
	}
}

// ofMembers returns the labels of all members of a shared name.
func (t *Subtree) ofMembers(labels func(*Subtree) iter.Seq[string]) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, member := range t.MemberTrees(0) {
			for l := range labels(member) {
				if !yield(l) {
					return
				}
			}
		}
	}
}

// RecordLabels returns the labels of all names below the fqdn that have records, each once.
func (t *Subtree) RecordLabels() iter.Seq[string] {
	if t.SharedName() != nil {
		return slices.Values(slices.Compact(slices.Sorted(t.ofMembers((*Subtree).RecordLabels))))
	}
	return func(yield func(string) bool) {
		for p := range t.protocols.each {
			for _, l := range domain.ServiceLabels(p) {
				if !yield(l) {
					return
				}
			}
		}
		instances, endpoints := t.Instances(), t.allEndpoints()
		for i := range instances {
			in := &instances[i]
			if !yield(in.Label) {
				return
			}
			for _, l := range domain.ServiceLabels(in.protocol) {
				if !yield(l + "." + in.Label) {
					return
				}
			}
		}
		last := netip.Addr{}
		var buf [domain.MaxAddress]byte
		for i := range endpoints {
			if ip, ok := endpoints[i].Address.IP(); ok && ip != last {
				last = ip
				if !yield(string(domain.AppendAddress(buf[:0], ip)) + "." + domain.Addr) {
					return
				}
			}
		}
	}
}

// checkSizes counts what answers leave out. It does not look one by one at names and sets that are
// far from the limits.
func (c *serviceCompiler) checkSizes() {
	room := domain.MaxName - len(c.fqdn) - domain.MaxAddress - len("."+domain.Addr+".")
	if room < 0 || slices.ContainsFunc(c.Instances(), func(in Instance) bool { return len(in.Label) > room }) {
		for labels := range c.RecordLabels() {
			if len(domain.JoinLabels(labels, c.fqdn)) > domain.MaxName {
				c.countFault(FaultNameTooLong, 1)
			}
		}
	}
	if endpoints := c.allEndpoints(); len(endpoints) > record.MaxSet/(record.SRVHeader+domain.MaxName) {
		size := 0
		for i := range endpoints {
			if n := targetLen(endpoints[i].Address, c.fqdn); n <= domain.MaxName {
				size += record.SRVHeader + n
			}
		}
		if size > record.MaxSet {
			c.countFault(FaultSize, 1)
		}
	}
}
