package wire_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/wiretest"
)

// FuzzDecode decodes bytes as a StreamResponse.
func FuzzDecode(f *testing.F) {
	f.Add(join(str(2, wire.ResourceURL), msg(4, str(1, wire.ResourceURL), msg(2, goldenService)), num(5, 1)))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		var m rdpb.StreamResponse
		if proto.Unmarshal(encoded, &m) != nil {
			return
		}
		event, err := wire.Decode(&m)
		if err != nil {
			checkRefusal(t, err)
			return
		}
		if !checkEvent(t, event, checkService) {
			return
		}
		again := must.Get(wiretest.Response(event, m.GetNonce(), m.GetContext()))(t)
		got := must.Get(wire.Decode(again))(t)
		if diff := cmp.Diff(event, got, comparers); diff != "" {
			t.Errorf("after encoding and decoding (-want +got):\n%s", diff)
		}
	})
}

// checkEvent checks an event that was read, and reports whether it says anything.
func checkEvent(t *testing.T, event wire.Event, check func(*testing.T, *federation.Service)) bool {
	t.Helper()
	switch event.Operation {
	case wire.Alive:
		if event.Name != "" || event.Service != nil {
			t.Errorf("alive with %+v", event)
		}
		return false
	case wire.Delete:
		if event.Name == "" || event.Service != nil || event.ID != "" && event.ID != event.Name {
			t.Errorf("delete with %+v", event)
		}
	case wire.Upsert:
		if event.Name != event.Service.Name || event.ID == event.Name || len(event.ID) > limits.NameBytes {
			t.Errorf("event is about %q with the ID %q, its service is %q", event.Name, event.ID, event.Service.Name)
		}
		check(t, event.Service)
	default:
		t.Fatalf("operation is %v", event.Operation)
	}
	return true
}

// FuzzDecodeService decodes bytes as a FederatedService, which FuzzDecode reaches
// only through two more layers of lengths.
func FuzzDecodeService(f *testing.F) {
	f.Add(goldenService)
	f.Fuzz(func(t *testing.T, encoded []byte) {
		event, err := wire.Decode(&rdpb.StreamResponse{Operation: rdpb.StreamResponse_UPSERT, Resource: resource(encoded)})
		if err != nil {
			checkRefusal(t, err)
		} else {
			checkService(t, event.Service)
		}
		var m typespb.FederatedService
		if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(encoded, &m) != nil {
			if err == nil {
				t.Error("malformed bytes were accepted")
			}
			return
		}
		service, direct := wire.DecodeService(&m, wire.AnyAddress())
		// Decode counts the entries of a map before equal keys are one.
		if limit := reason(err) == federation.ReasonLimit; (err == nil) != (direct == nil) && !limit {
			t.Fatalf("Decode says %v, DecodeService %v", err, direct)
		}
		if direct != nil {
			checkRefusal(t, direct)
			return
		}
		got := must.Get(wire.DecodeService(must.Get(wire.EncodeService(service))(t), wire.AnyAddress()))(t)
		if diff := cmp.Diff(service, got, comparers); diff != "" {
			t.Errorf("after encoding and decoding (-want +got):\n%s", diff)
		}
	})
}

// FuzzPolicy judges an IPv6 address, with and without a prefix that opens it.
func FuzzPolicy(f *testing.F) {
	f.Add(netip.MustParseAddr("64:ff9b:1::7f00:1").AsSlice(), false)
	f.Add(netip.MustParseAddr("2002:a9fe:a9fe::1").AsSlice(), true)
	f.Fuzz(func(t *testing.T, b []byte, open bool) {
		ip, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		var policy wire.AddressPolicy
		if open {
			policy.AllowAddresses = []netip.Prefix{netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen())}
		}
		address := must.Get(federation.ParseAddress(ip.String()))(t)
		s := &federation.Service{Endpoints: []federation.Endpoint{{Address: address, Port: 1}}}
		admitted := policy.Admits(ip)
		if checked := policy.Check(s) == nil; checked != admitted || open && !admitted {
			t.Errorf("%s with opened %v: a host there is admitted: %v, an endpoint: %v", ip, open, admitted, checked)
		}
		plain := ip.Unmap()
		if admitted && !open && (plain.IsLoopback() || plain.IsUnspecified() || plain.IsMulticast() || plain.IsLinkLocalUnicast()) {
			t.Errorf("%s is admitted", ip)
		}
	})
}

