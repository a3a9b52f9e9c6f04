package wire_test

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestRefusalNamesTheFQDN refuses services without endpoints: the fqdn is known as far as it
// was sent, in one form where it is valid, and never at any length.
func TestRefusalNamesTheFQDN(t *testing.T) {
	for fqdn, want := range map[string]string{
		"Web.Fed.example":         "web.fed.example.",
		"web.fed.example.":        "web.fed.example.",
		"not a name":              "not a name",
		"":                        "",
		strings.Repeat("x", 5000): strings.Repeat("x", limits.NameBytes),
	} {
		value, err := proto.Marshal(&typespb.FederatedService{Name: "web", Fqdn: fqdn})
		must.Do(t, err)
		_, err = wire.Decode(&rdpb.StreamResponse{
			Operation: rdpb.StreamResponse_UPSERT, Resource: &anypb.Any{TypeUrl: wire.ResourceURL, Value: value},
		})
		invalid, ok := errors.AsType[*federation.InvalidError](err)
		if !ok || invalid.Service != "web" || invalid.FQDN != want {
			t.Errorf("%.20q: %+v, want %.20q", fqdn, invalid, want)
		}
	}
}
