package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

const resourceURL = "type.googleapis.com/federation.types.v1alpha2.FederatedService"

// hostileOwner is an owner that calls behave for each of its streams.
type hostileOwner struct {
	rdpb.UnimplementedDiscoveryServiceServer

	behave  func(s *ownerStream) error
	address string
}

// serveOwner starts a hostile owner. It does not use package owner, which sends only
// what is valid.
func (a *arena) serveOwner(ctx context.Context, behave func(s *ownerStream) error) (*hostileOwner, error) {
	source, err := mtls.Load(a.owner, nil)
	if err != nil {
		return nil, err
	}
	o := &hostileOwner{behave: behave}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	o.address = listener.Addr().String()
	s := grpc.NewServer(grpc.Creds(source.Server()))
	rdpb.RegisterDiscoveryServiceServer(s, o)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(listener) })
	a.closers = append(a.closers, func() { s.Stop(); wg.Wait() })
	return o, nil
}

// EstablishStream implements rdpb.DiscoveryServiceServer.
func (o *hostileOwner) EstablishStream(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	return o.behave(&ownerStream{stream, first.GetRequest().GetContext(), 0})
}

// ownerStream is one stream of a hostile owner.
type ownerStream struct {
	rdpb.DiscoveryService_EstablishStreamServer

	session string // the consumer's context
	sent    int    // responses
}

// hang says nothing until the stream ends.
func (s *ownerStream) hang() error {
	<-s.Context().Done()
	return s.Context().Err()
}

// upsert announces a service and waits for the answer, which may be a refusal.
func (s *ownerStream) upsert(m *typespb.FederatedService) error {
	value, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	s.sent++
	response := &rdpb.StreamResponse{
		Nonce: strconv.Itoa(s.sent), ResourceUrl: resourceURL, ResourceId: m.GetName(), Context: s.session,
		Operation: rdpb.StreamResponse_UPSERT, Resource: &anypb.Any{TypeUrl: resourceURL, Value: value},
	}
	if err := s.Send(&rdpb.BidirectionalStream{Response: response}); err != nil {
		return err
	}
	_, err = s.Recv()
	return err
}

// simple returns a service that breaks no rule.
func simple(name, zone, address string) *typespb.FederatedService {
	return &typespb.FederatedService{
		Name: name, Fqdn: name + "." + zone,
		Endpoints: []*typespb.FederatedService_Endpoint{{Address: address, Port: 443}},
		Instances: []*typespb.FederatedService_Instance{{Id: "v1", Protocol: "HTTPS"}},
	}
}

// wide returns a service with many endpoints, each of which fill may change.
func wide(name, zone string, endpoints int, fill func(i int, e *typespb.FederatedService_Endpoint)) *typespb.FederatedService {
	m := simple(name, zone, "10.0.0.1")
	m.Endpoints = make([]*typespb.FederatedService_Endpoint, endpoints)
	for i := range m.Endpoints {
		m.Endpoints[i] = &typespb.FederatedService_Endpoint{Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250+1), Port: 443}
		if fill != nil {
			fill(i, m.Endpoints[i])
		}
	}
	return m
}

// oneOwner is a Corefile. Its argument is the addresses of the owner, and may be
// followed by lines with more properties.
const oneOwner = `
a.fed.example:PORT {
    bind 127.0.0.1
    federation {
        owner %s
        TLS
        settle 1s
    }
}
`

// twoOwners is a Corefile with a hostile owner and its neighbour, which have one identity.
// Its arguments are their addresses.
const twoOwners = `
fed.example:PORT {
    bind 127.0.0.1
    errors
    federation a.fed.example {
        name hostile
        owner %s
        TLS
        settle 1s
    }
    federation b.fed.example {
        name neighbour
        owner %s
        TLS
        settle 1s
    }
}
`

// neighbour is a healthy owner beside the hostile one. Its service
// beat.b.fed.example changes its address over and over, and the time until that is
// answered is measured.
type neighbour struct {
	*hostileOwner

	next chan string // addresses to announce

	mu      sync.Mutex      // guards the fields below
	delays  []time.Duration // from the change to the answer
	missing int             // changes that were not answered within a second
}

