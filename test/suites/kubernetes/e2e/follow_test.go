package e2e

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
)

// follower is one more consumer of the owners of a domain, with all that it was told.
type follower struct {
	mu         sync.Mutex
	services   map[string]*federation.Service
	generation map[string]uint64
	withdrawn  map[string]int // how often a service was withdrawn
	repeated   []string       // names of services that one stream announced twice without a change
	announced  map[string]int // how often a service was announced with a change
	status     consumer.Status
}

// follow subscribes to an owner of a domain until the end of the test.
func follow(t testing.TB, d *domain.Domain, o *domain.Owner) *follower {
	t.Helper()
	f := &follower{services: make(map[string]*federation.Service), generation: make(map[string]uint64), announced: make(map[string]int), withdrawn: make(map[string]int)}
	domain.Follow(t, d.ConsumerFiles(), d.OwnerID(), []string{o.Address}, f.publish)
	return f
}

func (f *follower) publish(c consumer.Changes) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = c.Status
	for _, change := range c.Services {
		switch change.Kind() {
		case catalog.Gone:
			f.withdrawn[change.Name]++
			delete(f.services, change.Name)
			delete(f.generation, change.Name)
			continue
		case catalog.Confirmed:
			if f.generation[change.Name] == change.Generation {
				f.repeated = append(f.repeated, change.Name)
			}
		case catalog.Offered:
			f.announced[change.Name]++
		}
		f.services[change.Name], f.generation[change.Name] = change.Packed.Unpack(), change.Generation
	}
}

// synced waits until the follower has the whole catalog of an open stream, and
// returns it by name.
func (f *follower) synced(t testing.TB) map[string]*federation.Service {
	t.Helper()
	eventually(t, func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.status.State != catalog.Synced {
			return fmt.Sprintf("the catalog is %s, %v", f.status.StateName(), f.status.Failure)
		}
		return ""
	})
	return f.now()
}

// now returns what the follower has at the moment, by name.
func (f *follower) now() map[string]*federation.Service {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.services)
}

// told returns how often a service was announced with a change, and how often withdrawn.
func (f *follower) told(service string) (announced, withdrawn int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.announced[service], f.withdrawn[service]
}

// failure returns why the follower has no stream, or nil.
func (f *follower) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status.Failure
}

// undisturbed fails the test if the follower was told of a withdrawal of what has the
// prefix, or twice of the same. A namespace of an earlier test may still be on its way
// out.
func (f *follower) undisturbed(t testing.TB, prefix string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range f.withdrawn {
		if strings.HasPrefix(name, prefix) {
			t.Errorf("%s was withdrawn", name)
		}
	}
	if len(f.repeated) > 0 {
		t.Errorf("%d services were sent twice on one stream, the first %s", len(f.repeated), f.repeated[0])
	}
}

// same checks that the owners of a domain publish the same, byte for byte in all that
// a consumer sees.
func same(t testing.TB, d *domain.Domain, owners ...*domain.Owner) {
	t.Helper()
	first := follow(t, d, owners[0])
	for _, o := range owners[1:] {
		other := follow(t, d, o)
		eventually(t, func() string {
			want, got := first.synced(t), other.synced(t)
			if len(want) != len(got) {
				return fmt.Sprintf("%s has %d services, and %s %d", owners[0].Name, len(want), o.Name, len(got))
			}
			for name, s := range want {
				if got[name] == nil || !s.Equal(got[name]) {
					return fmt.Sprintf("%s has %s as %+v, and %s as %+v", owners[0].Name, name, s, o.Name, got[name])
				}
			}
			return ""
		})
	}
}
