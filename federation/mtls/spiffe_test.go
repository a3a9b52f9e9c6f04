package mtls

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
	"github.com/hamlet-federation/coredns-federation/test/peers/spiffeagent"
)

const (
	socket = "tcp://127.0.0.1:1" // where nothing is dialled in these tests
	alice  = "spiffe://one.example/alice"
	bob    = "spiffe://two.example/bob"
)

var clientUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}

// station is an agent that comes and goes, in memory.
type station struct {
	spiffeagent.Agent

	mu       sync.Mutex
	listener *bufconn.Listener // nil while it is away
	stop     func()
}

func (s *station) come() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener = bufconn.Listen(1 << 16)
	s.stop = s.Serve(s.listener)
}

func (s *station) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		s.stop()
		s.listener = nil
	}
}

func (s *station) dial(ctx context.Context, _ string) (net.Conn, error) {
	s.mu.Lock()
	listener := s.listener
	s.mu.Unlock()
	if listener == nil {
		return nil, errors.New("nobody is there")
	}
	return listener.DialContext(ctx)
}

// workload is a Source that has its identity from a station, and what it logs.
type workload struct {
	*Source

	log  *testlog.Buffer
	stop func()
}

func (s *station) workload(t *testing.T, domains ...string) *workload {
	t.Helper()
	w := &workload{log: &testlog.Buffer{}}
	w.Source = must.Get(Open(Origin{SPIFFE: SPIFFE{Socket: socket, TrustDomains: domains}}, slog.New(slog.NewTextHandler(w.log, nil))))(t)
	agent := w.origin.agent
	agent.options = append(agent.options, workloadapi.WithDialOptions(grpc.WithContextDialer(s.dial)))
	w.stop = run(t, w.Source)
	t.Cleanup(s.leave)
	return w
}

// logged fails unless text is logged n times.
func (w *workload) logged(t *testing.T, text string, n int) {
	t.Helper()
	if got := strings.Count(w.log.String(), text); got != n {
		t.Errorf("%q is logged %d times, expected %d:\n%s", text, got, n, w.log)
	}
}

func svid(t *testing.T, a *Authority, id string, lifetime time.Duration) spiffeagent.SVID {
	t.Helper()
	issued := issue(t, a, Leaf{URIs: []string{id}, Lifetime: backdated + lifetime})
	return spiffeagent.SVID{ID: id, Cert: issued.Cert, Key: issued.Key, Bundle: issued.CA}
}

// The Source of an agent that is away at first fails handshakes and says why, announces
// the first certificate, and follows the agent from then on.
func TestAgentIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var station station
		one := newAuthority(t)
		w := station.workload(t)
		peer := load(t, issue(t, one, Leaf{URIs: []string{alice}}))
		fails := func(want string) {
			t.Helper()
			before := time.Now()
			clientErr, _ := handshake(w.Client("", parseIDs(t, []string{alice})), peer.Server())
			_, serverErr := handshake(peer.Client("", parseIDs(t, []string{alice})), w.Server())
			for _, err := range []error{clientErr, serverErr} {
				if err == nil || !strings.Contains(err.Error(), socket) || !strings.Contains(err.Error(), want) {
					t.Errorf("a handshake gave %v, expected the socket and %q", err, want)
				}
			}
			if time.Since(before) > 0 {
				t.Errorf("that took %v", time.Since(before))
			}
		}
		changed := w.Changed()
		time.Sleep(time.Minute)
		synctest.Wait()
		fails("it is away: Unavailable")
		if certificate, ca := w.Expiry(); !certificate.IsZero() || !ca.IsZero() {
			t.Errorf("nothing expires at %v and %v", certificate, ca)
		}
		station.come()
		time.Sleep(maxRetry + minRetry)
		synctest.Wait()
		fails("it issues no identity to this process")
		station.Issue(nil, svid(t, one, alice, time.Hour))
		time.Sleep(maxRetry)
		synctest.Wait()
		if !closed(changed) || closed(w.Changed()) {
			t.Fatal("the first certificate is not announced, or for ever")
		}
		if certificate, ca := w.Expiry(); time.Until(certificate) <= 0 || time.Until(ca) <= 0 {
			t.Errorf("certificate and authority expire at %v and %v", certificate, ca)
		}
		l := connect(t, w.Source, peer, parseIDs(t, []string{alice})...)
		l.works(t, "with the first certificate")
		w.logged(t, "the SPIFFE agent is away", 1)
		w.logged(t, "the SPIFFE agent issues no identity", 1)
		w.logged(t, "the SPIFFE agent is back", 1)
		w.logged(t, "the first certificate is here", 1)
		if n := strings.Count(w.log.String(), "\n"); n != 4 {
			t.Errorf("%d lines are logged, expected 4:\n%s", n, w.log)
		}
	})
}

