// Package fleet is many providers in one process, for tests and benchmarks of
// registration: each has a connection and a stream of its own, and registers some of
// the nodes. It speaks the protocol itself, as a program in another language would, so
// that a thousand providers cost little beside the owner that is measured.
package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

const (
	version  = 1                      // of the protocol
	openings = 16                     // handshakes at one time
	again    = 500 * time.Millisecond // the most that a provider waits before it connects again
)

// Config is that of a fleet.
type Config struct {
	Addresses []string // of owners; the n-th provider begins with the n-th of them
	Files     mtls.Files
	OwnerID   string

	Zone     string        // the names of services end in it
	First    int           // number of the first node
	Nodes    int           // how many nodes there are, spread evenly over the streams
	Services int           // how many services these belong to; default: as many
	Streams  int           // how many providers there are; default: 1
	TTL      time.Duration // that is asked for; 0: none
}

// Stats is what a fleet has done.
type Stats struct {
	Connected int // streams on which the owner's Open has come
	Granted   int // nodes that are registered, as the owner said last
	Refused   int
	Expired   int
	Lost      int    // streams that have ended
	Last      string // why the last of them did, or what was refused last
}

// Fleet is many providers.
type Fleet struct {
	config Config
	begin  chan struct{}

	connected, granted, refused, expired, lost atomic.Int64
	last                                       atomic.Pointer[string]

	opening chan struct{} // bounds the handshakes at one time
}

// New returns a fleet.
func New(c Config) *Fleet {
	if c.Streams == 0 {
		c.Streams = 1
	}
	if c.Services == 0 {
		c.Services = c.Nodes
	}
	return &Fleet{config: c, begin: make(chan struct{}), opening: make(chan struct{}, openings)}
}

// Begin has the fleet register its nodes. Before it is called, once, providers only
// connect.
func (f *Fleet) Begin() { close(f.begin) }

// Stats returns what the fleet has done until now.
func (f *Fleet) Stats() Stats {
	s := Stats{
		Connected: int(f.connected.Load()), Granted: int(f.granted.Load()),
		Refused: int(f.refused.Load()), Expired: int(f.expired.Load()), Lost: int(f.lost.Load()),
	}
	if last := f.last.Load(); last != nil {
		s.Last = *last
	}
	return s
}

// Run keeps the nodes registered until ctx ends. It clears nothing then: streams
// break, as those of a process that is killed.
func (f *Fleet) Run(ctx context.Context) error {
	source, err := mtls.Load(f.config.Files, nil)
	if err != nil {
		return err
	}
	id, err := federation.ParseID(f.config.OwnerID)
	if err != nil {
		return err
	}
	identity := mtls.Consumer{Source: source, IDs: []federation.ID{id}}
	var running sync.WaitGroup
	for i := range f.config.Streams {
		p := &provider{fleet: f, identity: identity, number: i}
		for n := i; n < f.config.Nodes; n += f.config.Streams {
			p.nodes = append(p.nodes, &held{Active: f.config.active(f.config.First + n)})
		}
		running.Go(func() { p.run(ctx) })
	}
	running.Wait()
	return nil
}

// active returns the message that registers the n-th node.
func (c Config) active(n int) *registrationv1.Active {
	a := &registrationv1.Active{Service: c.Service(n), Node: "https://" + Address(n).String() + ":8443"}
	if c.TTL > 0 {
		a.Ttl = durationpb.New(c.TTL)
	}
	return a
}

// Service returns the fqdn of the service that the n-th node belongs to.
func (c Config) Service(n int) string { return fmt.Sprintf("svc-%06d.%s", n%c.Services, c.Zone) }

