package owner_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// A registry without a server: a subscriber gets the catalog first, and then each
// service that has changed once, in its latest version.
func ExampleRegistry() {
	at := func(address string) *federation.Service {
		return ensure(shop{city: "berlin", address: address, port: 443}.service())
	}
	registry := owner.NewRegistry()
	ensure(registry.Set([]*federation.Service{at("192.0.2.1")}))
	// A service that is not valid is an error, and changes nothing.
	if _, err := registry.Upsert(&federation.Service{Name: "shop-berlin"}); err != nil {
		fmt.Println(err)
	}

	subscription := registry.Subscribe()
	defer subscription.Close()
	next := func() {
		switch event := ensure(subscription.Next(context.Background())); event.Operation {
		case federation.Upsert:
			fmt.Println(event.Name, "is at", event.Service.Endpoints[0].Address)
		case federation.Delete:
			fmt.Println(event.Name, "is gone")
		case federation.End:
			fmt.Println("the catalog is complete")
		}
	}
	next()
	next()
	for i := range 100 {
		ensure(registry.Upsert(at(fmt.Sprintf("192.0.2.%d", 100+i))))
	}
	next()
	registry.Delete("shop-berlin")
	next()
	// Output:
	// service "shop-berlin": fqdn: required
	// shop-berlin is at 192.0.2.1
	// the catalog is complete
	// shop-berlin is at 192.0.2.199
	// shop-berlin is gone
}

// ensure returns v, and panics when there is an error: that is for the throwaway
// parts of an example.
func ensure[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// demonstration returns a listener and credentials for an owner, and a context that
// ends when a consumer has printed the catalog of the owner. The caller calls wait
// when the owner has ended.
func demonstration() (ctx context.Context, listener net.Listener, server credentials.TransportCredentials, wait func()) {
	authority := ensure(mtls.NewAuthority("example", 24*time.Hour))
	ownerID, consumerID := ensure(federation.ParseID("spiffe://owner.example/owner")), ensure(federation.ParseID("spiffe://consumer.example/dns"))
	client := certificates(authority, consumerID).Client("owner.example", []federation.ID{ownerID})
	listener = ensure(net.Listen("tcp", "127.0.0.1:0"))
	ctx, stop := context.WithCancel(context.Background())
	var consumer sync.WaitGroup
	consumer.Go(func() {
		defer stop()
		printCatalog(ctx, listener.Addr().String(), client)
	})
	return ctx, listener, certificates(authority, ownerID).Server(), func() {
		listener.Close() // an owner that failed has not
		stop()
		consumer.Wait()
	}
}

// printCatalog prints the catalog of an owner, until it is complete or the stream
// ends.
func printCatalog(ctx context.Context, address string, client credentials.TransportCredentials) {
	conn := ensure(grpc.NewClient(address, grpc.WithTransportCredentials(client)))
	defer conn.Close()
	stream, err := rdpb.NewDiscoveryServiceClient(conn).EstablishStream(ctx)
	if err != nil {
		return
	}
	send := func(request *rdpb.StreamRequest) error {
		return stream.Send(&rdpb.BidirectionalStream{Request: request})
	}
	for err = send(wire.Subscribe("")); err == nil; {
		var m *rdpb.BidirectionalStream
		if m, err = stream.Recv(); err != nil {
			return
		}
		event := ensure(wire.Decode(m.GetResponse(), wire.Policy{}))
		if event.Operation == federation.Alive { // this owner marks the end of its catalog so
			fmt.Println("the catalog is complete")
			return
		}
		fmt.Println(event.Operation, event.Name, "at", event.Service.FQDN)
		err = send(wire.Ack(m.GetResponse().GetNonce(), ""))
	}
}

// certificates returns those of a party with that identity.
func certificates(authority *mtls.Authority, id federation.ID) *mtls.Source {
	dir := ensure(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)
	files := mtls.Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem")}
	issued := ensure(authority.Issue(mtls.Leaf{Name: "example", URIs: []string{id.String()}}))
	if err := issued.WriteFiles(files); err != nil {
		panic(err)
	}
	return ensure(mtls.Load(files, nil))
}
