package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// stage is a namespace of west on which something goes wrong. Some of what it exports
// stays the same throughout: the CoreDNS of east is asked for it all the time, and a
// consumer of each owner notes what it is told.
type stage struct {
	west, east *domain.Domain
	space      string // the namespace
	zone       string // of the names of its Services

	prober    *domain.Prober
	followers []*follower // one of each owner of west
	changes   int
}

// What stays: the names of the Services that newStage exports.
const (
	balancedName = "web"    // at a load balancer
	statefulName = "db"     // two pods
	labelledName = "marked" // exported by its label
	movingName   = "moving" // its address changes; see move
)

// label exports a Service that has it, with the value "true".
const label = "hamlet-federation.github.io/export"

// newStage exports Services in a namespace, waits until east resolves them, and
// begins to ask.
func newStage(t *testing.T, space string) *stage {
	t.Helper()
	west, east := two(t)
	for _, o := range west.Owners {
		isReady(t, o)
	}
	namespace(t, west, space)
	s := &stage{west: west, east: east, space: space, zone: "." + space + "." + west.Zone}
	labelled := strings.Replace(balanced(space, labelledName, "203.0.113.2"), "{name:", "{labels: {"+label+`: "true"}, name:`, 1)
	apply(t, west, balanced(space, balancedName, "203.0.113.1"), export(space, balancedName),
		stateful(space, statefulName, "10.3.0.1", "10.3.0.2"), export(space, statefulName), labelled,
		balanced(space, movingName, "198.51.100.0"), export(space, movingName))
	want := make(map[domain.Question]string)
	for name, answer := range map[string]string{
		balancedName: "203.0.113.1", labelledName: "203.0.113.2", statefulName: "10.3.0.1 10.3.0.2",
		statefulName + "-0." + statefulName: "10.3.0.1", statefulName + "-1." + statefulName: "10.3.0.2",
	} {
		answers(t, east, name+s.zone, dns.TypeA, "NOERROR "+answer)
		want[domain.Question{Name: name + s.zone, Type: dns.TypeA}] = "NOERROR " + answer
		// The names of targets are CoreDNS's own, so what it says first is right.
		reply, err := east.DNS.Ask(t.Context(), name+s.zone, dns.TypeSRV)
		must.Do(t, err)
		if got := len(reply.Answer); got != len(strings.Fields(answer)) {
			t.Fatalf("%s has %d SRV records, want one for each of %s", name, got, answer)
		}
		want[domain.Question{Name: name + s.zone, Type: dns.TypeSRV}] = domain.Short(reply)
	}
	for _, o := range west.Owners {
		s.followers = append(s.followers, follow(t, west, o))
	}
	s.prober = domain.Probe(t, east.DNS, 1, want)
	s.settled(t)
	return s
}

// write changes the cluster on purpose: a Service moves, one comes, and one goes.
func (s *stage) write(t *testing.T) {
	t.Helper()
	s.changes++
	apply(t, s.west, balanced(s.space, movingName, s.address()),
		balanced(s.space, s.added(0), s.address()), export(s.space, s.added(0)))
	if s.changes > 1 {
		remove(t, s.west, export(s.space, s.added(-1)))
	}
}

// address is where the Service that moves is now, and added the name of the one that
// has come last, or of an earlier one.
func (s *stage) address() string       { return fmt.Sprintf("198.51.100.%d", s.changes) }
func (s *stage) added(plus int) string { return fmt.Sprintf("added-%d", s.changes+plus) }

// arrived waits until east answers what write has written last.
func (s *stage) arrived(t *testing.T) {
	t.Helper()
	answers(t, s.east, movingName+s.zone, dns.TypeA, "NOERROR "+s.address())
	answers(t, s.east, s.added(0)+s.zone, dns.TypeA, "NOERROR "+s.address())
	if s.changes > 1 {
		answers(t, s.east, s.added(-1)+s.zone, dns.TypeA, "NXDOMAIN")
	}
}

// change is write and arrived.
func (s *stage) change(t *testing.T) {
	t.Helper()
	s.write(t)
	s.arrived(t)
}

// settled waits until each owner publishes what was written last, and nothing else of the
// namespace.
func (s *stage) settled(t *testing.T) {
	t.Helper()
	prefix := s.west.Name + "/" + s.space + "/"
	want := []string{prefix + balancedName, prefix + labelledName, prefix + movingName, prefix + statefulName}
	if s.changes > 0 {
		want = append(want, prefix+s.added(0))
	}
	slices.Sort(want)
	for i, f := range s.followers {
		f.synced(t)
		eventually(t, func() string {
			all := f.now()
			maps.DeleteFunc(all, func(name string, _ *federation.Service) bool { return !strings.HasPrefix(name, prefix) })
			if got := slices.Sorted(maps.Keys(all)); !slices.Equal(want, got) {
				return fmt.Sprintf("%s publishes %v, want %v", s.west.Owners[i].Name, got, want)
			}
			if got := all[prefix+movingName].Endpoints[0].Address.String(); got != s.address() {
				return fmt.Sprintf("%s has %s at %s, want %s", s.west.Owners[i].Name, movingName, got, s.address())
			}
			return ""
		})
	}
}

// check ends the queries, and fails the test if what stays was disturbed: if an
// answer was wrong, or an owner withdrew it, or said something twice.
func (s *stage) check(t *testing.T) {
	t.Helper()
	s.prober.Check(t)
	same(t, s.west, s.west.Owners...)
	for _, f := range s.followers {
		for _, name := range []string{balancedName, statefulName, labelledName, movingName} {
			f.undisturbed(t, s.west.Name+"/"+s.space+"/"+name)
		}
	}
}

// exported waits until the conditions of a ServiceExport say that it is published.
func exported(t *testing.T, d *domain.Domain, space, name string) {
	t.Helper()
	says(t, d, space, name, "Valid", "True", "Valid")
	says(t, d, space, name, "Ready", "True", "Exported")
}

// get returns the reply of an owner to a request at its address for metrics.
func get(t testing.TB, o *domain.Owner, path string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+o.Metrics+path, http.NoBody)
	must.Do(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must.Do(t, err)
	return response.StatusCode, string(text)
}

// isReady waits until an owner says on /readyz that it is.
func isReady(t testing.TB, o *domain.Owner) {
	t.Helper()
	eventually(t, func() string {
		if code, body := get(t, o, "/readyz"); code != http.StatusOK {
			return fmt.Sprintf("/readyz of %s is %d, %s", o.Name, code, body)
		}
		return ""
	})
}

// away waits until an owner says that its cluster is, or is not.
func away(t testing.TB, o *domain.Owner, want bool) {
	t.Helper()
	eventually(t, func() string {
		_, body := get(t, o, "/metrics")
		for line := range strings.Lines(body) {
			if !strings.HasPrefix(line, "federation_owner_source_away_seconds{") {
				continue
			}
			fields := strings.Fields(line)
			if got := fields[len(fields)-1] != "0"; got != want {
				return fmt.Sprintf("%s of %s, want the cluster to be away: %t", line, o.Name, want)
			}
			return ""
		}
		return o.Name + " does not say whether its cluster is away:\n" + body
	})
}

// each calls f with every owner of west.
func (s *stage) each(f func(*domain.Owner)) {
	for _, o := range s.west.Owners {
		f(o)
	}
}

// restarts starts a program that a test has ended, when the test has failed to do so:
// others share it.
func restarts(t *testing.T, p *realserver.Process) {
	t.Helper()
	t.Cleanup(func() {
		if !p.Running() {
			if err := p.Start(context.Background()); err != nil { // the test's context is over
				t.Error(err)
			}
		}
	})
}