// An agent that is away later is survived with what is held until that expires, and what
// it has to say when it is back is taken up within seconds.
func TestAgentIsAwayLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var station station
		one := newAuthority(t)
		station.Issue(nil, svid(t, one, alice, time.Hour))
		station.come()
		w := station.workload(t)
		synctest.Wait()
		peer := load(t, issue(t, one, Leaf{URIs: []string{alice}}))
		attempt := func() error {
			_, err := handshake(w.Client("", parseIDs(t, []string{alice})), peer.Server())
			return err
		}
		changed := w.Changed()
		station.leave()
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := attempt(); err != nil {
			t.Errorf("while the agent is away: %v", err)
		}
		station.come()
		time.Sleep(maxRetry + minRetry)
		synctest.Wait()
		station.Fail(status.Error(codes.Canceled, "shutting down"))
		time.Sleep(time.Minute)
		station.Fail(status.Error(codes.InvalidArgument, "no"))
		time.Sleep(time.Minute)
		station.Issue(nil, svid(t, one, alice, time.Hour))
		time.Sleep(maxRetry + minRetry)
		synctest.Wait()
		if !closed(changed) {
			t.Fatalf("the certificate of the agent that is back is not used:\n%s", w.log)
		}
		w.logged(t, "the SPIFFE agent is away\" socket="+socket+" meanwhile=\"the old certificate stays in use until it expires at 2000-", 2)
		w.logged(t, "the SPIFFE agent is back", 2)
		station.leave()
		time.Sleep(time.Hour)
		synctest.Wait()
		if err := attempt(); err == nil || !strings.Contains(err.Error(), "expired") {
			t.Errorf("with an expired certificate: %v", err)
		}
	})
}

// What an agent sends against the rules is reported once and changes nothing.
func TestBrokenUpdate(t *testing.T) {
	one, two := newAuthority(t), newAuthority(t)
	for name, tc := range map[string]struct {
		change func(*spiffeagent.SVID)
		want   string
	}{
		"key of another":    {func(s *spiffeagent.SVID) { s.Key = svid(t, one, alice, time.Hour).Key }, "does not match private key"},
		"empty bundle":      {func(s *spiffeagent.SVID) { s.Bundle = nil }, "there is no bundle of trust domain one.example"},
		"bundle of another": {func(s *spiffeagent.SVID) { s.Bundle = two.PEM() }, "signed by unknown authority"},
		"expired":           {func(s *spiffeagent.SVID) { *s = svid(t, one, alice, -time.Minute) }, "expired at"},
		"one usage": {func(s *spiffeagent.SVID) {
			i := issue(t, one, Leaf{URIs: []string{alice}, Usage: clientUsage})
			s.Cert, s.Key = i.Cert, i.Key
		}, "does not have both serverAuth and clientAuth"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one, two = newAuthority(t), newAuthority(t) // of the time in the bubble
				var station station
				station.Issue(nil, svid(t, one, alice, time.Hour))
				station.come()
				w := station.workload(t)
				synctest.Wait()
				changed := w.Changed()
				broken := svid(t, one, alice, time.Hour)
				tc.change(&broken)
				for range 3 {
					station.Issue(nil, broken)
					synctest.Wait()
				}
				if closed(changed) {
					t.Error("a broken update is used")
				}
				w.logged(t, "response of the SPIFFE agent is invalid\" socket="+socket+" meanwhile=\"the old certificate stays in use", 1)
				w.logged(t, tc.want, 1)
				station.Issue(nil, svid(t, one, alice, time.Hour))
				synctest.Wait()
				if !closed(changed) {
					t.Error("a good update is not used")
				}
				w.logged(t, "responses of the SPIFFE agent are valid again", 1)
			})
		})
	}
}

