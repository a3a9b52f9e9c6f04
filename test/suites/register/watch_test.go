package register

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
)

// short returns the answer with these addresses, in the form of domain.Short.
func short(addresses []string) string {
	slices.Sort(addresses)
	return strings.Join(append([]string{"NOERROR"}, addresses...), " ")
}

// probe begins to ask for names, each with its answer in the form of domain.Short, until it
// is checked.
func probe(t testing.TB, d *domain.DNS, want map[string]string) *domain.Prober {
	t.Helper()
	questions := make(map[domain.Question]string, len(want))
	for name, answer := range want {
		questions[domain.Question{Name: name, Type: dns.TypeA}] = answer
	}
	return domain.Probe(t, d, 4, questions)
}

// more waits until every name was asked for once more, from now on.
func more(t testing.TB, p *domain.Prober) {
	t.Helper()
	before := p.Rounds()
	eventually(t, func() string {
		if p.Rounds() < before+2 { // the one that is under way may have passed a name
			return "not all names were asked for"
		}
		return ""
	})
}

// resolved waits until a CoreDNS answers for each name as it should.
func resolved(t testing.TB, d *domain.DNS, want map[string]string) {
	t.Helper()
	for name, answer := range want {
		eventually(t, func() string {
			if got := d.Answer(t.Context(), name, dns.TypeA); got != answer {
				return fmt.Sprintf("%s is %q, want %q", name, got, answer)
			}
			return ""
		})
	}
}

// resolvedTo waits until CoreDNS answers for a name as it should.
func resolvedTo(t testing.TB, w *processes, name, want string) {
	t.Helper()
	resolved(t, w.dns, map[string]string{name: want})
}

// follower is one more consumer of an owner, with the times at which it was told of
// what.
type follower struct {
	mu        sync.Mutex
	services  map[string]*federation.Service
	withdrawn map[string]time.Time // by fqdn: when it was withdrawn last
	withdraws []string             // fqdns, each time
	status    consumer.Status
}

// follow subscribes to owners until the end of the test.
func (w *processes) follow(t testing.TB, addresses ...string) *follower {
	t.Helper()
	f := &follower{
		services: make(map[string]*federation.Service), withdrawn: make(map[string]time.Time),
	}
	domain.Follow(t, w.Files("coredns"), ownerID, addresses, f.publish)
	return f
}

func (f *follower) publish(c consumer.Changes) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = c.Status
	for _, change := range c.Services {
		if change.Kind() == catalog.Gone {
			if s := f.services[change.Name]; s != nil {
				f.withdrawn[fqdn(s)] = now
				f.withdraws = append(f.withdraws, fqdn(s))
			}
			delete(f.services, change.Name)
			continue
		}
		f.services[change.Name] = change.Packed.Unpack()
	}
}

func fqdn(s *federation.Service) string { return strings.TrimSuffix(s.FQDN.String(), ".") }

// gone waits until a service is withdrawn, and returns when the follower was told.
func (f *follower) gone(t testing.TB, name string) time.Time {
	t.Helper()
	var at time.Time
	eventually(t, func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		if at = f.withdrawn[name]; at.IsZero() {
			return name + " is not withdrawn"
		}
		return ""
	})
	return at
}

// withdrawals returns what was withdrawn so far, each time that it was.
func (f *follower) withdrawals() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.withdraws)
}

// synced waits until the follower has the catalog of an open stream with n services,
// and returns it by name.
func (f *follower) synced(t testing.TB, n int) map[string]*federation.Service {
	t.Helper()
	var all map[string]*federation.Service
	eventually(t, func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.status.State != catalog.Synced || len(f.services) != n {
			return fmt.Sprintf("the catalog is %s with %d services, want %d: %v", f.status.StateName(), len(f.services), n, f.status.Failure)
		}
		all = maps.Clone(f.services)
		return ""
	})
	return all
}