// FuzzDecodeV1Alpha1 decodes bytes as a StreamResponse of v1alpha1.
func FuzzDecodeV1Alpha1(f *testing.F) {
	f.Add(join(str(2, wire.ResourceURLV1Alpha1), msg(3, str(1, wire.ResourceURLV1Alpha1), msg(2, goldenDraft)), num(4, 1)))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		var m rdpb1.StreamResponse
		if proto.Unmarshal(encoded, &m) != nil {
			return
		}
		event, err := wire.DecodeV1Alpha1(&m)
		if err != nil {
			checkRefusal(t, err)
			return
		}
		if !checkEvent(t, event, checkDraft) {
			return
		}
		again := must.Get(wire.EncodeV1Alpha1(event, m.GetNonce(), false))(t)
		got := must.Get(wire.DecodeV1Alpha1(again))(t)
		if diff := cmp.Diff(event, got, comparers); diff != "" {
			t.Errorf("after encoding and decoding (-want +got):\n%s", diff)
		}
	})
}

// checkDraft is checkService for a service of v1alpha1.
func checkDraft(t *testing.T, s *federation.Service) {
	t.Helper()
	if err := s.Validate(); err != nil {
		t.Errorf("accepted, and not valid: %v", err)
	}
	named := *s
	named.Instances = slices.Clone(s.Instances)
	spoken := make(map[federation.Protocol]bool)
	for i := range named.Instances {
		in := &named.Instances[i]
		if !in.Unnamed || in.ID != "" || in.EndpointSelector != nil || in.Description != "" {
			t.Errorf("instance %+v says what v1alpha1 does not", in)
		}
		if len(in.Metadata) != 1 || in.Metadata[0] != (federation.Pair{Key: "SNI", Value: s.Name}) {
			t.Errorf("metadata is %q", in.Metadata)
		}
		if spoken[in.Protocol] {
			t.Errorf("two instances speak %v", in.Protocol)
		}
		spoken[in.Protocol] = true
		in.Unnamed, in.ID = false, fmt.Sprint("i", i)
	}
	for _, e := range s.Endpoints {
		if e.Labels != nil || e.Description != "" {
			t.Errorf("endpoint %+v says what v1alpha1 does not", e)
		}
	}
	if len(s.SANs) != 1 || s.SANs[0] == "" {
		t.Errorf("sans are %q", s.SANs)
	}
	checkService(t, &named)
}

// FuzzParseRequest parses bytes as a StreamRequest.
func FuzzParseRequest(f *testing.F) {
	f.Add(join(str(1, wire.ResourceURL), str(2, "n-1"), msg(3, num(1, 3), str(2, "no")), str(4, "ctx")))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		var m rdpb.StreamRequest
		if proto.Unmarshal(encoded, &m) != nil {
			return
		}
		request, err := wire.ParseRequest(&m)
		if err != nil {
			checkRefusal(t, err)
			return
		}
		if len(request.Context) > wire.MaxContextBytes || len(request.Refusal) > wire.MaxRefusalBytes {
			t.Errorf("over the limits: %+v", request)
		}
		if refused := m.GetStatus().GetCode() != 0; refused != (request.Refusal != "") {
			t.Errorf("code %d was read as refusal %q", m.GetStatus().GetCode(), request.Refusal)
		}
		if request.Initial && (request.Nonce != "" || request.Refusal != "") {
			t.Errorf("initial with %+v", request)
		}
	})
}

func reason(err error) federation.Reason {
	if invalid, ok := errors.AsType[*federation.InvalidError](err); ok {
		return invalid.Reason
	}
	return ""
}