// Address returns the address of the n-th node, in 10.0.0.0/8.
func Address(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// held is a node of a provider.
type held struct {
	*registrationv1.Active

	granted bool // on the stream that is open
}

// provider is one of the fleet.
type provider struct {
	fleet    *Fleet
	identity mtls.Consumer
	number   int
	nodes    []*held
}

// run has one stream after the other until ctx ends.
func (p *provider) run(ctx context.Context) {
	for attempt := p.number; ctx.Err() == nil; attempt++ {
		addresses := p.fleet.config.Addresses
		err := p.session(ctx, addresses[attempt%len(addresses)])
		if ctx.Err() != nil {
			return
		}
		p.fleet.lost.Add(1)
		if err != nil {
			text := err.Error()
			p.fleet.last.Store(&text)
		}
		timer := time.NewTimer(rand.N(again))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// session is the life of one stream.
func (p *provider) session(ctx context.Context, address string) error {
	select {
	case p.fleet.opening <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	opened := sync.OnceFunc(func() { <-p.fleet.opening })
	defer opened()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(p.identity.Credentials(address)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: again, Multiplier: 1, MaxDelay: again}}),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := registrationv1.NewRegistrationServiceClient(conn).Register(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Open{
		Open: &registrationv1.Open{Version: version},
	}}); err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetOpen().GetVersion() != version {
		return fmt.Errorf("the owner began with %v", first)
	}
	opened()
	p.fleet.connected.Add(1)
	defer p.fleet.connected.Add(-1)

	ttls := make(chan time.Duration, 1) // the first ttl that was granted
	var sending sync.WaitGroup
	sending.Go(func() { p.send(ctx, stream, ttls) })
	defer sending.Wait()
	defer cancel()
	return p.receive(stream, ttls)
}

// send registers the nodes, and again after each half of the ttl.
func (p *provider) send(ctx context.Context, stream registrationv1.RegistrationService_RegisterClient, ttls <-chan time.Duration) {
	select {
	case <-p.fleet.begin:
	case <-ctx.Done():
		return
	}
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	var half time.Duration
	for {
		if half > 0 {
			due.Reset(half)
		}
		for _, n := range p.nodes {
			if stream.Send(&registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Active{Active: n.Active}}) != nil {
				return // receive has the reason
			}
		}
		if half == 0 {
			select {
			case ttl := <-ttls:
				half = ttl / 2
				due.Reset(rand.N(half)) // so that not all providers speak at one time from then on
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-due.C:
		case <-ctx.Done():
			return
		}
	}
}

// receive counts what the owner says, until the stream ends.
func (p *provider) receive(stream registrationv1.RegistrationService_RegisterClient, ttls chan<- time.Duration) error {
	byURI := make(map[string]*held, len(p.nodes))
	for _, n := range p.nodes {
		byURI[n.GetNode()] = n // the addresses of a fleet's nodes are different
		n.granted = false
	}
	defer func() {
		for _, n := range p.nodes {
			p.grant(n, false)
		}
	}()
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		switch m := response.GetMessage().(type) {
		case *registrationv1.RegisterResponse_Granted:
			p.grant(byURI[m.Granted.GetNode()], true)
			select {
			case ttls <- m.Granted.GetTtl().AsDuration():
			default:
			}
		case *registrationv1.RegisterResponse_Refused:
			p.fleet.refused.Add(1)
			text := fmt.Sprintf("%s: %s: %s", m.Refused.GetNode(), m.Refused.GetRule(), m.Refused.GetReason())
			p.fleet.last.Store(&text)
			p.grant(byURI[m.Refused.GetNode()], false)
		case *registrationv1.RegisterResponse_Expired:
			p.fleet.expired.Add(1)
			p.grant(byURI[m.Expired.GetNode()], false)
		case *registrationv1.RegisterResponse_Close:
			return fmt.Errorf("the owner closes: %v", m.Close)
		default:
			return fmt.Errorf("the owner said %v", response)
		}
	}
}

// grant notes whether a node is registered.
func (p *provider) grant(n *held, granted bool) {
	if n == nil || n.granted == granted {
		return
	}
	n.granted = granted
	if granted {
		p.fleet.granted.Add(1)
	} else {
		p.fleet.granted.Add(-1)
	}
}
