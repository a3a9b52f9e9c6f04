package pattern

import (
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// Filter chooses services by what the owner says of them. The zero value chooses all.
// It is read-only and safe for concurrent use.
type Filter struct {
	Names  []Name  // of which one has to match the fqdn, as the owner publishes it; none: every name
	Labels []Label // of which all have to match the labels of the service
}

// IsZero reports whether the filter chooses all services because it names nothing.
func (f Filter) IsZero() bool { return len(f.Names) == 0 && len(f.Labels) == 0 }

// Matches reports whether the filter chooses the service. It keeps nothing of it.
func (f Filter) Matches(s *federation.Service) bool {
	return f.MatchesName(s.FQDN) &&
		!slices.ContainsFunc(f.Labels, func(l Label) bool { return !l.Matches(s.Labels) })
}

// MatchesName reports whether the filter may choose a service of that name, depending on its
// labels.
func (f Filter) MatchesName(name federation.FQDN) bool {
	return len(f.Names) == 0 || slices.ContainsFunc(f.Names, func(p Name) bool { return p.Matches(name) })
}
