package wire

import (
	"fmt"
	"strings"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// MaxHops is the most owners through which a service may come.
const MaxHops = 16

// maxHopBytes bounds the word that stands for an owner.
const maxHopBytes = 64

// OwnerPath has the owners through which services have come, from their origin to the owner of the
// consumer's stream. Each owner is a word of letters and digits that only it has. The word reveals
// nothing, and is the same wherever the services come. The path of an owner that says nothing about
// it is empty.
type OwnerPath []string

// Header returns the value of [PathHeader].
func (p OwnerPath) Header() string { return strings.Join(p, ",") }

// ParsePath returns the path that [PathHeader] has as its value.
func ParsePath(header string) (OwnerPath, error) {
	if header == "" {
		return nil, nil
	}
	p := OwnerPath(strings.Split(header, ","))
	if len(p) > MaxHops {
		return nil, fmt.Errorf("%s names %d owners, more than %d", PathHeader, len(p), MaxHops)
	}
	for _, hop := range p {
		if !isWord(hop) {
			return nil, fmt.Errorf("%s has %s, which is not a word of letters and digits up to %d bytes",
				PathHeader, safetext.Quote(hop), maxHopBytes)
		}
	}
	return p, nil
}

// isWord reports whether a text is a word of letters and digits, maxHopBytes at most.
func isWord(text string) bool {
	return text != "" && len(text) <= maxHopBytes && !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	})
}
