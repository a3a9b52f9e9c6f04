// Package packed keeps services in little memory: a [Service] is one string with everything
// that the service has. A catalog and the zones share that string, and a snapshot writes it as it
// is. A [federation.Service] takes several times as much, in pieces that every
// garbage collection has to follow.
//
// The string is a Record of proto/snapshot/v1 in the protobuf format, its fields in
// the order of their numbers and its maps in the order of their keys, so that equal
// services are equal strings. Names have their final dot: a name that is read is then
// a part of the string. It is read and written by hand, because package proto
// allocates every part of a message and copies every string. Package wire sends
// services in nearly the same form: see [AppendMessage].
package packed

import "github.com/hamlet-federation/coredns-federation/federation"

// MaxServicesPerFQDN is how many services one owner may have with one fqdn. Only the service with
// the smallest name is answered. A consumer refuses services beyond that number.
const MaxServicesPerFQDN = 64

// Service is a service in one string. It is immutable. Two of them are equal (==) when
// [federation.Service.Equal] is true for the services in them. The zero value is no service.
type Service struct{ octets string }

// PackService returns the packed form of a valid service, and shares no memory with s.
func PackService(s *federation.Service) Service { return Service{}.PackOrReuse(s) }

// PackOrReuse returns the packed form of a valid service, or p itself where p is equal to that.
func (p Service) PackOrReuse(s *federation.Service) Service {
	var buf [1 << 10]byte // most services fit
	b := appendRecord(buf[:0], s)
	if string(b) == p.octets {
		return p
	}
	return Service{string(b)}
}

// IsZero reports whether p is no service.
func (p Service) IsZero() bool { return p.octets == "" }

// Octets returns the encoded Record of proto/snapshot/v1.
func (p Service) Octets() string { return p.octets }

// Name returns the name of the service, in the memory of p.
func (p Service) Name() string {
	r := p.readFields()
	_, name, _ := r.nextField()
	return name
}

// FQDN returns the fqdn of the service, in the memory of p.
func (p Service) FQDN() string {
	r := p.readFields()
	for r.hasMore() {
		if field, text, _ := r.nextField(); field == serviceFQDN {
			return text
		}
	}
	return ""
}

// CountParts returns how many endpoints and instances the service has.
func (p Service) CountParts() (endpoints, instances int) {
	r := p.readFields()
	for r.hasMore() {
		switch field, _, _ := r.nextField(); field {
		case serviceEndpoint:
			endpoints++
		case serviceInstance:
			instances++
		}
	}
	return endpoints, instances
}

// readFields returns a reader of the fields of the service.
func (p Service) readFields() fieldReader {
	r := fieldReader{rest: p.octets}
	_, service, _ := r.nextField()
	return fieldReader{rest: service}
}

// Unpack returns the service, or nil for the zero value. Its strings share the
// memory of p.
func (p Service) Unpack() *federation.Service {
	if p.IsZero() {
		return nil
	}
	endpoints, instances := p.CountParts()
	s := &federation.Service{
		Endpoints: make([]federation.Endpoint, 0, endpoints), Instances: make([]federation.Instance, 0, instances),
	}
	mustBeWhole(unpackRecord(p.octets, s))
	return s
}

// UnpackMessage returns the service of octets that AppendMessage has made. Its strings share the
// memory of octets.
func UnpackMessage(octets string) *federation.Service {
	s := new(federation.Service)
	mustBeWhole(unpackService(octets, s))
	return s
}

// Unpacker unpacks one service after the other in the same memory. The zero value
// is ready to use. It belongs to one goroutine.
type Unpacker struct {
	service federation.Service
	octets  []byte
	large   bool // the lists of service are too large to be kept
}

// mostKept is how many octets a service may have for the Unpacker to keep its memory, and with it
// the last strings.
const mostKept = 4 << 10

// Unpack returns what Service.Unpack does, for a p that is not zero. The result is valid until the
// next call; its strings may be kept.
func (u *Unpacker) Unpack(p Service) *federation.Service {
	u.resetFor(len(p.octets))
	mustBeWhole(unpackRecord(p.octets, &u.service))
	return &u.service
}

// Read returns the service of octets that Octets may have returned. It reports false for everything
// else, such as a Record that is encoded in another way, or a service that is not valid.
func (u *Unpacker) Read(octets []byte) (Service, bool) {
	u.resetFor(len(octets))
	p := Service{string(octets)}
	if !unpackRecord(p.octets, &u.service) || u.service.Validate() != nil {
		return Service{}, false
	}
	u.octets = appendRecord(u.octets[:0], &u.service)
	return p, string(u.octets) == p.octets
}

// resetFor prepares for a service of so many octets.
func (u *Unpacker) resetFor(octets int) {
	if u.large {
		*u = Unpacker{}
	}
	u.large = octets > mostKept
}
