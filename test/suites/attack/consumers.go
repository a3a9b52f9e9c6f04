package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
)

// publisher is federationctl serve under attack.
type publisher struct {
	*process
	address string
	catalog string
	arena   *arena
}

// publish starts an owner with a catalog of n services. setup is shell commands that
// run before it, as for start.
func (a *arena) publish(ctx context.Context, setup string, n int) (*publisher, error) {
	catalog, err := a.write("catalog.yaml", catalogOf(n))
	if err != nil {
		return nil, err
	}
	address, err := loopback.FreeAddress()
	if err != nil {
		return nil, err
	}
	p, err := a.start(ctx, setup, "federationctl", "serve", "--listen", address, "--catalog", catalog,
		"--cert", a.owner.Cert, "--key", a.owner.Key, "--ca", a.owner.CA, "--allow-any", "--window", "256")
	if err != nil {
		return nil, err
	}
	o := &publisher{p, address, catalog, a}
	_, err = until(ctx, time.Minute, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil || !p.running()
	})
	if err == nil && !p.running() {
		err = fmt.Errorf("the owner has ended")
	}
	return o, err
}

// catalogOf returns a catalog file with n services.
func catalogOf(n int) string {
	var b strings.Builder
	b.WriteString("services:\n")
	for i := range n {
		fmt.Fprintf(&b, "- name: s%d\n  fqdn: s%d.fed.example\n  endpoints:\n  - {address: 192.0.2.1, port: 443}\n  instances:\n  - {id: v1, protocol: HTTPS}\n", i, i)
	}
	if n == 0 {
		return "services: []\n"
	}
	return b.String()
}

// dial connects to the owner with a certificate that it accepts.
func (o *publisher) dial() (*grpc.ClientConn, error) {
	source, err := mtls.Load(o.arena.consumer, nil)
	if err != nil {
		return nil, err
	}
	// Idle connections come from another address, and one address gets only a share.
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	return grpc.NewClient("passthrough:///"+o.address, grpc.WithTransportCredentials(source.Client("localhost", nil)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
}

// subscribe opens a stream and sends the first request.
func subscribe(ctx context.Context, conn *grpc.ClientConn) (rdpb.DiscoveryService_EstablishStreamClient, error) {
	stream, err := rdpb.NewDiscoveryServiceClient(conn).EstablishStream(ctx)
	if err == nil {
		err = stream.Send(&rdpb.BidirectionalStream{Request: &rdpb.StreamRequest{ResourceUrl: resourceURL}})
	}
	if errors.Is(err, io.EOF) {
		err = nil // the stream has ended already: Recv says why
	}
	return stream, err
}

// served returns how long a well-behaved consumer takes to get its first service. It
// tries again until the bound.
func (o *publisher) served(ctx context.Context, bound time.Duration) (time.Duration, error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for {
		err := func() error {
			conn, err := o.dial()
			if err != nil {
				return err
			}
			defer conn.Close()
			once, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			stream, err := subscribe(once, conn)
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		}()
		if err == nil || ctx.Err() != nil {
			return time.Since(begun), err
		}
		pause(ctx, 100*time.Millisecond)
	}
}

var consumerAttacks = []attack{
	{"300 idle connections at 128 file descriptors", idleConnections},
}

// idleConnections keeps as many connections as the owner accepts, and sends nothing
// on them.
func idleConnections(ctx context.Context, a *arena) (damage, error) {
	o, err := a.publish(ctx, "ulimit -n 128;", 1)
	if err != nil {
		return damage{}, err
	}
	d := damage{victim: o.process}
	defer idle(ctx, o.address, 300)()
	pause(ctx, 3*time.Second)
	took, err := o.served(ctx, 30*time.Second)
	consumer := fmt.Sprintf("a consumer is served after %.1f s", took.Seconds())
	if err != nil {
		consumer = "no consumer is served within 30 s"
	}
	d.limit("seconds until a consumer is served", took.Seconds(), 20)
	before := o.count("catalog applied")
	if _, err := a.write("catalog.yaml", catalogOf(2)); err != nil {
		return d, err
	}
	took, err = until(ctx, 30*time.Second, func() bool { return o.count("catalog applied") > before })
	reload := fmt.Sprintf("a change of the file is read after %.1f s", took.Seconds())
	if err != nil {
		reload = "no change of the file is read within 30 s"
	}
	d.limit("seconds until a file is read", took.Seconds(), 15)
	d.effect = consumer + ", " + reload
	return d, nil
}

// idle keeps n connections to an address on which it sends nothing, until the returned
// function is called. After a connection that was closed comes another.
func idle(ctx context.Context, address string, n int) func() {
	load, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for load.Err() == nil {
				conn, err := new(net.Dialer).DialContext(load, "tcp", address)
				if err != nil {
					pause(load, 100*time.Millisecond)
					continue
				}
				end := context.AfterFunc(load, func() { _ = conn.Close() })
				_, _ = conn.Read(make([]byte, 1))
				end()
				_ = conn.Close()
				pause(load, 10*time.Millisecond)
			}
		})
	}
	return func() { stop(); all.Wait() }
}
