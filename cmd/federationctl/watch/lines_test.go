package watch

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// terrible has characters that must not reach a terminal as they are, and two that
// may.
const terrible = "a\x1b[31m\n\r\x7f\u009b2J\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029\u0085é\U0001F578"

// raw reports whether a character must be escaped in output.
func raw(r rune) bool {
	return r != '\n' && unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}

// TestOutputHasNoControls checks that the output of watch has no control characters,
// and that its JSON still has the same values.
func TestOutputHasNoControls(t *testing.T) {
	service := must.Get(wire.DecodeService(&typespb.FederatedService{
		Name: terrible, Fqdn: "a.example", Description: terrible, Tags: []string{terrible}, Labels: map[string]string{terrible: terrible},
		Endpoints: []*typespb.FederatedService_Endpoint{{Address: "192.0.2.1", Port: 80, Description: terrible}},
		Instances: []*typespb.FederatedService_Instance{{Id: terrible, Protocol: "TCP", Metadata: map[string]string{terrible: terrible}}},
	}, wire.AddressPolicy{}))(t)
	event := wire.Event{Operation: wire.Upsert, Name: terrible, Service: service}
	for name, format := range map[string]func(lineEntry) (string, error){"table": tableLine, "json": jsonLine} {
		line := must.Get(format(lineEntry{Event: event}))(t)
		if strings.ContainsFunc(line, raw) || strings.Count(line, "\n") != 1 {
			t.Errorf("%s: %q", name, line)
		}
	}
	line, _ := jsonLine(lineEntry{Event: event})
	var object struct {
		Name    string          `json:"name"`
		Service json.RawMessage `json:"service"`
	}
	if err := json.Unmarshal([]byte(line), &object); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	var message typespb.FederatedService
	if err := protojson.Unmarshal(object.Service, &message); err != nil {
		t.Fatalf("%v: %s", err, object.Service)
	}
	again, err := wire.DecodeService(&message, wire.AddressPolicy{})
	if err != nil || !again.Equal(service) || object.Name != terrible {
		t.Errorf("the line says %+v (%v) of %q, expected %+v", again, err, object.Name, service)
	}
}
