package packed_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	snapshotpb "github.com/hamlet-federation/coredns-federation/proto/snapshot/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// full returns a valid service with every field set, a new one each time.
func full() *federation.Service {
	return &federation.Service{
		Name:        "shop",
		FQDN:        must.Value(federation.ParseFQDN("shop.fed.example")),
		Description: "The shop, with ü and \x00",
		Tags:        []string{"production", "b"},
		Labels:      []federation.Pair{{Key: "", Value: "x"}, {Key: "team", Value: ""}},
		SANs:        []string{"spiffe://owner.example/shop"},
		Endpoints: []federation.Endpoint{
			{Address: must.Value(federation.ParseAddress("192.0.2.1")), Port: 443, Labels: []string{"eu", "eu"}, Description: "Frankfurt"},
			{Address: must.Value(federation.ParseAddress("2001:db8::1")), Port: 65535},
			{Address: must.Value(federation.ParseAddress("gw.example.net")), Port: 1, Labels: []string{"us"}},
		},
		Instances: []federation.Instance{
			{
				ID: "v1", Protocol: federation.HTTPS, Metadata: []federation.Pair{{Key: "a", Value: strings.Repeat("v", 300)}},
				EndpointSelector: []string{"eu"}, Description: "stable",
			},
			{Protocol: federation.GRPC, Unnamed: true},
			{ID: "No Label", Protocol: federation.MTLS},
		},
	}
}

// plain returns a service with nothing in it that is not required.
func plain() *federation.Service {
	return &federation.Service{
		Name: "web", FQDN: must.Value(federation.ParseFQDN("web.fed.example")),
		Endpoints: []federation.Endpoint{{Address: must.Value(federation.ParseAddress("192.0.2.1")), Port: 80}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTP}},
	}
}

// largest returns a service at the limits of how many entries it may have.
func largest() *federation.Service {
	s := &federation.Service{Name: "largest", FQDN: must.Value(federation.ParseFQDN("largest.fed.example"))}
	many := func(format string) (list []string) {
		for i := range limits.Labels {
			list = append(list, fmt.Sprintf(format, i))
		}
		return list
	}
	for i := range limits.Endpoints {
		address := must.Value(federation.ParseAddress(fmt.Sprintf("10.0.%d.%d", i/256, i%256)))
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: address, Port: 1, Labels: many("l%d")})
		in := federation.Instance{ID: fmt.Sprint(i), Protocol: federation.TCP, EndpointSelector: many("l%d")}
		for _, key := range many("k%02d") {
			in.Metadata = append(in.Metadata, federation.Pair{Key: key, Value: "v"})
		}
		s.Instances = append(s.Instances, in)
	}
	s.Tags, s.SANs = many("t%d"), many("s%d")
	return s
}

func sameName(x, y federation.FQDN) bool       { return x == y }
func sameAddress(x, y federation.Address) bool { return x == y }

func TestPacked(t *testing.T) {
	var u packed.Unpacker
	for name, s := range map[string]*federation.Service{"full": full(), "plain": plain(), "largest": largest()} {
		t.Run(name, func(t *testing.T) {
			must.Do(t, s.Validate())
			p := packed.PackService(s)
			if diff := cmp.Diff(s, p.Unpack(), cmp.Comparer(sameName), cmp.Comparer(sameAddress)); diff != "" {
				t.Errorf("unpacked (-want +got):\n%s", diff)
			}
			for _, other := range []packed.Service{packed.PackService(full()), p, packed.PackService(plain()), p} {
				if got := u.Unpack(other); !got.Equal(other.Unpack()) {
					t.Errorf("%s is unpacked as %+v", other.Name(), got)
				}
			}
			if endpoints, instances := p.CountParts(); endpoints != len(s.Endpoints) || instances != len(s.Instances) || p.Name() != s.Name || p.IsZero() {
				t.Errorf("%s has %d endpoints and %d instances", p.Name(), endpoints, instances)
			}
			if again, ok := u.Read([]byte(p.Octets())); !ok || again != p {
				t.Errorf("not read as it was packed: %v", ok)
			}
			named := *s
			named.Instances = slices.DeleteFunc(slices.Clone(s.Instances), func(in federation.Instance) bool { return in.Unnamed })
			if got := packed.UnpackMessage(string(packed.AppendMessage(nil, &named))); !got.Equal(&named) {
				t.Errorf("the message is unpacked as %+v", got)
			}
			// Whoever has package proto reads it as well: an earlier version, for one.
			var record snapshotpb.Record
			must.Do(t, proto.Unmarshal([]byte(p.Octets()), &record))
			read := must.Get(wire.DecodeService(record.GetService(), wire.AddressPolicy{}))(t)
			for _, i := range record.GetUnnamed() {
				read.Instances[i].ID, read.Instances[i].Unnamed = "", true
			}
			if !read.Equal(s) {
				t.Errorf("package proto reads %+v", read)
			}
		})
	}
	if zero := (packed.Service{}); !zero.IsZero() || zero.Unpack() != nil {
		t.Error("there is a service in the zero value")
	}
}

