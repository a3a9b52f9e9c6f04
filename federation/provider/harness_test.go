package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/durationpb"

	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// testProgram is a program and its owners, which are scripted, on a network in memory. It must
// be made inside a bubble.
type testProgram struct {
	*testing.T
	network.Network

	start    time.Time
	log      testlog.Buffer
	identity *pki.Identity

	mu      sync.Mutex
	records []record // what owners were told, dials, and changes of status; guarded by mu
}

// hanging is an address from which nothing comes back.
const hanging = "hangs:1"

// record is something that has happened.
type record struct {
	at   time.Duration // since the start
	what string
}

func newProgram(t *testing.T) *testProgram {
	t.Helper()
	w := &testProgram{T: t, start: time.Now(), identity: plain()}
	w.TimesOut(hanging)
	return w
}

// plain is an identity for owners without TLS.
func plain() *pki.Identity {
	return &pki.Identity{Of: func(string) credentials.TransportCredentials { return insecure.NewCredentials() }}
}

func (w *testProgram) recordf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = append(w.records, record{time.Since(w.start), fmt.Sprintf(format, args...)})
}

// times returns when something has happened since the last call that begins with what,
// and forgets everything else.
func (w *testProgram) times(what string) (found []time.Duration) {
	w.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records {
		if strings.HasPrefix(r.what, what) {
			found = append(found, r.at)
		}
	}
	w.records = nil
	return found
}

// happened returns what has happened since the last call that contains one of the words.
func (w *testProgram) happened(words ...string) string {
	w.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []string
	for _, r := range w.records {
		for _, word := range words {
			if strings.Contains(r.what, word) {
				found = append(found, r.what)
				break
			}
		}
	}
	w.records = nil
	return strings.Join(found, "\n")
}

// expect fails the test unless what has happened since the last call, as far as it
// contains one of the words, is as wanted.
func (w *testProgram) expect(want string, words ...string) {
	w.Helper()
	if got := w.happened(words...); got != want {
		w.Errorf("after %v has happened:\n%s\nwant:\n%s", time.Since(w.start), got, want)
	}
}

func (w *testProgram) dial(ctx context.Context, address string) (net.Conn, error) {
	w.recordf("dial %s", address)
	return w.Dial(ctx, address)
}

// conversation is a stream as an owner sees it.
type conversation struct {
	grpc.BidiStreamingServer[registrationv1.RegisterRequest, registrationv1.RegisterResponse]

	program *testProgram
	name    string
}

// script is what an owner does with a stream that is open on both sides.
type script func(c conversation) error

type scripted struct {
	registrationv1.UnimplementedRegistrationServiceServer

	register func(registrationv1.RegistrationService_RegisterServer) error
}

func (s scripted) Register(stream registrationv1.RegistrationService_RegisterServer) error {
	return s.register(stream)
}

// owner serves an address with a script until the test ends, or the returned function is
// called.
func (w *testProgram) owner(address string, do script) (stop func()) {
	return w.serve(address, func(c conversation) error {
		if err := c.Send(opened(version)); err != nil {
			return err
		}
		if m, err := c.Recv(); err != nil || m.GetOpen().GetVersion() != version {
			return fmt.Errorf("begins with %v, %w", m, err)
		}
		return do(c)
	})
}

// serve is like owner for a script that opens the stream itself.
func (w *testProgram) serve(address string, do script) (stop func()) {
	name, _, _ := strings.Cut(address, ":")
	server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minKeepalive}))
	registrationv1.RegisterRegistrationServiceServer(server, scripted{register: func(s registrationv1.RegistrationService_RegisterServer) error {
		return do(conversation{s, w, name})
	}})
	return w.Serve(w, address, network.GRPC(server))
}

// next receives a message and records it.
func (c conversation) next() (*registrationv1.RegisterRequest, error) {
	m, err := c.Recv()
	if err != nil {
		return nil, err
	}
	switch {
	case m.GetActive() != nil:
		c.program.recordf("%s: active %s", c.name, m.GetActive().GetNode())
	case m.GetClear() != nil:
		c.program.recordf("%s: clear %s", c.name, m.GetClear().GetNode())
	case m.GetClose() != nil:
		c.program.recordf("%s: close %v %s", c.name, m.GetClose().GetReason(), m.GetClose().GetText())
	}
	return m, nil
}

