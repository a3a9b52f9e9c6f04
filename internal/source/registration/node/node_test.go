package node

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// sample returns a node with every field.
func sample(tb testing.TB) *Node {
	tb.Helper()
	provider := must.Get(federation.ParseID("spiffe://acme.example/web"))(tb)
	return &Node{
		Key: Key{services.FQDN("web.acme.example"), uri(tb, "https://192.0.2.1:8443")}, Instance: "v1",
		Metadata:    federation.Pairs(map[string]string{"zone": "a", "build": "7"}),
		Description: "the first", TTL: 30 * time.Second, Provider: provider, Rule: "web", Owner: "owner-1", Stream: math.MaxUint64,
		Since: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC),
	}
}

func TestAppendAndParse(t *testing.T) {
	full := sample(t)
	bare := &Node{Key: full.Key, TTL: time.Second, Provider: full.Provider, Since: time.Unix(0, 0).UTC()}
	for _, n := range []*Node{full, bare} {
		must.Do(t, n.Validate())
		data := n.AppendStored([]byte("x"))
		got := must.Get(ParseStored(data[1:]))(t)
		if diff := cmp.Diff(n, got, cmp.Comparer(func(a, b URI) bool { return a == b }),
			cmp.Comparer(func(a, b federation.FQDN) bool { return a == b }), cmp.Comparer(func(a, b federation.ID) bool { return a == b })); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if again := got.AppendStored(nil); data[0] != 'x' || !bytes.Equal(again, data[1:]) {
			t.Errorf("stored as %x, and then as %x", data, again)
		}
	}
}

// What a store holds comes from outside.
func TestParseFails(t *testing.T) {
	long := strings.Repeat("x", maxMetadataBytes)
	many := make(map[string]string)
	for i := range maxMetadata + 1 {
		many[strings.Repeat("k", i)] = ""
	}
	for name, change := range map[string]func(*registrationv1.Stored){
		"no service":             func(s *registrationv1.Stored) { s.Service = "" },
		"final dot missing":      func(s *registrationv1.Stored) { s.Service = "web.acme.example" },
		"service in upper case":  func(s *registrationv1.Stored) { s.Service = "WEB.acme.example." },
		"wildcard":               func(s *registrationv1.Stored) { s.Service = "*.acme.example." },
		"no uri":                 func(s *registrationv1.Stored) { s.Uri = "" },
		"uri without host":       func(s *registrationv1.Stored) { s.Uri = "https://:8443" },
		"uri without port":       func(s *registrationv1.Stored) { s.Uri = "https://192.0.2.1" },
		"uri spelled otherwise":  func(s *registrationv1.Stored) { s.Uri = "HTTPS://192.0.2.1:8443" },
		"instance in upper case": func(s *registrationv1.Stored) { s.Instance = "V1" },
		"instance with space":    func(s *registrationv1.Stored) { s.Instance = "v 1" },
		"instance too long":      func(s *registrationv1.Stored) { s.Instance = strings.TrimSuffix(strings.Repeat("abcdefghi.", 25), ".") },
		"metadata too long":      func(s *registrationv1.Stored) { s.Metadata = map[string]string{"a": long} },
		"too much metadata":      func(s *registrationv1.Stored) { s.Metadata = many },
		"key too long":           func(s *registrationv1.Stored) { s.Metadata = map[string]string{long[:limits.KeyBytes+1]: ""} },
		"description too long":   func(s *registrationv1.Stored) { s.Description = long[:maxDescriptionBytes+1] },
		"too long altogether":    func(s *registrationv1.Stored) { s.Description = strings.Repeat("x", maxStoredBytes) },
		"rule too long":          func(s *registrationv1.Stored) { s.Rule = long },
		"owner too long":         func(s *registrationv1.Stored) { s.Owner = long },
		"no ttl":                 func(s *registrationv1.Stored) { s.Ttl = nil },
		"negative ttl":           func(s *registrationv1.Stored) { s.Ttl = durationpb.New(-1) },
		"ttl too long":           func(s *registrationv1.Stored) { s.Ttl = durationpb.New(maxTTL + 1) },
		"invalid ttl":            func(s *registrationv1.Stored) { s.Ttl = &durationpb.Duration{Seconds: 1, Nanos: -1} },
		"endless ttl":            func(s *registrationv1.Stored) { s.Ttl = &durationpb.Duration{Seconds: 1 << 38} },
		"no provider":            func(s *registrationv1.Stored) { s.Provider = "" },
		"provider is no ID":      func(s *registrationv1.Stored) { s.Provider = "https://acme.example" },
		"provider in upper case": func(s *registrationv1.Stored) { s.Provider = "ACME.example" },
		"no since":               func(s *registrationv1.Stored) { s.Since = nil },
		"since with fraction":    func(s *registrationv1.Stored) { s.Since = &timestamppb.Timestamp{Seconds: 1, Nanos: 1} },
		"invalid since":          func(s *registrationv1.Stored) { s.Since = &timestamppb.Timestamp{Seconds: 1 << 60} },
		"since before 1970":      func(s *registrationv1.Stored) { s.Since = &timestamppb.Timestamp{Seconds: -1} },
	} {
		t.Run(name, func(t *testing.T) {
			var stored registrationv1.Stored
			must.Do(t, proto.Unmarshal(sample(t).AppendStored(nil), &stored))
			change(&stored)
			data := must.Get(proto.Marshal(&stored))(t)
			// A message without since is that of the beginning of 1970.
			if n, err := ParseStored(data); err == nil && name != "no since" {
				t.Errorf("parsed: %+v", n)
			}
		})
	}
	if n, err := ParseStored([]byte{0xff}); err == nil {
		t.Errorf("parsed: %+v", n)
	}
}

