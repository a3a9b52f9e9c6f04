package pattern

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

const (
	all   = "*"  // alone: everything
	below = "*." // in front of a name
)

// The rules that a pattern of names can break, beside those of
// [federation.ParseFQDN].
var (
	errNameStar = errors.New(`"*" stands alone, or as the first label before a name, as in *.pay.example`)
	errNameRoot = errors.New(`the root is not the name of a service; "*" is every name`)
	errNoName   = errors.New("no name below it is short enough for DNS")
)

// longestAbove is the longest name, with its final dot, that can have a name below it: two
// characters less than a name of DNS may have.
const longestAbove = 252

// Name is a pattern of the fqdns of services. Patterns are equal (==) when they match
// the same names.
type Name struct {
	name  federation.FQDN
	below bool // what is below name at any depth, and not name itself
}

// ParseName returns the pattern that s spells. "*" is every name, "*.pay.example" is every name
// below pay.example at any depth but not pay.example itself, and "pay.example" is that name alone.
// Names are spelled as [federation.ParseFQDN] reads them.
func ParseName(s string) (Name, error) {
	p, err := parseName(s)
	if err != nil {
		return Name{}, fmt.Errorf("name pattern %s: %w", safetext.Quote(s), err)
	}
	return p, nil
}

func parseName(s string) (Name, error) {
	switch s {
	case all:
		root, err := federation.ParseOrigin(".")
		return Name{root, true}, err
	case ".", below:
		return Name{}, errNameRoot
	}
	zone, isBelow := strings.CutPrefix(s, below)
	if strings.Contains(zone, "*") {
		return Name{}, errNameStar
	}
	name, err := federation.ParseFQDN(zone)
	if err == nil && isBelow && len(name.String()) > longestAbove {
		err = errNoName
	}
	if err != nil {
		return Name{}, err
	}
	return Name{name, isBelow}, nil
}

// IsEvery reports whether p matches every name.
func (p Name) IsEvery() bool { return p.below && p.name.String() == "." }

// Zone returns the name in the pattern, without a final dot, and whether p matches the names below
// that name and not the name itself.
func (p Name) Zone() (name string, below bool) {
	return strings.TrimSuffix(p.name.String(), "."), p.below
}

// Matches reports whether p matches the name. Labels count as a whole: *.pay.example
// does not match xpay.example.
func (p Name) Matches(name federation.FQDN) bool {
	if p.below {
		return name != p.name && name.Within(p.name)
	}
	return name == p.name && !name.IsZero()
}

// Covers reports whether p matches every name that q matches.
func (p Name) Covers(q Name) bool {
	if q.below {
		return p.below && q.name.Within(p.name)
	}
	return p.Matches(q.name)
}

// String returns the pattern in lower case without a final dot, or "" for the zero
// value.
func (p Name) String() string {
	name, isBelow := p.Zone()
	switch {
	case !isBelow:
		return name
	case p.IsEvery():
		return all
	}
	return below + name
}
