package subtree

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/zone/domain"
	"github.com/hamlet-federation/coredns-federation/federation/zone/record"
)

// Subtree is a compiled service. It is immutable once Compile or Copy has filled
// it. It points to itself, so it must not be assigned: Copy copies it.
//
// What most queries need comes first: in a large catalog a lookup takes as long
// as the memory that it touches.
type Subtree struct {
	endpoints   []Endpoint  // sorted by SRV target and port, each pair once
	oneEndpoint [1]Endpoint // endpoints when there is one, as there mostly is
	instances   []Instance  // those with a name of their own, sorted by label
	oneInstance [1]Instance // instances when there is one
	protocols   []protocol  // sorted by protocol
	faults      Faults
	texts       string   // the RDATA of the TXT records of the service and of each instance
	textBounds  []uint32 // where each of them ends in texts
	describedBy []uint16 // the instances with a TXT record at the fqdn, by index in Service.Instances
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
	Label     string // relative to the fqdn; several labels for an ID with dots
	Index     uint16 // in Service.Instances
	protocol  federation.Protocol
	endpoints Selection
}

// protocol is the set of endpoints that speak one protocol.
type protocol struct {
	protocol  federation.Protocol
	endpoints Selection
}

// compiler is one call of Compile.
type compiler struct {
	*Subtree

	service *federation.Service
	fqdn    string
	refuse  Refuse
}

// Refuse returns why an instance of the service at the fqdn cannot have a name, or
// "".
type Refuse func(fqdn, name string) Fault

// Compile fills the zero Subtree for a service that is published at the fqdn. The
// service must not change from then on.
func (t *Subtree) Compile(s *federation.Service, fqdn string, refuse Refuse) {
	c := compiler{t, s, fqdn, refuse}
	c.name(c.selections(c.order()))
	c.describe()
	c.check()
}

// Copy fills the zero Subtree with the content of another one, of which it holds
// nothing alive.
func (t *Subtree) Copy(of *Subtree) {
	*t = *of
	if len(of.endpoints) == 1 {
		t.endpoints = append(t.oneEndpoint[:0], of.endpoints...)
	}
	if len(of.instances) == 1 {
		t.instances = append(t.oneInstance[:0], of.instances...)
	}
}

// Faults returns what of the service is not published. The caller must not change
// it.
func (t *Subtree) Faults() Faults { return t.faults }

// Instances returns the instances with a name of their own, by label. The caller
// must not change them.
func (t *Subtree) Instances() []Instance { return t.instances }

// name fills instances and protocols. Of each instance, selected has the
// endpoints.
func (c *compiler) name(selected []Selection) {
	s := c.service
	var byProtocol [domain.Protocols]bitset
	c.instances = c.oneInstance[:0]
	if len(s.Instances) > 1 {
		c.instances = make([]Instance, 0, len(s.Instances))
	}
	for i := range s.Instances {
		in := &s.Instances[i]
		if byProtocol[in.Protocol] == nil {
			byProtocol[in.Protocol] = newBitset(len(s.Endpoints))
		}
		for _, at := range selected[i] {
			byProtocol[in.Protocol].add(at)
		}
		if in.Unnamed {
			continue
		}
		label, fault := c.label(in)
		if fault != "" {
			c.faults.Add(fault, 1)
			continue
		}
		c.instances = append(c.instances, Instance{label, uint16(i), in.Protocol, selected[i]}) // federation.MaxInstances is far below 1<<16
	}
	// Of IDs that are one name, the smallest has it, in whatever order they came.
	slices.SortFunc(c.instances, func(a, b Instance) int {
		return cmp.Or(strings.Compare(a.Label, b.Label), strings.Compare(s.Instances[a.Index].ID, s.Instances[b.Index].ID))
	})
	n := len(c.instances)
	c.instances = slices.Clip(slices.CompactFunc(c.instances, func(a, b Instance) bool { return a.Label == b.Label }))
	c.faults.Add(FaultInstanceName, n-len(c.instances))

	for p, set := range byProtocol {
		if set != nil {
			c.protocols = append(c.protocols, protocol{federation.Protocol(p), c.pick(set)})
		}
	}
	c.protocols = slices.Clip(c.protocols)
}

// label returns the name of an instance relative to the fqdn, or why it has
// none.
func (c *compiler) label(in *federation.Instance) (string, Fault) {
	label, err := federation.ParseLabel(in.ID)
	if err != nil {
		return "", FaultInstanceID
	}
	name := domain.Below(label.String(), c.fqdn)
	if len(name) > domain.MaxName {
		return "", FaultNameTooLong
	}
	return label.String(), c.refuse(c.fqdn, name)
}

// Claims yields the labels of the names below the fqdn that the subtree has and
// that a service could be offered at: those of instances, and the empty
// non-terminals above them and above addresses. Some come more than once.
func (t *Subtree) Claims() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range t.instances {
			for labels := t.instances[i].Label; labels != ""; _, labels, _ = strings.Cut(labels, ".") {
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

// Names yields the labels of all names below the fqdn that have records.
func (t *Subtree) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range t.protocols {
			for _, l := range domain.ServiceLabels(t.protocols[i].protocol) {
				if !yield(l) {
					return
				}
			}
		}
		for i := range t.instances {
			in := &t.instances[i]
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
		for i := range t.endpoints {
			if ip, ok := t.endpoints[i].Address.IP(); ok && ip != last {
				last = ip
				if !yield(string(domain.AppendAddress(buf[:0], ip)) + "." + domain.Addr) {
					return
				}
			}
		}
	}
}

// check counts what answers leave out. Names and sets that are far from the
// limits are not looked at one by one.
func (c *compiler) check() {
	room := domain.MaxName - len(c.fqdn) - domain.MaxAddress - len("."+domain.Addr+".")
	if room < 0 || slices.ContainsFunc(c.instances, func(in Instance) bool { return len(in.Label) > room }) {
		for labels := range c.Names() {
			if len(domain.Below(labels, c.fqdn)) > domain.MaxName {
				c.faults.Add(FaultNameTooLong, 1)
			}
		}
	}
	if len(c.endpoints) > record.MaxSet/(record.SRVHeader+domain.MaxName) {
		size := 0
		for i := range c.endpoints {
			if n := targetLen(c.endpoints[i].Address, c.fqdn); n <= domain.MaxName {
				size += record.SRVHeader + n
			}
		}
		if size > record.MaxSet {
			c.faults.Add(FaultSize, 1)
		}
	}
}