// checkRefusal checks the error of a refused message, which is sent to the peer, logged
// and counted.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	var invalid *federation.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("error is a %T", err)
	}
	if !slices.Contains([]federation.Reason{
		federation.ReasonUndecodable, federation.ReasonMissing, federation.ReasonName, federation.ReasonAddress,
		federation.ReasonPort, federation.ReasonProtocol, federation.ReasonLimit,
	}, invalid.Reason) {
		t.Errorf("reason is %q", invalid.Reason)
	}
	if len(invalid.Service) > limits.NameBytes {
		t.Errorf("the error holds a name of %d bytes", len(invalid.Service))
	}
	if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r > '~' }) {
		t.Errorf("text is not printable ASCII: %q", err)
	}
	nack := wire.Answer("n", "c", invalid)
	if _, err := proto.Marshal(nack); err != nil {
		t.Error(err)
	}
	if got := nack.GetStatus().GetMessage(); got != err.Error() {
		t.Errorf("NACK says %q, want %q", got, err)
	}
}

// checkService checks that an accepted service is valid, and every rule of it by
// itself, in other words than Validate.
func checkService(t *testing.T, s *federation.Service) {
	t.Helper()
	if err := s.Validate(); err != nil {
		t.Errorf("accepted, and not valid: %v", err)
	}
	entries := func(what string, n, least, most int) {
		if n < least || n > most {
			t.Errorf("%d %s", n, what)
		}
	}
	text := func(what, s string, most int) {
		if len(s) > most || !utf8.ValidString(s) {
			t.Errorf("%s %q", what, s)
		}
	}
	texts := func(what string, list []string, most, bytes int) {
		entries(what, len(list), 0, most)
		for _, s := range list {
			entries("bytes of one of the "+what, len(s), 1, bytes)
			text(what, s, bytes)
		}
	}
	pairs := func(what string, list []federation.Pair, most int) {
		entries(what, len(list), 0, most)
		for i, pair := range list {
			text(what, pair.Key, limits.KeyBytes)
			text(what, pair.Value, limits.ValueBytes)
			if i > 0 && list[i-1].Key >= pair.Key {
				t.Errorf("%s are not in order: %q, %q", what, list[i-1].Key, pair.Key)
			}
		}
	}
	name := func(what, name string) {
		if len(name) > 254 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || !strings.HasSuffix(name, ".") {
			t.Errorf("%s is %q", what, name)
		}
	}

	entries("bytes of the name", len(s.Name), 1, limits.NameBytes)
	text("name", s.Name, limits.NameBytes)
	name("fqdn", s.FQDN.String())
	text("description", s.Description, limits.DescriptionBytes)
	texts("tags", s.Tags, limits.Tags, limits.TagBytes)
	pairs("labels", s.Labels, limits.Labels)
	texts("sans", s.SANs, limits.SANs, limits.SANBytes)
	entries("endpoints", len(s.Endpoints), 1, limits.Endpoints)
	for _, e := range s.Endpoints {
		if ip, ok := e.Address.IP(); ok {
			if ip.Is4In6() || ip.Zone() != "" {
				t.Errorf("address is %s", ip)
			}
		} else {
			name("host", e.Address.String())
		}
		if e.Port == 0 {
			t.Error("port is 0")
		}
		texts("labels of an endpoint", e.Labels, limits.Labels, limits.TagBytes)
		text("description", e.Description, limits.DescriptionBytes)
	}
	entries("instances", len(s.Instances), 1, limits.Instances)
	ids := make(map[string]bool)
	for _, in := range s.Instances {
		if ids[in.ID] {
			t.Errorf("two instances are %q", in.ID)
		}
		ids[in.ID] = true
		entries("bytes of the ID", len(in.ID), 1, limits.NameBytes)
		text("id", in.ID, limits.NameBytes)
		if in.Protocol < federation.HTTP || in.Protocol > federation.MTLS {
			t.Errorf("protocol is %d", in.Protocol)
		}
		if in.Unnamed {
			t.Error("an instance of v1alpha2 is unnamed")
		}
		pairs("metadata", in.Metadata, limits.Metadata)
		texts("endpoint_selector", in.EndpointSelector, limits.Selectors, limits.TagBytes)
		text("description", in.Description, limits.DescriptionBytes)
	}
}