const beat = "beat.b.fed.example."

// serveNeighbour starts the neighbour.
func (a *arena) serveNeighbour(ctx context.Context) (*neighbour, error) {
	n := &neighbour{next: make(chan string)}
	var err error
	n.hostileOwner, err = a.serveOwner(ctx, func(s *ownerStream) error {
		address := "10.9.9.9"
		for {
			if err := s.upsert(simple("beat", "b.fed.example", address)); err != nil {
				return err
			}
			select {
			case address = <-n.next:
			case <-s.Context().Done():
				return s.Context().Err()
			}
		}
	})
	return n, err
}

// watch changes the neighbour's service, and measures, until ctx ends.
func (n *neighbour) watch(ctx context.Context, s *server) {
	for i := 0; ctx.Err() == nil; i++ {
		address := fmt.Sprintf("10.8.%d.%d", i/250%250, i%250+1)
		begun := time.Now()
		select {
		case n.next <- address:
		case <-ctx.Done():
			return
		}
		_, err := until(ctx, time.Second, func() bool { return s.says(beat, address) })
		if ctx.Err() != nil {
			return
		}
		n.mu.Lock()
		n.delays = append(n.delays, time.Since(begun))
		if err != nil {
			n.missing++
		}
		n.mu.Unlock()
		pause(ctx, 20*time.Millisecond)
	}
}

// beside runs CoreDNS with a hostile owner and its neighbour until done reports that
// the attack is over, and measures what the neighbour notices. An attack that is not
// over within the bound has failed: its other results would mean nothing.
func beside(ctx context.Context, a *arena, bound time.Duration, behave func(s *ownerStream) error, done func() bool) (damage, error) {
	hostile, err := a.serveOwner(ctx, behave)
	if err != nil {
		return damage{}, err
	}
	good, err := a.serveNeighbour(ctx)
	if err != nil {
		return damage{}, err
	}
	s, err := a.serveDNS(ctx, fmt.Sprintf(twoOwners, hostile.address, good.address))
	if err != nil {
		return damage{}, err
	}
	d := damage{victim: s.process}
	if _, err := until(ctx, time.Minute, func() bool { return s.says(beat, "10.9.9.9") }); err != nil {
		return d, fmt.Errorf("the neighbour is not served: %w", err)
	}
	watched, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { good.watch(watched, s) })
	took, err := until(ctx, bound, func() bool { return !s.running() || done() })
	stop()
	watch.Wait()
	d.effect = fmt.Sprintf("neighbour's update answered after %.1f ms, 99th percentile %.1f ms",
		milliseconds(percentile(good.delays, 50)), milliseconds(percentile(good.delays, 99)))
	if good.missing > 0 {
		d.effect += fmt.Sprintf(", %d of %d not within a second", good.missing, len(good.delays))
	}
	d.require(s.running(), "CoreDNS has ended")
	d.require(good.missing <= len(good.delays)/100, "updates of the neighbour are late")
	d.require(len(good.delays) > 0, "no update of the neighbour was answered")
	if err != nil {
		d.require(false, fmt.Sprintf("the attack was not over after %.0f s", took.Seconds()))
	}
	return d, nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// sendAll returns a behaviour that announces n services and then hangs. done counts
// the services that were sent and answered.
func sendAll(n int, done *atomic.Int64, nth func(i int) *typespb.FederatedService) func(s *ownerStream) error {
	return func(s *ownerStream) error {
		for i := range n {
			if err := s.upsert(nth(i)); err != nil {
				return err
			}
			done.Add(1)
		}
		return s.hang()
	}
}

// heavy is an attack on memory: the owner sends services of an expensive shape. The
// bound is in MiB.
func heavy(services int, bound float64, nth func(i int) *typespb.FederatedService) func(context.Context, *arena) (damage, error) {
	return func(ctx context.Context, a *arena) (damage, error) {
		var sent atomic.Int64
		d, err := beside(ctx, a, 2*time.Minute, sendAll(services, &sent, nth),
			func() bool { return sent.Load() >= int64(services) })
		if err == nil {
			d.victim.measure()
			d.effect = fmt.Sprintf("%d services sent; %s", sent.Load(), d.effect)
			d.limit("memory in MiB", float64(d.victim.peak.Load()), bound)
		}
		return d, err
	}
}

