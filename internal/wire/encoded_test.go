package wire_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// encoded returns a valid service in the form that is sent.
func encoded(tb testing.TB, s *federation.Service) *wire.EncodedService {
	tb.Helper()
	return must.Get(wire.NewEncoded(s))(tb)
}

// checkEncodedOf packs the service and compares what is encoded of that with what is
// encoded of the service.
func checkEncodedOf(t *testing.T, s *federation.Service) {
	t.Helper()
	p := packed.PackService(s)
	got, want := wire.EncodedOf(p), encoded(t, p.Unpack())
	if !got.Equal(want) || got.Name() != want.Name() || got.FQDN() != want.FQDN() || !got.Equal(encoded(t, s)) {
		t.Errorf("%+v, packed, is encoded as %+v", s, got.Service())
	}
}

// checkEncoded compares the encoded service with what package proto makes of it.
func checkEncoded(t *testing.T, s *federation.Service) {
	t.Helper()
	checkEncodedOf(t, s)
	e := encoded(t, s)
	want := must.Get(proto.MarshalOptions{Deterministic: true}.Marshal(must.Get(wire.EncodeService(s))(t)))(t)
	resource := e.Resource()
	if resource.GetTypeUrl() != wire.ResourceURL || !bytes.Equal(resource.GetValue(), want) {
		t.Errorf("resource is %s %x, expected %x", resource.GetTypeUrl(), resource.GetValue(), want)
	}
	if again := e.Service(); again == nil || !again.Equal(s) {
		t.Errorf("service is %+v, expected %+v", again, s)
	}
	if e.Name() != s.Name || e.FQDN()+"." != s.FQDN.String() {
		t.Errorf("%s with fqdn %s is encoded as %s with %s", s.Name, s.FQDN, e.Name(), e.FQDN())
	}
	if !e.Equal(encoded(t, s)) {
		t.Error("the service is not equal to itself")
	}
	other := *s
	other.Description += "x"
	if other.Validate() == nil && e.Equal(encoded(t, &other)) {
		t.Error("the service is equal to one with another description")
	}
}

func TestEncoded(t *testing.T) {
	s := wantService(t)
	checkEncoded(t, s)
	large := *s
	for len(large.Endpoints) < limits.Endpoints {
		large.Endpoints = append(large.Endpoints, large.Endpoints...)
		large.Endpoints = large.Endpoints[:min(len(large.Endpoints), limits.Endpoints)]
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

// The instances of a service of v1alpha1 have no IDs, which v1alpha2 wants: they get those
// of their protocols.
func TestEncodedOfV1Alpha1(t *testing.T) {
	unnamed := func(protocols ...federation.Protocol) (all []federation.Instance) {
		for _, p := range protocols {
			all = append(all, federation.Instance{Protocol: p, Unnamed: true, Metadata: []federation.Pair{{Key: "SNI", Value: "s"}}})
		}
		return all
	}
	for _, tt := range []struct {
		instances []federation.Instance
		want      []string
	}{
		{unnamed(federation.HTTP), []string{"http HTTP"}},
		{unnamed(federation.GRPC, federation.HTTP2, federation.MTLS), []string{"grpc GRPC", "http2 HTTP2", "mtls MTLS"}},
		// A program can publish these, and v1alpha1 cannot.
		{unnamed(federation.TCP, federation.TCP, federation.TCP), []string{"tcp TCP", "tcp-2 TCP", "tcp-3 TCP"}},
		{append(unnamed(federation.TCP), federation.Instance{ID: "TCP", Protocol: federation.TLS}), []string{"tcp-2 TCP", "TCP TLS"}},
	} {
		s := wantService(t)
		s.Instances = tt.instances
		was := slices.Clone(tt.instances)
		e := encoded(t, s)
		checkEncodedOf(t, s)
		if !slices.EqualFunc(s.Instances, was, func(a, b federation.Instance) bool { return a.ID == b.ID && a.Unnamed == b.Unnamed }) {
			t.Errorf("the service was changed to %+v", s)
		}
		var got []string
		for i, in := range e.Service().Instances {
			got = append(got, in.ID+" "+in.Protocol.String())
			if in.Unnamed || !slices.Equal(in.Metadata, was[i].Metadata) {
				t.Errorf("%+v became %+v", was[i], in)
			}
		}
		if !slices.Equal(got, tt.want) || !e.Equal(encoded(t, s)) || !e.Equal(encoded(t, e.Service())) {
			t.Errorf("the instances are %v, expected %v", got, tt.want)
		}
		event, err := wire.Decode(&rdpb.StreamResponse{Operation: rdpb.StreamResponse_UPSERT, Resource: e.Resource(), ResourceUrl: wire.ResourceURL})
		if err != nil || !e.Equal(encoded(t, event.Service)) {
			t.Errorf("a consumer of v1alpha2 reads %+v, %v", event.Service, err)
		}
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
		host := must.Get(federation.ParseAddress(name))(t)
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
		event, err := wire.Decode(&rdpb.StreamResponse{Operation: rdpb.StreamResponse_UPSERT, Resource: resource(value)})
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
