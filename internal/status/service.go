package status

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"net"
	"slices"
	"strconv"
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
	var text []byte
	m, err := wire.EncodeService(s)
	if err == nil {
		text, err = protojson.Marshal(m)
	}
	if err != nil {
		return CatalogService{}, fmt.Errorf("service %s: %w", safetext.Quote(s.Name), err)
	}
	var compact bytes.Buffer // protojson varies the space between tokens, on purpose
	if err := json.Compact(&compact, text); err != nil {
		return CatalogService{}, fmt.Errorf("service %s: %w", safetext.Quote(s.Name), err)
	}
	return CatalogService{Name: s.Name, FQDN: s.FQDN.String(), Service: compact.Bytes(), Updated: updated.UTC(), Stale: stale}, nil
}

// YieldServices yields reports of services in the order of their names, each name once, and each report when it is
// asked for.
func YieldServices[T any](all []T, nameOf func(T) string, report func(T) (CatalogService, error)) iter.Seq2[CatalogService, error] {
	slices.SortFunc(all, func(a, b T) int { return CompareNames(nameOf(a), nameOf(b)) })
	all = slices.CompactFunc(all, func(a, b T) bool { return nameOf(a) == nameOf(b) })
	return func(yield func(CatalogService, error) bool) {
		for _, s := range all {
			if !yield(report(s)) {
				return
			}
		}
	}
}

// CompareNames returns how names are in order for people: web-2 comes before web-10.
func CompareNames(a, b string) int {
	x, y := a, b
	for x != "" && y != "" {
		m, n, p, q := countDigits(x), countDigits(y), x[:1], y[:1]
		if m > 0 && n > 0 { // of two numbers without zeros before them the longer one is the larger one
			p, q = strings.TrimLeft(x[:m], "0"), strings.TrimLeft(y[:n], "0")
		} else {
			m, n = 1, 1
		}
		if c := cmp.Or(cmp.Compare(len(p), len(q)), strings.Compare(p, q)); c != 0 {
			return c
		}
		x, y = x[m:], y[n:]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(a, b))
}

// countDigits returns with how many digits a text begins.
func countDigits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }

// Endpoints returns the endpoints of the service, as ADDRESS:PORT.
func (s *CatalogService) Endpoints() (list []string) {
	var service struct {
		Endpoints []struct {
			Address string `json:"address"`
			Port    int    `json:"port"`
		} `json:"endpoints"`
	}
	_ = json.Unmarshal(s.Service, &service) // what is none has no endpoints
	for _, at := range service.Endpoints {
		list = append(list, net.JoinHostPort(at.Address, strconv.Itoa(at.Port)))
	}
	return list
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