var ownerAttacks = []attack{
	{"64 empty labels on 1,000 endpoints of 3,000 services", heavy(3000, 1500, func(i int) *typespb.FederatedService {
		labels := make([]string, 64)
		return wide(fmt.Sprintf("s%d", i), "a.fed.example", 1000, func(_ int, e *typespb.FederatedService_Endpoint) { e.Labels = labels })
	})},
	{"1,000 instances that each select half of 1,000 endpoints, 400 services", heavy(400, 1500, func(i int) *typespb.FederatedService {
		m := wide(fmt.Sprintf("s%d", i), "a.fed.example", 1000, func(i int, e *typespb.FederatedService_Endpoint) {
			e.Labels = []string{strconv.Itoa(i % 2), strconv.Itoa(i % 4 / 2)}
		})
		m.Instances = make([]*typespb.FederatedService_Instance, 1000)
		for j := range m.Instances {
			m.Instances[j] = &typespb.FederatedService_Instance{Id: strconv.Itoa(j), Protocol: "TCP", EndpointSelector: []string{strconv.Itoa(j % 2)}}
		}
		return m
	})},
	{"3,000 services of 1,000 endpoints, all refused", heavy(3000, 1000, func(i int) *typespb.FederatedService {
		return wide(fmt.Sprintf("s%d", i), "elsewhere.example", 1000, nil)
	})},
	{"updates of a service with 1,000 endpoints and instances without end", expensiveOwner},
	{"hosts behind a forwarder that is dead", deadHosts},
	{"queries for the largest service", largestAnswers},
}

// expensiveOwner changes services that take long to compile, without a pause.
func expensiveOwner(ctx context.Context, a *arena) (damage, error) {
	begun := time.Now()
	var sent atomic.Int64
	d, err := beside(ctx, a, time.Minute, func(s *ownerStream) error {
		for i := 0; ; i++ {
			if err := s.upsert(expensive(fmt.Sprintf("s%d", i%10), i)); err != nil {
				return err
			}
			sent.Add(1)
		}
	}, func() bool { return time.Since(begun) > 20*time.Second })
	d.require(err != nil || sent.Load() > 10, "the owner got no service changed")
	return d, err
}

// expensive returns the largest service that the limits allow, with its version as
// description.
func expensive(name string, version int) *typespb.FederatedService {
	m := wide(name, "a.fed.example", 1000, func(i int, e *typespb.FederatedService_Endpoint) {
		for j := range 8 {
			e.Labels = append(e.Labels, fmt.Sprintf("label-%d", (i+j)%64))
		}
	})
	m.Description = strconv.Itoa(version)
	m.Instances = make([]*typespb.FederatedService_Instance, 1000)
	for j := range m.Instances {
		in := &typespb.FederatedService_Instance{Id: fmt.Sprintf("i%d", j), Protocol: "TCP", Metadata: map[string]string{}}
		for k := range 64 {
			in.EndpointSelector = append(in.EndpointSelector, fmt.Sprintf("label-%d", (j+k)%64))
			in.Metadata[fmt.Sprintf("Key-%d", (j*k)%997)] = "value"
		}
		m.Instances[j] = in
	}
	return m
}