// answers is the script of an owner that says something to each Active, and ends with the Close of
// the program.
func answers(to func(active *registrationv1.RegisterRequest) []*registrationv1.RegisterResponse) script {
	return func(c conversation) error {
		for {
			m, err := c.next()
			switch {
			case err != nil:
				return err
			case m.GetClose() != nil:
				return nil
			case m.GetActive() == nil:
				continue
			}
			for _, answer := range to(m) {
				if err := c.Send(answer); err != nil {
					return err
				}
			}
		}
	}
}

func silence(*registrationv1.RegisterRequest) []*registrationv1.RegisterResponse { return nil }

// grants is the script of an owner in order, which grants a ttl for everything.
func grants(ttl time.Duration) script {
	return answers(func(m *registrationv1.RegisterRequest) []*registrationv1.RegisterResponse { return granted(m, ttl) })
}

func opened(version uint32) *registrationv1.RegisterResponse {
	return &registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Open{Open: &registrationv1.Open{Version: version}}}
}

func granted(m *registrationv1.RegisterRequest, ttl time.Duration) []*registrationv1.RegisterResponse {
	return []*registrationv1.RegisterResponse{{Message: &registrationv1.RegisterResponse_Granted{Granted: &registrationv1.Granted{
		Service: m.GetActive().GetService(), Node: m.GetActive().GetNode(), Ttl: durationpb.New(ttl), Uri: "https://192.0.2.1:443",
	}}}}
}

func refused(m *registrationv1.RegisterRequest, rule string) []*registrationv1.RegisterResponse {
	return []*registrationv1.RegisterResponse{{Message: &registrationv1.RegisterResponse_Refused{Refused: &registrationv1.Refused{
		Service: m.GetActive().GetService(), Node: m.GetActive().GetNode(), Rule: rule, Reason: "it is " + rule,
	}}}}
}

func closed(reason registrationv1.Close_Reason, after time.Duration) *registrationv1.RegisterResponse {
	return &registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Close{Close: &registrationv1.Close{
		Reason: reason, Text: "going", RetryAfter: durationpb.New(after),
	}}}
}

// provider returns one that registers with owners in the given order, and a node.
func (w *testProgram) provider(addresses ...string) *Provider {
	w.Helper()
	p, err := New(Config{
		Addresses: addresses, Identity: w.identity, Dial: w.dial,
		OnChange: func(s Status) {
			text := fmt.Sprintf("status %s %v", s.Node.URI, s.State)
			switch {
			case s.State == Refused:
				text += " " + s.Rule + ": " + s.Reason
			case s.State == Registered:
				text += " " + s.Owner + " " + s.URI
			case s.Err != nil:
				text += ": " + s.Err.Error()
			}
			w.recordf("%s", text)
		},
		Logger: w.log.Logger(),
	})
	if err != nil {
		w.Fatal(err)
	}
	p.next = 0
	return p
}

// set sets nodes of a service.
func (w *testProgram) set(p *Provider, uris ...string) {
	w.Helper()
	for _, uri := range uris {
		if err := p.Set(Node{Service: "shop.fed.example", URI: uri}); err != nil {
			w.Fatal(err)
		}
	}
}

// run sets nodes, and runs a provider until the returned function is called, or the test ends.
// The function returns how long the end has taken.
func (w *testProgram) run(p *Provider, uris ...string) (stop func() time.Duration) {
	w.Helper()
	w.set(p, uris...)
	end := must.Run(w, p.Run)
	return func() time.Duration {
		begun := time.Now()
		end()
		return time.Since(begun)
	}
}

// bubble runs a test in one.
func bubble(t *testing.T, test func(w *testProgram)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newProgram(t)) })
}

var errGone = errors.New("gone")

// Statuses returns the status of each node, by service and URI.
func (p *Provider) Statuses() []Status {
	p.mu.Lock()
	all := make([]Status, 0, len(p.nodes))
	for _, e := range p.nodes {
		all = append(all, e.status)
	}
	p.mu.Unlock()
	slices.SortFunc(all, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Node.Service, b.Node.Service), cmp.Compare(a.Node.URI, b.Node.URI))
	})
	return all
}
