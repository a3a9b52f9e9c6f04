package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// CatalogService is one service of a catalog.
type CatalogService struct {
	Name    string          `json:"name"`
	FQDN    string          `json:"fqdn"`
	Service json.RawMessage `json:"service"`          // as in a catalog file: the protobuf JSON mapping
	Updated time.Time       `json:"updated,omitzero"` // when this version came to a consumer; zero: it was restored from a file
	Stale   bool            `json:"stale,omitempty"`
}

// NewService returns the report of a service, which must be valid.
func NewService(s *federation.Service, updated time.Time, stale bool) (CatalogService, error) {
	text, err := protojson.Marshal(wire.EncodeService(s))
	if err != nil {
		return CatalogService{}, fmt.Errorf("service %s: %w", safetext.Quote(s.Name), err)
	}
	var compact bytes.Buffer // protojson varies the space between tokens, on purpose
	if err := json.Compact(&compact, text); err != nil {
		return CatalogService{}, fmt.Errorf("service %s: %w", safetext.Quote(s.Name), err)
	}
	return CatalogService{Name: s.Name, FQDN: s.FQDN.String(), Service: compact.Bytes(), Updated: updated.UTC(), Stale: stale}, nil
}

// MatchesWords reports whether a service has each of these words, in any case, as a part of its name,
// its fqdn, or anything else that it has. That of a label is KEY=VALUE.
func (s *CatalogService) MatchesWords(words []string) bool {
	if len(words) == 0 {
		return true
	}
	text := strings.ToLower(s.Name + "\n" + s.FQDN + "\n" + string(s.Service))
	return !slices.ContainsFunc(words, func(word string) bool {
		word = strings.ToLower(word)
		return !strings.Contains(text, word) && !strings.Contains(text, strings.ReplaceAll(word, "=", `":"`))
	})
}