// TestOr keeps what is equal.
func TestOr(t *testing.T) {
	known := packed.PackService(full())
	if got := known.PackOrReuse(full()); got != known {
		t.Error("an equal service is packed as another")
	}
	again := full()
	if n := testing.AllocsPerRun(10, func() { known.PackOrReuse(again) }); n > 0 {
		t.Errorf("%v allocations for what is known", n)
	}
	if got := known.PackOrReuse(plain()); got != packed.PackService(plain()) {
		t.Error("another service is packed wrong")
	}
}

// TestEqual changes a service in every way, one at a time: packed services are equal
// when the services are.
func TestEqual(t *testing.T) {
	changes := map[string]func(s *federation.Service){
		"nothing":               func(*federation.Service) {},
		"name":                  func(s *federation.Service) { s.Name = "shop2" },
		"fqdn":                  func(s *federation.Service) { s.FQDN = plain().FQDN },
		"description":           func(s *federation.Service) { s.Description = "" },
		"tag":                   func(s *federation.Service) { s.Tags[1] = "c" },
		"order of tags":         func(s *federation.Service) { s.Tags[0], s.Tags[1] = s.Tags[1], s.Tags[0] },
		"no tags":               func(s *federation.Service) { s.Tags = nil },
		"no list of tags":       func(s *federation.Service) { s.Tags = []string{} },
		"label":                 func(s *federation.Service) { s.Labels[0].Value = "y" },
		"key":                   func(s *federation.Service) { s.Labels[1].Key = "teams" },
		"SAN":                   func(s *federation.Service) { s.SANs = append(s.SANs, "x") },
		"address":               func(s *federation.Service) { s.Endpoints[0].Address = s.Endpoints[1].Address },
		"host":                  func(s *federation.Service) { s.Endpoints[2].Address = s.Endpoints[1].Address },
		"port":                  func(s *federation.Service) { s.Endpoints[0].Port++ },
		"endpoint label":        func(s *federation.Service) { s.Endpoints[0].Labels = s.Endpoints[0].Labels[:1] },
		"endpoint description":  func(s *federation.Service) { s.Endpoints[0].Description = "" },
		"endpoint":              func(s *federation.Service) { s.Endpoints = s.Endpoints[1:] },
		"instance":              func(s *federation.Service) { s.Instances = s.Instances[1:] },
		"ID":                    func(s *federation.Service) { s.Instances[0].ID = "v2" },
		"protocol":              func(s *federation.Service) { s.Instances[0].Protocol = federation.HTTP },
		"protocol of no name":   func(s *federation.Service) { s.Instances[1].Protocol = federation.HTTP },
		"metadata":              func(s *federation.Service) { s.Instances[0].Metadata = nil },
		"selector":              func(s *federation.Service) { s.Instances[0].EndpointSelector[0] = "us" },
		"instance description":  func(s *federation.Service) { s.Instances[0].Description = "x" },
		"named like a protocol": func(s *federation.Service) { s.Instances[1].ID, s.Instances[1].Unnamed = "GRPC", false },
	}
	for a, change := range changes {
		for b, other := range changes {
			s, v := full(), full()
			change(s)
			other(v)
			if got, want := packed.PackService(s) == packed.PackService(v), s.Equal(v); got != want {
				t.Errorf("with another %s and another %s they are equal: %v, want %v", a, b, got, want)
			}
		}
	}
}