func TestMetadataIsSortedAndBounded(t *testing.T) {
	n := sample(t)
	n.Metadata = []federation.Pair{{Key: "b"}, {Key: "a"}}
	if n.Validate() == nil {
		t.Error("metadata that is not sorted is valid")
	}
	n.Metadata = []federation.Pair{{Key: "a"}, {Key: "a"}}
	if n.Validate() == nil {
		t.Error("metadata with a key that stands twice is valid")
	}
	n.Metadata = []federation.Pair{{Key: "a", Value: strings.Repeat("x", maxMetadataBytes-1)}}
	if err := n.Validate(); err != nil {
		t.Errorf("metadata at the limit: %v", err)
	}
	n.Metadata[0].Value += "x"
	if n.Validate() == nil {
		t.Error("metadata beyond the limit is valid")
	}
}

// A node at all limits can be stored.
func TestLargestNode(t *testing.T) {
	n := sample(t)
	n.Service = services.FQDN(strings.Repeat(strings.Repeat("a", 61)+".", 4))
	n.URI = URI{n.URI.Protocol, address(t, strings.Repeat(strings.Repeat("b", 62)+".", 4)), 65535}
	n.Instance = "v1"
	n.Metadata = nil
	for i := range maxMetadata {
		n.Metadata = append(n.Metadata, federation.Pair{Key: string(rune('a' + i)), Value: strings.Repeat("x", maxMetadataBytes/maxMetadata-1)})
	}
	n.Description = strings.Repeat("x", maxDescriptionBytes)
	n.Rule, n.Owner = strings.Repeat("r", maxWordBytes), strings.Repeat("o", maxWordBytes)
	provider := must.Get(federation.ParseID("spiffe://a/" + strings.Repeat("x", 2048-len("spiffe://a/"))))(t)
	n.Provider = provider
	must.Do(t, n.Validate())
	data := n.AppendStored(nil)
	if _, err := ParseStored(data); err != nil || len(data) > maxStoredBytes/2+1<<10 {
		t.Errorf("%d bytes: %v", len(data), err)
	}
}

func address(tb testing.TB, text string) federation.Address {
	tb.Helper()
	return must.Get(federation.ParseAddress(text))(tb)
}

func FuzzParse(f *testing.F) {
	f.Add(sample(f).AppendStored(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := ParseStored(data)
		if err != nil {
			if n != nil || len(err.Error()) > 4<<10 {
				t.Fatalf("%v with an error of %d bytes", n, len(err.Error()))
			}
			return
		}
		again := n.AppendStored(nil)
		m, err := ParseStored(again)
		if err != nil || !bytes.Equal(m.AppendStored(nil), again) {
			t.Fatalf("%x is stored as %x, which is %v, %v", data, again, m, err)
		}
		checkService(t, RenderService("registration", []*Node{n}))
	})
}
