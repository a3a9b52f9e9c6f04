package relay

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// foreign is an owner as somebody else would write it who dials: it knows docs/protocol.md,
// crypto/tls and gRPC.
type foreign struct {
	rdpb.UnimplementedDiscoveryServiceServer

	t *testing.T
}

// EstablishStream implements rdpb.DiscoveryServiceServer: it tells one service.
func (f foreign) EstablishStream(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	resource, err := anypb.New(&typespb.FederatedService{
		Name: "web", Fqdn: "web." + zone,
		Endpoints: []*typespb.FederatedService_Endpoint{{Address: "192.0.2.7", Port: 80}},
		Instances: []*typespb.FederatedService_Instance{{Id: "v1", Protocol: "HTTP"}},
	})
	if err != nil {
		return err
	}
	err = stream.Send(&rdpb.BidirectionalStream{Response: &rdpb.StreamResponse{
		Nonce: "n", ResourceUrl: resource.GetTypeUrl(), ResourceId: "web", Resource: resource,
		Operation: rdpb.StreamResponse_UPSERT, Context: first.GetRequest().GetContext(),
	}})
	if err != nil {
		return err
	}
	ack, err := stream.Recv()
	if err == nil && ack.GetRequest().GetStatus().GetCode() != 0 {
		f.t.Errorf("the relay refuses the service: %v", ack)
	}
	<-stream.Context().Done()
	return nil
}

// once is a listener with one connection.
type once struct {
	conn chan net.Conn
	done <-chan struct{}
}

func (o once) Accept() (net.Conn, error) {
	select {
	case conn := <-o.conn:
		return conn, nil
	case <-o.done:
		return nil, net.ErrClosed
	}
}
func (once) Close() error   { return nil }
func (once) Addr() net.Addr { return &net.TCPAddr{} }

// TestForeignOwnerDials has a relay accept an owner of another kind.
func TestForeignOwnerDials(t *testing.T) {
	t.Parallel()
	p := newWorld(t)
	address := loopback.Address(t)
	outer := place.Owner{
		Address: address, TLS: p.Files("relay"), Allow: []string{coreDNSID},
		More: fmt.Sprintf("catalogs:\n- relay: {accept: [%q], settle: 1s}\n", ownerID),
	}
	relay := p.start(t, "relay", "federationctl", address, "serve", "--config", p.Put(t, "relay.yaml", outer.Config()))
	relay.gate = realserver.StartGate(t, address)
	behind := p.coreDNS(t, "behind", relay, relayID, zone, time.Hour)

	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(must.Get(os.ReadFile(p.Path("ca.pem")))(t))
	conn, err := tls.Dial("tcp", address, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"federation-reverse"},
		Certificates:       []tls.Certificate{must.Get(tls.LoadX509KeyPair(p.Path("owner.pem"), p.Path("owner-key.pem")))(t)},
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			leaf := state.PeerCertificates[0]
			if len(leaf.URIs) != 1 || leaf.URIs[0].String() != relayID {
				return fmt.Errorf("the relay is %v", leaf.URIs) //nolint:err113 // of this test
			}
			_, err := leaf.Verify(x509.VerifyOptions{Roots: authorities})
			return err
		},
	})
	must.Do(t, err)
	listener := once{make(chan net.Conn, 1), t.Context().Done()}
	listener.conn <- conn
	server := grpc.NewServer()
	rdpb.RegisterDiscoveryServiceServer(server, foreign{t: t})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { server.Stop(); <-served })
	behind.within(t, time.Minute, "web."+zone, "192.0.2.7")
}