// TestRead refuses whatever Octets does not return.
func TestRead(t *testing.T) {
	octets := []byte(packed.PackService(plain()).Octets())
	var u packed.Unpacker
	for n := range octets {
		if _, ok := u.Read(octets[:n]); ok {
			t.Errorf("the first %d of %d octets are read", n, len(octets))
		}
	}
	encode := func(change func(r *snapshotpb.Record)) []byte {
		r := &snapshotpb.Record{Service: must.Value(wire.EncodeService(plain()))}
		r.Service.Fqdn += "."
		change(r)
		return must.Value(proto.MarshalOptions{Deterministic: true}.Marshal(r))
	}
	many := make([]string, limits.Tags+1)
	for name, tt := range map[string]struct {
		octets []byte
		ok     bool
	}{
		"as package proto writes it": {encode(func(*snapshotpb.Record) {}), true},
		"without the final dot":      {encode(func(r *snapshotpb.Record) { r.Service.Fqdn = "web.fed.example" }), false},
		"in upper case":              {encode(func(r *snapshotpb.Record) { r.Service.Fqdn = "Web.fed.example." }), false},
		"no service":                 {nil, false},
		"no name":                    {encode(func(r *snapshotpb.Record) { r.Service.Name = "" }), false},
		"no fqdn":                    {encode(func(r *snapshotpb.Record) { r.Service.Fqdn = "web" }), false},
		"no host":                    {encode(func(r *snapshotpb.Record) { r.Service.Endpoints[0].Address = "192.0.2.256" }), false},
		"address in another form":    {encode(func(r *snapshotpb.Record) { r.Service.Endpoints[0].Address = "::ffff:192.0.2.1" }), false},
		"no port":                    {encode(func(r *snapshotpb.Record) { r.Service.Endpoints[0].Port = 0 }), false},
		"port beyond 65535":          {encode(func(r *snapshotpb.Record) { r.Service.Endpoints[0].Port = 65536 + 80 }), false},
		"no protocol":                {encode(func(r *snapshotpb.Record) { r.Service.Instances[0].Protocol = "UDP" }), false},
		"protocol in lower case":     {encode(func(r *snapshotpb.Record) { r.Service.Instances[0].Protocol = "http" }), false},
		"no endpoints":               {encode(func(r *snapshotpb.Record) { r.Service.Endpoints = nil }), false},
		"too many tags":              {encode(func(r *snapshotpb.Record) { r.Service.Tags = many }), false},
		"unnamed with an ID":         {encode(func(r *snapshotpb.Record) { r.Unnamed = []uint32{0} }), false},
		"unnamed and none":           {encode(func(r *snapshotpb.Record) { r.Unnamed = []uint32{1} }), false},
		"unnamed":                    {encode(func(r *snapshotpb.Record) { r.Unnamed, r.Service.Instances[0].Id = []uint32{0}, "HTTP" }), true},
		"a field that is not known":  {append(encode(func(*snapshotpb.Record) {}), 3<<3, 1), false},
		"of two services":            {append(encode(func(*snapshotpb.Record) {}), encode(func(*snapshotpb.Record) {})...), false},
	} {
		if _, ok := u.Read(tt.octets); ok != tt.ok {
			t.Errorf("%s: read %v, want %v", name, ok, tt.ok)
		}
	}
}

// FuzzRead reads any octets: what is read is valid, and is packed as it was read.
func FuzzRead(f *testing.F) {
	f.Add([]byte(packed.PackService(full()).Octets()))
	f.Add([]byte(packed.PackService(plain()).Octets()))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, octets []byte) {
		var u packed.Unpacker
		p, ok := u.Read(octets)
		if !ok {
			return
		}
		s := p.Unpack()
		if err := s.Validate(); err != nil || packed.PackService(s) != p || p.Octets() != string(octets) || p.Name() != s.Name {
			t.Errorf("%q is read as %+v: %v", octets, s, err)
		}
		var record snapshotpb.Record
		if err := proto.Unmarshal(octets, &record); err != nil {
			t.Errorf("package proto does not read %q: %v", octets, err)
		}
	})
}
