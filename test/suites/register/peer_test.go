package register

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// peer is a provider that a test speaks for itself.
type peer struct {
	stream    registrationv1.RegistrationService_RegisterClient
	responses chan *registrationv1.RegisterResponse // closed at the end of the stream
	ended     chan error                            // has how it ended, nil for OK
}

// dial connects to an owner, as one of the identities.
func (w *processes) dial(t testing.TB, o *owner, name string) registrationv1.RegistrationServiceClient {
	t.Helper()
	source := must.Get(mtls.Load(w.Files(name), nil))(t)
	id := must.Get(federation.ParseID(ownerID))(t)
	conn := must.Get(grpc.NewClient("passthrough:///"+o.address, grpc.WithTransportCredentials(source.Client("localhost", []federation.ID{id}))))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return registrationv1.NewRegistrationServiceClient(conn)
}

// provider opens a stream to an owner, as one of the identities. It sends
// nothing by itself, and not even Open.
func (w *processes) provider(t testing.TB, o *owner, name string) *peer {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream := must.Get(w.dial(t, o, name).Register(ctx))(t)
	p := &peer{stream: stream, responses: make(chan *registrationv1.RegisterResponse, 1024), ended: make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(p.responses)
		for {
			response, err := stream.Recv()
			if err != nil {
				if errors.Is(err, io.EOF) {
					err = nil
				}
				p.ended <- err
				return
			}
			p.responses <- response
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return p
}

// open is provider, with Open in both directions.
func (w *processes) open(t testing.TB, o *owner, name string) *peer {
	t.Helper()
	p := w.provider(t, o, name)
	p.send(t, &registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Open{Open: &registrationv1.Open{Version: 1}}})
	if first := p.next(t); first.GetOpen().GetVersion() != 1 {
		t.Fatalf("the owner began with %v", first)
	}
	return p
}

func (p *peer) send(t testing.TB, request *registrationv1.RegisterRequest) {
	t.Helper()
	must.Do(t, p.stream.Send(request))
}

// active sends Active for a node. A ttl of 0 is not sent.
func (p *peer) active(t testing.TB, service, node string, ttl time.Duration) {
	t.Helper()
	a := &registrationv1.Active{Service: service, Node: node}
	if ttl > 0 {
		a.Ttl = durationpb.New(ttl)
	}
	p.send(t, &registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Active{Active: a}})
}

// clear sends Clear for a node.
func (p *peer) clear(t testing.TB, service, node string) {
	t.Helper()
	p.send(t, &registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Clear{
		Clear: &registrationv1.Clear{Service: service, Node: node},
	}})
}

// next returns the next response.
func (p *peer) next(t testing.TB) *registrationv1.RegisterResponse {
	t.Helper()
	timer := time.NewTimer(await.Patience)
	defer timer.Stop()
	select {
	case response, ok := <-p.responses:
		if !ok {
			t.Fatalf("the stream has ended: %v", <-p.ended)
		}
		return response
	case <-timer.C:
		t.Fatal("the owner says nothing")
	}
	return nil
}

// grants waits for Granted of a node, as the next response.
func (p *peer) grants(t testing.TB, node string) {
	t.Helper()
	response := p.next(t)
	if response.GetGranted().GetNode() != node {
		t.Fatalf("the owner says %v, want Granted for %s", response, node)
	}
}

// node is the URI of an address with the port of every node here.
func node(address fmt.Stringer) string { return "https://" + address.String() + ":8443" }
