package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// Settlement says whether a change of a name has reached everybody: the consumers of an owner,
// and all that these have answered.
type Settlement struct {
	Name    string `json:"name"`
	There   bool   `json:"there"` // whether it is to be there, and not gone
	Address string `json:"address,omitempty"`

	Settled   bool      `json:"settled"` // so it is safe now
	Now       time.Time `json:"now"`
	Published int       `json:"published"` // services with the name, and the address
	Away      []string  `json:"away"`      // catalogs that are not available: nobody is told anything

	Consumers int           `json:"consumers"` // that may have had the name
	Done      int           `json:"done"`      // of them, those that are settled
	Waiting   int           `json:"waiting"`   // those that are not
	Unknown   int           `json:"unknown"`   // those of which it cannot be known
	Missing   []Outstanding `json:"missing"`   // of the last two, 100 at most, those that take longest first

	// Outside is what no owner can know of, where it is settled.
	Outside []string `json:"outside,omitempty"`
}

// Outstanding is why a consumer is not settled.
type Outstanding struct {
	Catalog  string    `json:"catalog"`
	Consumer string    `json:"consumer,omitempty"` // its identity; empty for those of whom nobody knows who they are
	Holder   string    `json:"holder,omitempty"`   // which of its copies of the catalog
	Address  string    `json:"address,omitempty"`  // host:port; empty for one that is lost
	Unknown  bool      `json:"unknown,omitempty"`  // whether it cannot be known
	Reason   string    `json:"reason"`
	Until    time.Time `json:"until,omitzero"` // when it is settled if nothing happens
}

// maxMissing bounds Settlement.Missing.
const maxMissing = 100

// Add counts a consumer.
func (s *Settlement) Add(at Outstanding) {
	s.Consumers++
	at.Until = at.Until.UTC()
	switch {
	case at.Unknown:
		s.Unknown++
	case !at.Until.IsZero() && !at.Until.After(s.Now):
		s.Done++
		return
	default:
		s.Waiting++
	}
	s.Missing = append(s.Missing, at)
}

// Conclude says what follows when all have been counted.
func (s *Settlement) Conclude() {
	slices.SortFunc(s.Missing, func(a, b Outstanding) int {
		never := func(o Outstanding) int { return b2i(o.Until.IsZero()) }
		return cmp.Or(
			b2i(a.Unknown)-b2i(b.Unknown), never(b)-never(a), b.Until.Compare(a.Until),
			cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.Holder, b.Holder), cmp.Compare(a.Address, b.Address),
		)
	})
	s.Missing = s.Missing[:min(len(s.Missing), maxMissing)]
	if s.Settled = !s.Pending() && s.Unknown == 0; s.Settled {
		s.Outside = []string{
			"connections that are open",
			"clients that keep addresses beyond their TTL, such as a JVM that caches for ever",
			"resolvers that serve stale answers (RFC 8767), or raise a TTL",
			"secondaries that have not transferred the zone",
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Pending reports whether there is something to wait for. What is unknown stays so.
func (s *Settlement) Pending() bool {
	return len(s.Away) > 0 || s.Waiting > 0 || (s.Published > 0) != s.There
}

// Code returns the exit code of a command that has waited: 0 when it is settled, 3 when it is not
// yet, 4 when that cannot be known.
func (s *Settlement) Code() int {
	switch {
	case s.Settled:
		return 0
	case s.Pending():
		return 3
	default:
		return 4
	}
}

// Lines returns what there is to say, first a line with all of it.
func (s *Settlement) Lines() []string {
	what := word(s.Name)
	if s.Address != "" {
		what += " with " + word(s.Address)
	}
	state := "gone"
	if s.There {
		state = "there"
	}
	var lines []string
	switch {
	case len(s.Away) > 0:
		lines = append(lines, fmt.Sprintf("%s: not yet, consumers are told nothing: these catalogs are not available: %s", what, strings.Join(catalogNames(s.Away), ", ")))
	case s.There && s.Published == 0:
		lines = append(lines, what+": not yet, this owner does not publish it")
	case !s.There && s.Published > 0:
		lines = append(lines, fmt.Sprintf("%s: not yet, this owner publishes it in %s", what, Count(s.Published, "service")))
	case s.Settled:
		lines = append(lines, fmt.Sprintf("%s is %s for everybody: %s of %s settled", what, state, Number(s.Done), Count(s.Consumers, "consumer")))
	case s.Pending():
		lines = append(lines, fmt.Sprintf("%s: not yet, %s of %s settled", what, Number(s.Done), Count(s.Consumers, "consumer")))
	default:
		lines = append(lines, fmt.Sprintf("%s: it cannot be known, %s of %s settled", what, Number(s.Done), Count(s.Consumers, "consumer")))
	}
	for _, m := range s.Missing[:min(len(s.Missing), maxShown)] {
		lines = append(lines, "  "+m.line(s.Now))
	}
	if rest := s.Waiting + s.Unknown - min(len(s.Missing), maxShown); rest > 0 {
		lines = append(lines, fmt.Sprintf("  and %s more", Number(rest)))
	}
	return lines
}

// line says who is missing, why, and until when.
func (m *Outstanding) line(now time.Time) string {
	text := ""
	if m.Consumer != "" {
		text = word(m.Consumer)
		if m.Address != "" {
			text += " at " + word(m.Address)
		}
		if m.Catalog != "" {
			text += ", catalog " + word(m.Catalog)
		}
		text += ": "
	}
	text += federation.Printable(m.Reason) // a relay may say it
	if !m.Until.IsZero() {
		text += ", " + Span(m.Until.Sub(now)) + " more"
	}
	return text
}

// catalogNames returns the names of catalogs as a reader knows them.
func catalogNames(servers []string) []string {
	names := make([]string, len(servers))
	for i, name := range servers {
		names[i] = catalogName(name)
	}
	return names
}