// deadHosts has endpoints with hosts in a zone whose forwarder does not reply. The
// host of the other owner is answered at once.
func deadHosts(ctx context.Context, a *arena) (damage, error) {
	dead, err := new(net.ListenConfig).ListenPacket(ctx, "udp", "127.0.0.1:0")
	if err != nil {
		return damage{}, err
	}
	defer dead.Close()
	var sent, other atomic.Int64
	// A service has as many hosts as one query waits for.
	hostile, err := a.serveOwner(ctx, sendAll(500, &sent, func(i int) *typespb.FederatedService {
		return wide(fmt.Sprintf("s%d", i), "a.fed.example", 64, func(j int, e *typespb.FederatedService_Endpoint) {
			e.Address = fmt.Sprintf("h%d-%d.dead.example", i, j)
		})
	}))
	if err != nil {
		return damage{}, err
	}
	good, err := a.serveOwner(ctx, sendAll(1, &other, func(int) *typespb.FederatedService {
		return simple("web", "b.fed.example", "gw.alive.example")
	}))
	if err != nil {
		return damage{}, err
	}
	s, err := a.serveDNS(ctx, fmt.Sprintf(twoOwners, hostile.address, good.address)+fmt.Sprintf(`
.:PORT {
    bind 127.0.0.1
    errors
    forward dead.example %s
    template IN A alive.example {
        answer "{{ .Name }} 1 IN A 10.7.7.7"
    }
}
`, dead.LocalAddr()))
	if err != nil {
		return damage{}, err
	}
	d := damage{victim: s.process}
	if _, err := until(ctx, time.Minute, func() bool { return sent.Load() == 500 && s.says("web.b.fed.example.", "10.7.7.7") }); err != nil {
		return d, fmt.Errorf("the owners are not served: %w", err)
	}
	load, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	var flood sync.WaitGroup
	for i := range 40 { // each client waits for its answer; together they send some 10 to 20 queries a second
		flood.Go(func() {
			for n := i; load.Err() == nil; n += 40 {
				s.ask(fmt.Sprintf("s%d.a.fed.example.", n%500), dns.TypeA)
			}
		})
	}
	codes := s.survey(load, "web.b.fed.example.", 50*time.Millisecond)
	flood.Wait()
	total := 0
	for _, n := range codes {
		total += n
	}
	bad := float64(total-codes["NOERROR"]) / float64(max(total, 1))
	d.victim.measure()
	d.effect = fmt.Sprintf("neighbour's host: %.1f %% of %d queries without an answer", 100*bad, total)
	d.limit("share of the neighbour's queries without an answer", bad, 0.01)
	d.limit("log lines", float64(d.victim.lines), 1000)
	d.require(total > 0, "the neighbour was not asked")
	return d, nil
}

// largestAnswers compares the rates of queries for the largest service with that of
// a small one, over UDP.
func largestAnswers(ctx context.Context, a *arena) (damage, error) {
	var sent atomic.Int64
	o, err := a.serveOwner(ctx, sendAll(2, &sent, func(i int) *typespb.FederatedService {
		if i == 0 {
			return simple("small", "a.fed.example", "10.1.1.1")
		}
		return expensive("large", 0)
	}))
	if err != nil {
		return damage{}, err
	}
	s, err := a.serveDNS(ctx, fmt.Sprintf(oneOwner, o.address))
	if err != nil {
		return damage{}, err
	}
	d := damage{victim: s.process}
	if _, err := until(ctx, time.Minute, func() bool {
		m := s.ask("large.a.fed.example.", dns.TypeA)
		return m != nil && (len(m.Answer) > 0 || m.Truncated)
	}); err != nil {
		return d, fmt.Errorf("the service is not served: %w", err)
	}
	const each = 3 * time.Second
	small := s.rate(ctx, "small.a.fed.example.", dns.TypeA, each)
	d.require(small > 0, "no query for the small service was answered")
	rates := []string{fmt.Sprintf("small A %.0f/s", small)}
	for _, q := range []struct {
		what, name string
		qtype      uint16
	}{
		{"A", "large", dns.TypeA},
		{"SRV", "large", dns.TypeSRV},
		{"TXT", "large", dns.TypeTXT},
		{"ANY", "large", dns.TypeANY},
		{"TXT of an instance", "i7.large", dns.TypeTXT},
		{"NXDOMAIN", "none.large", dns.TypeA},
	} {
		rate := s.rate(ctx, q.name+".a.fed.example.", q.qtype, each)
		rates = append(rates, fmt.Sprintf("%s %.0f/s", q.what, rate))
		d.require(rate >= small/10, fmt.Sprintf("%s of the largest service costs more than ten queries for a small one", q.what))
	}
	d.effect = strings.Join(rates, ", ")
	return d, nil
}
