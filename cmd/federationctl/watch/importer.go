package watch

import (
	"sync"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

// MaxSkips bounds the services that are listed although they are not imported: an owner
// may have any number.
const MaxSkips = 100

// importer leaves services out, and notes them until they are shown.
type importer struct {
	filter pattern.Filter // read-only

	mu      sync.Mutex          // guards the fields below
	listed  map[string]struct{} // names, of MaxSkips services at most
	pending []packed.Service
	more    bool // there are others, which are not listed
	told    bool // and that was said
}

// admit returns the rule of the catalog: what the filter and the policy admit.
func (i *importer) admit(policy wire.Policy) func(*federation.Service) *federation.InvalidError {
	if i.filter.IsZero() {
		return policy.Check
	}
	return func(s *federation.Service) *federation.InvalidError {
		if i.filter.Matches(s) {
			i.forget(s.Name)
			return policy.Check(s)
		}
		i.note(s)
		return catalog.ErrNotImported
	}
}

// note notes a service that is left out, once.
func (i *importer) note(s *federation.Service) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, ok := i.listed[s.Name]; ok {
		return
	}
	if len(i.listed) >= MaxSkips {
		i.more = true
		return
	}
	if i.listed == nil {
		i.listed = make(map[string]struct{})
	}
	kept := packed.Of(s) // s is the catalog's, and its strings may be in a large message
	i.listed[kept.Name()] = struct{}{}
	i.pending = append(i.pending, kept)
}

// forget has the service of that name listed again when it is left out again.
func (i *importer) forget(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.listed, name)
}

// take returns the services that were noted since the last call, and reports whether
// there are more than are listed, once.
func (i *importer) take() (services []packed.Service, more bool) {
	if i.filter.IsZero() {
		return nil, false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	services, i.pending = i.pending, nil
	more = i.more && !i.told
	i.told = i.told || more
	return services, more
}
