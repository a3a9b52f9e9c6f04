package registration_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

const anyone = `
rules:
- name: all
  providers: ["spiffe://acme.example/*"]
  services: ["*.acme.example"]
  addresses: ["192.0.2.0/24"]
  ttl: {min: 1s, max: 1m, default: 10s}
  quota: 5
- name: many
  providers: ["spiffe://many.example/*"]
  services: ["*.many.example"]
  addresses: ["10.0.0.0/8"]
  ttl: {min: 1s, max: 10m, default: 10s}
  quota: 1000000
`

func rulesOf(tb testing.TB, text string) *rules.Rules {
	tb.Helper()
	r, problems := rules.Parse([]byte(text))
	if len(problems) > 0 {
		tb.Fatal(problems)
	}
	return r
}

// part records what is published.
type part struct {
	mu       sync.Mutex
	whole    bool
	services map[string]*wire.EncodedService
	away     error
	updates  int
	refused  map[string]int // entries, by rule
	lost     []string       // every name that was withdrawn, or whose service lost endpoints
}

func newPart() *part { return &part{services: make(map[string]*wire.EncodedService)} }

func (p *part) Replace(services []*wire.EncodedService) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.whole = true
	p.services = make(map[string]*wire.EncodedService)
	for _, s := range services {
		p.services[s.Name()] = s
	}
}

func (p *part) Update(changed []*wire.EncodedService, gone []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.whole {
		panic("Update before Replace")
	}
	p.updates++
	for _, name := range gone {
		if p.services[name] != nil && !slices.ContainsFunc(changed, func(e *wire.EncodedService) bool { return e.Name() == name }) {
			p.lost = append(p.lost, name)
			delete(p.services, name)
		}
	}
	for _, s := range changed {
		if before := p.services[s.Name()]; before != nil && len(before.Service().Endpoints) > len(s.Service().Endpoints) {
			p.lost = append(p.lost, s.Name())
		}
		p.services[s.Name()] = s
	}
}

func (p *part) SetAway(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = reason
}

func (*part) SetPath(wire.OwnerPath) error { return nil }

func (p *part) SetRefused(rules map[string]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = maps.Clone(rules)
}

// shown returns the services with their endpoints.
func (p *part) shown() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.whole {
		return []string{"silent"}
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(p.services)) {
		line := strings.TrimPrefix(name, "registration/")
		for _, e := range p.services[name].Service().Endpoints {
			line += fmt.Sprintf(" %s:%d", e.Address, e.Port)
		}
		lines = append(lines, line)
	}
	return lines
}

// testOwner is a source that runs in a bubble.
type testOwner struct {
	t      testing.TB
	source *registration.Source
	part   *part
	log    *strings.Builder
	stop   func() // ends the source and waits
	open   []*provider
}

// newOwner runs a source until the test ends.
func newOwner(t testing.TB, config registration.Config) *testOwner {
	t.Helper()
	if config.Rules == nil {
		config.Rules = rulesOf(t, anyone)
	}
	if config.Owner == "" {
		config.Owner = "owner-1"
	}
	if config.Published == nil {
		config.Published = func(string) bool { return true }
	}
	config.Name, config.Convergence = "registration", cmp.Or(config.Convergence, 2*time.Minute)
	w := &testOwner{t: t, part: newPart(), log: &strings.Builder{}}
	config.Logger = slog.New(slog.NewTextHandler(w.log, nil))
	s := registration.New(config)
	w.source = s
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		s.Run(ctx, w.part)
		close(ended)
	}()
	w.stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(func() {
		for _, p := range w.open {
			p.breakStream()
		}
		w.stop()
	})
	return w
}

// expect fails unless exactly that is published once everything is quiet.
func (w *testOwner) expect(when string, want ...string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.part.shown(); !slices.Equal(got, want) {
		w.t.Errorf("%s: published is %q, expected %q", when, got, want)
	}
}

// provider is the other side of a stream that is not on any network.
type provider struct {
	grpc.ServerStream

	t     testing.TB
	ctx   context.Context //nolint:containedctx // of the stream, as gRPC has it
	in    chan *registrationv1.RegisterRequest
	out   chan *registrationv1.RegisterResponse
	eof   chan struct{}
	ended chan struct{} // closed when the handler has returned
	err   error         // of the handler, after ended
	end   context.CancelCauseFunc
}

func contextOf(id, address string) (context.Context, context.CancelFunc) {
	u, err := url.Parse(id)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return peer.NewContext(ctx, &peer.Peer{
		Addr:     &net.TCPAddr{IP: net.ParseIP(address), Port: 1234},
		AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{{URIs: []*url.URL{u}}}}},
	}), cancel
}

