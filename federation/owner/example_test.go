package owner_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
)

// shop is a row of this program's own data.
type shop struct {
	city, address string
	port          uint16
}

// service returns what consumers get to know of the shop. It need not be valid.
func (s shop) service() (*federation.Service, error) {
	fqdn, err := federation.ParseFQDN(s.city + ".shops.fed.example")
	if err != nil {
		return nil, fmt.Errorf("shop %q: %w", s.city, err)
	}
	address, err := federation.ParseAddress(s.address)
	if err != nil {
		return nil, fmt.Errorf("shop %q: %w", s.city, err)
	}
	return &federation.Service{
		Name:      "shop-" + s.city,
		FQDN:      fqdn,
		Endpoints: []federation.Endpoint{{Address: address, Port: s.port}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
	}, nil
}

// publish serves the shops to every consumer that the credentials accept, until ctx ends. To publish changes, call Set
// again, or Put and Withdraw.
func publish(ctx context.Context, listener net.Listener, credentials credentials.TransportCredentials, shops []shop) error {
	var services []*federation.Service
	for _, s := range shops {
		service, err := s.service()
		if err != nil {
			return err
		}
		services = append(services, service)
	}
	catalog := owner.NewCatalog()
	if err := catalog.Set(services); err != nil {
		return err // names each service that is not valid, with the reason
	}
	server, err := owner.New(owner.Config{Catalog: catalog, Credentials: credentials})
	if err != nil {
		return err
	}
	return server.Serve(ctx, listener) // which returns nil when ctx ends
}

// A program publishes from its own data, and handles every error. In a real one the credentials are those of mtls.Load,
// for the files of its certificate; here they and a consumer, which prints what it gets, are throwaway ones.
func Example() {
	with := func(shops ...shop) {
		ctx, listener, credentials, wait := demonstration()
		defer wait()
		if err := publish(ctx, listener, credentials, shops); err != nil {
			fmt.Println(err)
		}
	}
	with(shop{"berlin", "192.0.2.1", 443}, shop{"paris", "192.0.2.2", 8443})
	with(shop{"berlin", "192.0.2.1", 443}, shop{"oslo", "192.0.2.3", 0})
	with(shop{"rome", "192.0.2.256", 443})
	// Output:
	// shop-berlin at berlin.shops.fed.example.
	// shop-paris at paris.shops.fed.example.
	// the catalog is complete
	// service "shop-oslo": endpoints[0].port: 0 is not in 1 to 65535
	// shop "rome": address is neither an IP address nor a host name: last label is a number, so the name looks like an address
}

// A catalog says that it is not complete while the program still reads it, and so a consumer that had more keeps that
// meanwhile. Who may subscribe can change at any time.
func ExampleServer() {
	ctx, listener, credentials, wait := demonstration()
	defer wait()
	catalog := owner.NewCatalog()
	catalog.SetComplete(false)
	server := ensure(owner.New(owner.Config{Catalog: catalog, Credentials: credentials, Allow: []federation.ID{
		ensure(federation.ParseID("spiffe://another.example/dns")),
	}}))
	server.SetAllow([]federation.ID{ensure(federation.ParseID("spiffe://consumer.example/dns"))})
	go func() {
		for _, s := range []shop{{"berlin", "192.0.2.1", 443}, {"paris", "192.0.2.2", 8443}} {
			if err := catalog.Put(ensure(s.service())); err != nil {
				fmt.Println(err)
			}
		}
		catalog.SetComplete(true)
	}()
	if err := server.Serve(ctx, listener); err != nil {
		fmt.Println(err)
	}
	stats := server.Stats()
	fmt.Println(stats.Consumers, "consumers,", stats.Refused["fqdn"], "refusals")
	// Output:
	// shop-berlin at berlin.shops.fed.example.
	// shop-paris at paris.shops.fed.example.
	// the catalog is complete
	// 0 consumers, 0 refusals
}

// demonstration returns a listener and credentials for an owner, and a context that ends when a consumer has printed the
// catalog of the owner. The caller calls wait when the owner has ended.
func demonstration() (ctx context.Context, listener net.Listener, server credentials.TransportCredentials, wait func()) {
	authority := ensure(mtls.NewAuthority("example", 24*time.Hour))
	ownerID, consumerID := ensure(federation.ParseID("spiffe://owner.example/owner")), ensure(federation.ParseID("spiffe://consumer.example/dns"))
	identity := mtls.Consumer{Source: certificates(authority, consumerID), IDs: []federation.ID{ownerID}}
	listener = ensure(net.Listen("tcp", "127.0.0.1:0"))
	ctx, stop := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() {
		_ = consumer.Follow(ctx, listener.Addr().String(), identity, func(e consumer.Event) {
			for _, change := range e.Changes {
				fmt.Println(change.Name, "at", change.Service.FQDN)
			}
			if e.Status.State == consumer.Synced && ctx.Err() == nil {
				fmt.Println("the catalog is complete")
				stop()
			}
		})
	})
	return ctx, listener, certificates(authority, ownerID).Server(), func() {
		listener.Close() // an owner that failed has not
		stop()
		following.Wait()
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

// ensure returns v, and panics when there is an error: that is for the throwaway parts of an example.
func ensure[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
