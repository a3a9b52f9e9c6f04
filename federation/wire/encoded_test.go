package wire_test

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
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

// checkEncoded compares the encoded service with what package proto makes of it.
func checkEncoded(t *testing.T, s *federation.Service) {
	t.Helper()
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

func FuzzEncoded(f *testing.F) {
	f.Add(goldenService)
	f.Fuzz(func(t *testing.T, value []byte) {
		event, err := wire.Decode(&rdpb.StreamResponse{Operation: rdpb.StreamResponse_UPSERT, Resource: resource(value)}, wire.AnyAddress())
		if err == nil {
			checkEncoded(t, event.Service)
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