// Of several identities the first is the own one, and only the bundles of its trust
// domain and of those that are named are used. What leaves them ends its connections.
func TestFederation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var station station
		one, two, three := newAuthority(t), newAuthority(t), newAuthority(t)
		federated := map[string][]byte{"two.example": two.PEM(), "three.example": three.PEM()}
		own := svid(t, one, alice, 10*time.Hour)
		station.Issue(federated, own, svid(t, one, "spiffe://one.example/second", time.Hour))
		station.come()
		w := station.workload(t, "two.example", "four.example")
		synctest.Wait()
		peer := func(a *Authority, id string) *Source {
			issued := issue(t, a, Leaf{URIs: []string{id}, DNSNames: []string{"owner.example"}})
			issued.CA = one.PEM()
			return load(t, issued)
		}
		first := parseIDs(t, []string{alice})
		l := connect(t, peer(two, bob), w.Source, first...)
		if ids := l.consumer.IDs(); len(ids) != 1 || ids[0].String() != bob {
			t.Errorf("the identities are %v, expected %s alone", ids, bob)
		}
		for _, tc := range []struct{ id, want string }{
			{"spiffe://three.example/carol", "there is no bundle of trust domain three.example, or it is not one that is accepted"},
			{"spiffe://four.example/dave", "there is no bundle of trust domain four.example"},
		} {
			third := peer(three, tc.id)
			clientErr, _ := handshake(w.Client("", parseIDs(t, []string{tc.id})), third.Server())
			_, serverErr := handshake(third.Client("", first), w.Server())
			for _, err := range []error{clientErr, serverErr} {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: a handshake gave %v, expected %q", tc.id, err, tc.want)
				}
			}
		}
		for name, ids := range map[string][]federation.ID{"a DNS name": parseIDs(t, []string{"owner.example"}), "nothing": nil} {
			if err, _ := handshake(w.Client("owner.example", ids), peer(two, bob).Server()); err == nil {
				t.Errorf("an owner is taken that is pinned to %s", name)
			}
		}
		station.Issue(map[string][]byte{"two.example": nil}, own)
		synctest.Wait()
		ends(t, l.server, l.client, errDistrusted, "without its bundle")
		w.logged(t, "connections closed", 1)
	})
}

// Several Runs are one stream at the agent, until the last ends.
func TestSharedAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var station station
		one := newAuthority(t)
		station.come()
		w := station.workload(t)
		stops := []func(){w.stop, run(t, w.Source), run(t, w.Source)}
		for i, stop := range stops {
			changed := w.Changed()
			station.Issue(nil, svid(t, one, alice, time.Hour))
			time.Sleep(maxRetry)
			synctest.Wait()
			if !closed(changed) {
				t.Errorf("after the end of %d of %d Runs the agent is not followed", i, len(stops))
			}
			stop()
		}
	})
}

func TestOpenSPIFFE(t *testing.T) {
	for name, tc := range map[string]struct {
		spiffe SPIFFE
		want   string // "": none
	}{
		"path":                     {SPIFFE{Socket: "unix:///run/spire/agent.sock", TrustDomains: []string{"a.example", "b"}}, ""},
		"path alone":               {SPIFFE{Socket: "/run/spire/agent.sock"}, "it is unix:///path or tcp://ip:port"},
		"relative path":            {SPIFFE{Socket: "unix://run/agent.sock"}, "the path is not absolute"},
		"host name":                {SPIFFE{Socket: "tcp://localhost:8081"}, "it is unix:///path or tcp://ip:port"},
		"trust domain in capitals": {SPIFFE{Socket: socket, TrustDomains: []string{"A.example"}}, `trust domain "A.example"`},
		"whole ID":                 {SPIFFE{Socket: socket, TrustDomains: []string{bob}}, "name it alone, as in two.example"},
		"long trust domain":        {SPIFFE{Socket: socket, TrustDomains: []string{strings.Repeat("a", 256)}}, "longer than 255 bytes"},
	} {
		source, err := Open(Origin{SPIFFE: tc.spiffe}, nil)
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tc.want != "" && (source != nil || err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\x1b")):
			t.Errorf("%s: error is %v, expected %q", name, err, tc.want)
		}
	}
}

func TestRetries(t *testing.T) {
	b := retryStrategy{}.NewBackoff()
	for round := range 2 {
		for i, want := range []float64{1, 2, 3, 4, 5, 5, 5} {
			if got := b.Next().Seconds(); got != want {
				t.Errorf("round %d: delay %d is %v s, expected %v s", round, i, got, want)
			}
		}
		b.Reset()
	}
}
