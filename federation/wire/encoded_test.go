package wire_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/packed"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// encoded returns a valid service in the form that is sent.
func encoded(tb testing.TB, s *federation.Service) *wire.Encoded {
	tb.Helper()
	e, err := wire.NewEncoded(s)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// checkEncodedOf packs the service and compares what is encoded of that with what is
// encoded of the service.
func checkEncodedOf(t *testing.T, s *federation.Service) {
	t.Helper()
	p := packed.Of(s)
	got, want := wire.EncodedOf(p), encoded(t, p.Unpack())
	if !got.Equal(want) || got.Name() != want.Name() || got.FQDN() != want.FQDN() || !got.Service().Equal(s) {
		t.Errorf("%+v, packed, is encoded as %+v", s, got.Service())
	}
}

// checkEncoded compares the encoded service with what package proto makes of it.
func checkEncoded(t *testing.T, s *federation.Service) {
	t.Helper()
	checkEncodedOf(t, s)
	e := encoded(t, s)
	want, err := proto.MarshalOptions{Deterministic: true}.Marshal(wire.EncodeService(s))
	if err != nil {
		t.Fatal(err)
	}
	resource, err := e.Resource()
	if err != nil || resource.GetTypeUrl() != wire.ResourceURL || !bytes.Equal(resource.GetValue(), want) {
		t.Errorf("resource is %s %x, %v, expected %x", resource.GetTypeUrl(), resource.GetValue(), err, want)
	}
	if again := e.Service(); again == nil || !again.Equal(s) {
		t.Errorf("service is %+v, expected %+v", again, s)
	}
	if e.Name() != s.Name || e.FQDN()+"." != s.FQDN.String() {
		t.Errorf("%s with fqdn %s is encoded as %s with %s", s.Name, s.FQDN, e.Name(), e.FQDN())
	}
	if !e.Encodes(s) || !e.Equal(encoded(t, s)) {
		t.Error("the service is not equal to itself")
	}
	other := *s
	other.Description += "x"
	if other.Validate() == nil && (e.Encodes(&other) || e.Equal(encoded(t, &other))) {
		t.Error("the service is equal to one with another description")
	}
}

func TestEncoded(t *testing.T) {
	s := wantService(t)
	checkEncoded(t, s)
	large := *s
	for len(large.Endpoints) < federation.MaxEndpoints {
		large.Endpoints = append(large.Endpoints, large.Endpoints...)
		large.Endpoints = large.Endpoints[:min(len(large.Endpoints), federation.MaxEndpoints)]
	}
	checkEncoded(t, &large)
}

func TestEncodedIsValid(t *testing.T) {
	for _, s := range []*federation.Service{nil, {}, {Name: "a"}} {
		e, err := wire.NewEncoded(s)
		if _, ok := errors.AsType[*federation.InvalidError](err); !ok || e != nil {
			t.Errorf("%+v is encoded with error %v, expected an InvalidError", s, err)
		}
	}
}

// A service of v1alpha1 is kept as it is.
func TestEncodedThatV1Alpha2CannotExpress(t *testing.T) {
	named, s := wantService(t), wantService(t)
	s.Instances = []federation.Instance{{Protocol: federation.TCP, Unnamed: true}}
	other := *s
	other.Description = "another"
	e := encoded(t, s)
	if resource, err := e.Resource(); err == nil || resource != nil {
		t.Errorf("resource is %v, %v, expected an error", resource, err)
	}
	if e.Service() != s || e.FQDN()+"." != s.FQDN.String() || !e.Encodes(s) || !e.Equal(encoded(t, s)) {
		t.Error("the service is not equal to itself")
	}
	if e.Encodes(&other) || e.Equal(encoded(t, &other)) || e.Encodes(named) || e.Equal(encoded(t, named)) || encoded(t, named).Encodes(s) {
		t.Error("the service is equal to another one")
	}
}

// Names of all lengths lose their final dot, also where the length then takes an octet
// less.
func TestEncodedOfLongNames(t *testing.T) {
	for length := 1; length <= 253; length++ {
		var b strings.Builder
		for i := range length {
			b.WriteByte("abcdefg.."[min(i%8, 7)])
		}
		name := b.String()
		if strings.HasSuffix(name, ".") {
			continue
		}
		host, err := federation.ParseAddress(name)
		if err != nil {
			t.Fatal(err)
		}
		s := wantService(t)
		if fqdn, err := federation.ParseFQDN(name); err == nil { // one label is too few
			s.FQDN = fqdn
		}
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: host, Port: 1, Labels: []string{"eu", "."}, Description: "."}, s.Endpoints[0])
		checkEncoded(t, s)
		s.Instances = append(s.Instances, federation.Instance{Protocol: federation.TCP, Unnamed: true})
		checkEncodedOf(t, s)
	}
}

func FuzzEncoded(f *testing.F) {
	f.Add(goldenService)
	f.Fuzz(func(t *testing.T, value []byte) {
		event, err := wire.Decode(&rdpb.StreamResponse{Operation: rdpb.StreamResponse_UPSERT, Resource: resource(value)}, wire.AnyAddress())
		if err == nil {
			checkEncoded(t, event.Service)
			s := *event.Service
			s.Instances = append(slices.Clone(s.Instances), federation.Instance{Protocol: federation.TCP, Unnamed: true})
			if s.Validate() == nil {
				checkEncodedOf(t, &s)
			}
		}
	})
}

func BenchmarkNewEncoded(b *testing.B) {
	for name, service := range benchmarkServices(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				encoded(b, service)
			}
		})
	}
}

// BenchmarkRelay makes what is sent of a service out of what a catalog holds of it, in
// ways of which a relay takes the first.
func BenchmarkRelay(b *testing.B) {
	for name, service := range benchmarkServices(b) {
		p := packed.Of(service)
		resource, err := encoded(b, service).Resource()
		if err != nil {
			b.Fatal(err)
		}
		for way, relay := range map[string]func(){
			"octets":        func() { wire.EncodedOf(p) },
			"unpack+encode": func() { encoded(b, p.Unpack()) },
			"decode+encode": func() {
				event, err := wire.Decode(&rdpb.StreamResponse{Operation: rdpb.StreamResponse_UPSERT, Resource: resource}, wire.AnyAddress())
				if err != nil {
					b.Fatal(err)
				}
				encoded(b, event.Service)
			},
		} {
			b.Run(name+"/"+way, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					relay()
				}
			})
		}
	}
}
