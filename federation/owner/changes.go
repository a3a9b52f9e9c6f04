package owner

import (
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// maxAudiences bounds the inquiries of one call of InquireChanges.
const maxAudiences = 16

// Changes is an inquiry whether everybody knows what services were when it began: of later
// changes of them it knows nothing.
type Changes struct {
	*Inquiry

	Services []string // their names
}

// InquireChanges begins inquiries about services of the catalog with a server name as they are
// to be, by name: nil for those that are to be gone. Services of which the policy tells the same
// consumers share one, so that others do not count for them. Those that the catalog does not
// publish so are in none: a change may be held back.
func (s *Server) InquireChanges(catalog string, services map[string]*wire.Encoded) (begun []Changes) {
	r := s.registries()[catalog]
	if r == nil {
		return nil
	}
	audiences := make(map[any][]string)
	for name, want := range services {
		if is := r.Lookup(name); is != want && (is == nil || want == nil || !is.Equal(want)) {
			continue
		}
		of := r.Met(name)
		if _, known := audiences[of]; !known && len(audiences) >= maxAudiences-1 {
			of = maxAudiences // stands for all others
		}
		audiences[of] = append(audiences[of], name)
	}
	for _, names := range audiences {
		slices.Sort(names)
		i := s.Inquire(Question{Catalog: &catalog, Matches: func(e *wire.Encoded) bool {
			_, about := slices.BinarySearch(names, e.Name())
			return about
		}})
		i.fixed = true
		i.Look()
		begun = append(begun, Changes{i, names})
	}
	return begun
}
