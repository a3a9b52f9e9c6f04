package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Query asks for a page of services.
type Query struct {
	After string // they come after this name
	Match string // as Matches takes it; empty for all
	Limit int    // how many there are at most
}

// Matches reports whether a service has each word of a text as a part of a name, a label or
// an address, in upper or lower case. A label is KEY=VALUE here, and an address IP:PORT.
func Matches(s *federation.Service, text string) bool {
	var all strings.Builder
	add := func(parts ...string) {
		for _, part := range parts {
			all.WriteString(strings.ToLower(part))
			all.WriteByte('\n') // which no word has
		}
	}
	pairs := func(list []federation.Pair) {
		for _, p := range list {
			add(p.Key + "=" + p.Value)
		}
	}
	add(s.Name, s.FQDN.String())
	add(s.Tags...)
	pairs(s.Labels)
	for _, e := range s.Endpoints {
		add(net.JoinHostPort(strings.TrimSuffix(e.Address.String(), "."), strconv.Itoa(int(e.Port))))
		add(e.Labels...)
	}
	for _, i := range s.Instances {
		add(i.ID)
		pairs(i.Metadata)
	}
	for word := range strings.FieldsSeq(strings.ToLower(text)) {
		if !strings.Contains(all.String(), word) {
			return false
		}
	}
	return true
}

// Service is one service of a catalog.
type Service struct {
	Name    string          `json:"name"`
	FQDN    string          `json:"fqdn"`
	Service json.RawMessage `json:"service"`          // as in a catalog file: the protobuf JSON mapping
	Updated time.Time       `json:"updated,omitzero"` // when this version came; zero: at a consumer restored from a file, at an owner there at the start
	Stale   bool            `json:"stale,omitempty"`
}

// NewService returns the report of a service, which must be valid.
func NewService(s *federation.Service, updated time.Time, stale bool) (Service, error) {
	text, err := protojson.Marshal(wire.EncodeService(s))
	if err != nil {
		return Service{}, fmt.Errorf("service %s: %w", federation.Quote(s.Name), err)
	}
	var compact bytes.Buffer // protojson varies the space between tokens, on purpose
	if err := json.Compact(&compact, text); err != nil {
		return Service{}, fmt.Errorf("service %s: %w", federation.Quote(s.Name), err)
	}
	return Service{Name: s.Name, FQDN: s.FQDN.String(), Service: compact.Bytes(), Updated: updated.UTC(), Stale: stale}, nil
}
