package owner_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
)

// must returns v; an example does not fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// shop is a service at the address.
func shop(address string) *federation.Service {
	return &federation.Service{
		Name:      "shop",
		FQDN:      must(federation.ParseFQDN("shop.fed.example")),
		Endpoints: []federation.Endpoint{{Address: must(federation.ParseAddress(address)), Port: 443}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
	}
}

// A registry without a server: who subscribes hears of the catalog, and then of
// what has changed since the last look, in its last state.
func ExampleRegistry() {
	registry := owner.NewRegistry()
	must(registry.Set([]*federation.Service{shop("192.0.2.1")}))
	// What no consumer could take is refused here, and changes nothing.
	if _, err := registry.Upsert(&federation.Service{Name: "shop"}); err != nil {
		fmt.Println(err)
	}

	subscription := registry.Subscribe()
	defer subscription.Close()
	hear := func() {
		switch event := must(subscription.Next(context.Background())); event.Operation {
		case federation.Upsert:
			fmt.Println(event.Name, "is at", event.Service.Endpoints[0].Address)
		case federation.Delete:
			fmt.Println(event.Name, "is gone")
		case federation.End:
			fmt.Println("the catalog is complete")
		}
	}
	hear()
	hear()
	for i := range 100 {
		must(registry.Upsert(shop(fmt.Sprintf("192.0.2.%d", 100+i))))
	}
	hear()
	registry.Delete("shop")
	hear()
	// Output:
	// service "shop": fqdn: required
	// shop is at 192.0.2.1
	// the catalog is complete
	// shop is at 192.0.2.199
	// shop is gone
}

// An owner and one of its consumers, with certificates of a throwaway authority.
func Example() {
	authority := must(mtls.NewAuthority("example", 24*time.Hour))
	ownerID, consumerID := must(mtls.ParseID("spiffe://owner.example/owner")), must(mtls.ParseID("spiffe://consumer.example/dns"))

	registry := owner.NewRegistry()
	must(registry.Upsert(shop("192.0.2.1")))
	server := must(owner.New(owner.Config{
		Registry:    registry,
		Credentials: certificates(authority, ownerID).Server(),
		Allow:       []mtls.ID{consumerID},
		Logger:      slog.New(slog.DiscardHandler),
	}))
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Serve(ctx, listener); err != nil {
			fmt.Println("the owner has failed:", err)
		}
	})

	own := certificates(authority, consumerID)
	subscriber := must(consumer.New(consumer.Config{
		Addresses: []string{listener.Addr().String()},
		Identity:  mtls.Consumer{Source: own, IDs: []mtls.ID{ownerID}},
		Sink:      listing{complete: func() { registry.Delete("shop") }, empty: stop},
	}))
	running.Go(func() { _ = subscriber.Run(ctx) }) // it returns nil when ctx ends
	running.Wait()
	// Output:
	// upsert shop
	// the catalog is complete
	// delete shop
}

// certificates returns those of a party with that identity.
func certificates(authority *mtls.Authority, id mtls.ID) *mtls.Source {
	dir := must(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)
	files := mtls.Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem")}
	issued := must(authority.Issue(mtls.Leaf{Name: "example", URIs: []string{id.String()}}))
	if err := issued.WriteFiles(files); err != nil {
		panic(err)
	}
	return must(mtls.Load(files, nil))
}

// listing is a consumer.Sink that prints what it hears.
type listing struct{ complete, empty func() }

func (listing) Opened(context.Context) error { return nil }

func (listing) Marked(context.Context) error { return nil }

func (l listing) Apply(_ context.Context, updates []consumer.Update) ([]*federation.InvalidError, error) {
	for _, u := range updates {
		switch u.Operation {
		case federation.End:
			fmt.Println("the catalog is complete")
			l.complete()
		case federation.Delete:
			fmt.Println("delete", u.Name)
			l.empty()
		default:
			fmt.Println(u.Operation, u.Name)
		}
	}
	return nil, nil
}

func (listing) Answered(context.Context) {}

func (listing) Lost(_ context.Context, err error, _ bool) { fmt.Println("lost:", err) }
