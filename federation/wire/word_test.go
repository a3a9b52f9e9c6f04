package wire_test

import (
	"slices"
	"strings"
	"testing"
	"unsafe"

	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// TestWordsAreShared decodes a service twice. Equal strings share their memory, except
// those that are too long.
func TestWordsAreShared(t *testing.T) {
	original := wantService(t)
	long := strings.Repeat("x", 65)
	original.Tags = []string{"one", "two"}
	original.Labels = []federation.Pair{{Key: "team", Value: "shop"}}
	original.Endpoints[0].Labels = []string{"blue", long}
	original.Instances[0].EndpointSelector = []string{"blue"}
	original.Instances[0].Metadata = []federation.Pair{{Key: "version", Value: "1"}}
	encoded, err := proto.Marshal(wire.EncodeService(original))
	if err != nil {
		t.Fatal(err)
	}
	decode := func() map[string]string {
		m := wire.EncodeService(original)
		proto.Reset(m)
		if err := proto.Unmarshal(encoded, m); err != nil {
			t.Fatal(err)
		}
		s, err := wire.DecodeService(m, wire.Policy{})
		if err != nil {
			t.Fatal(err)
		}
		if !s.Equal(original) {
			t.Fatalf("decoded as %+v, expected %+v", s, original)
		}
		in, ep := &s.Instances[0], &s.Endpoints[0]
		return map[string]string{
			"tag": s.Tags[1], "label key": s.Labels[0].Key, "label value": s.Labels[0].Value,
			"endpoint label": ep.Labels[0], "long endpoint label": ep.Labels[1],
			"instance ID": in.ID, "selector": in.EndpointSelector[0],
			"metadata key": in.Metadata[0].Key, "metadata value": in.Metadata[0].Value,
		}
	}
	first, second := decode(), decode()
	var apart []string
	for what, s := range first {
		if unsafe.StringData(s) != unsafe.StringData(second[what]) {
			apart = append(apart, what)
		}
	}
	// Words that have the same place by chance are not shared.
	if !slices.Contains(apart, "long endpoint label") || len(apart) > 3 {
		t.Errorf("in memory twice are %q, expected the long label and at most two others", apart)
	}
}