// dial opens a stream that takes room responses before it blocks. It sends nothing.
func (w *testOwner) dial(id string, room int) *provider {
	ctx, cancel := contextOf(id, "192.0.2.200")
	ctx, end := context.WithCancelCause(ctx)
	p := &provider{
		t: w.t, ctx: ctx, end: end, in: make(chan *registrationv1.RegisterRequest),
		out: make(chan *registrationv1.RegisterResponse, room), eof: make(chan struct{}), ended: make(chan struct{}),
	}
	w.open = append(w.open, p)
	go func() {
		p.err = w.source.Register(p)
		cancel() // as gRPC does
		close(p.ended)
	}()
	return p
}

// connect opens a stream with Open.
func (w *testOwner) connect(name string) *provider {
	w.t.Helper()
	p := w.begin(name)
	p.expect("Open 1")
	return p
}

// begin opens a stream with Open, and waits for nothing.
func (w *testOwner) begin(name string) *provider {
	p := w.dial("spiffe://acme.example/"+name, 10000)
	p.say(&registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Open{Open: &registrationv1.Open{Version: 1}}})
	return p
}

func (p *provider) Context() context.Context { return p.ctx }

func (p *provider) Recv() (*registrationv1.RegisterRequest, error) {
	select {
	case m := <-p.in:
		return m, nil
	case <-p.eof:
		return nil, io.EOF
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	}
}

func (p *provider) Send(m *registrationv1.RegisterResponse) error {
	select {
	case p.out <- proto.Clone(m).(*registrationv1.RegisterResponse):
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

// say sends a message, and reports whether it was read.
func (p *provider) say(m *registrationv1.RegisterRequest) bool {
	select {
	case p.in <- m:
		return true
	case <-p.ended:
		return false
	}
}

func (p *provider) active(service, node string, change ...func(*registrationv1.Active)) {
	a := &registrationv1.Active{Service: service, Node: node}
	for _, f := range change {
		f(a)
	}
	p.say(&registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Active{Active: a}})
}

func ttl(d time.Duration) func(*registrationv1.Active) {
	return func(a *registrationv1.Active) { a.Ttl = durationpb.New(d) }
}

func (p *provider) clear(service, node string) {
	p.say(&registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Clear{Clear: &registrationv1.Clear{Service: service, Node: node}}})
}

func (p *provider) close() {
	p.say(&registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Close{Close: &registrationv1.Close{Reason: registrationv1.Close_PARTING_FRIENDS}}})
}

// breakStream ends the stream as the end of the program does, or of the network.
func (p *provider) breakStream() {
	p.end(nil)
	<-p.ended
}

// told returns what the provider was told since it was asked last, once all is quiet.
func (p *provider) told() []string {
	synctest.Wait()
	return p.heard()
}

// heard returns what the provider was told since it was asked last.
func (p *provider) heard() (lines []string) {
	for {
		select {
		case m := <-p.out:
			lines = append(lines, textOf(m))
		default:
			return lines
		}
	}
}

func textOf(m *registrationv1.RegisterResponse) string {
	switch m := m.GetMessage().(type) {
	case *registrationv1.RegisterResponse_Open:
		return fmt.Sprintf("Open %d", m.Open.GetVersion())
	case *registrationv1.RegisterResponse_Granted:
		waits := map[bool]string{true: ", and waits"}[m.Granted.GetWaits()]
		return fmt.Sprintf("Granted %s %s %s %s%s", m.Granted.GetService(), m.Granted.GetNode(), m.Granted.GetTtl().AsDuration(), m.Granted.GetUri(), waits)
	case *registrationv1.RegisterResponse_Refused:
		return fmt.Sprintf("Refused %s %s %s", m.Refused.GetService(), m.Refused.GetNode(), m.Refused.GetRule())
	case *registrationv1.RegisterResponse_Expired:
		return fmt.Sprintf("Expired %s %s", m.Expired.GetService(), m.Expired.GetNode())
	case *registrationv1.RegisterResponse_Close:
		return strings.TrimSpace(fmt.Sprintf("Close %s %s", m.Close.GetReason(), m.Close.GetText()))
	}
	return "nothing"
}

func (p *provider) expect(want ...string) {
	p.t.Helper()
	if got := p.told(); !slices.Equal(got, want) {
		p.t.Errorf("the provider was told %q, expected %q", got, want)
	}
}

const (
	web   = "web.acme.example"
	one   = "https://192.0.2.1:8443"
	two   = "https://192.0.2.2:8443"
	three = "https://192.0.2.3:8443"
)

func granted(service, node string) string {
	return fmt.Sprintf("Granted %s %s 10s %s", service, node, node)
}
