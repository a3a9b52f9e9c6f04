package domain

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// Shared is a Federation that the tests of a package share. The first that needs it starts it.
type Shared struct {
	Federation

	once sync.Once
	dir  string
	err  error
}

// Get returns the domains. It ends the test unless real servers are wanted, which the target of the Makefile
// builds.
func (s *Shared) Get(t testing.TB, target string, options ...Options) []*Domain {
	t.Helper()
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skipf("not run: it needs real control planes; make %s builds and runs them", target)
	}
	must.Do(t, Find())
	s.once.Do(func() {
		if s.dir, s.err = os.MkdirTemp("", target); s.err == nil { //nolint:usetesting // it outlives the test that is the first
			s.err = s.Start(context.Background(), s.dir, t.Logf, options...)
		}
	})
	must.Do(t, s.err)
	return s.Domains
}

// Main runs the tests of a package, and stops the domains after the last.
func (s *Shared) Main(m *testing.M) {
	code := m.Run()
	s.Stop()
	if s.dir != "" && code == 0 {
		os.RemoveAll(s.dir)
	}
	os.Exit(code)
}

// AwaitAnswer waits until the CoreDNS of a domain answers a question with want, in the
// form of Short, such as "NOERROR 192.0.2.1" or "NXDOMAIN".
func AwaitAnswer(t testing.TB, d *Domain, name string, qtype uint16, want string) {
	t.Helper()
	await.Eventually(t, func() string {
		if got := d.DNS.Answer(t.Context(), name, qtype); got != want {
			return fmt.Sprintf("%s answers %s %s with %q, want %q", d.Name, name, dns.TypeToString[qtype], got, want)
		}
		return ""
	})
}
