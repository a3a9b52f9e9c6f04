package consumer_test

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
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
)

// A program that follows an owner and prints what changes, until the first catalog
// is complete and one service of it is gone.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	files, address, published := exampleOwner(ctx)

	certificates, err := mtls.Load(files, slog.Default())
	if err != nil {
		fmt.Println("the certificates cannot be used:", err)
		return
	}
	var synced bool
	follower, err := consumer.New(consumer.Config{
		Subscription: consumer.Subscription{
			Addresses: []string{address},
			Identity:  mtls.Consumer{Source: certificates, ServerName: "owner.example"},
		},
		Publish: func(c consumer.Changes) {
			for i := range c.Services {
				switch change := &c.Services[i]; change.Kind() {
				case catalog.Gone:
					fmt.Println("gone:", change.Name)
					stop()
				case catalog.Offered:
					s := change.Packed.Unpack()
					fmt.Println("offered:", s.FQDN, "at", s.Endpoints[0].Address)
				}
			}
			if c.Status.State == catalog.Synced && !synced {
				synced = true
				fmt.Println("the catalog is complete:", c.Status.Services, "service")
				published.Delete("shop")
			}
		},
	})
	if err != nil {
		fmt.Println("there can be no such mirror:", err)
		return
	}
	if err := follower.Run(ctx); err != nil {
		fmt.Println("the mirror has failed:", err)
	}
	// Output:
	// offered: shop.fed.example. at 192.0.2.1
	// the catalog is complete: 1 service
	// gone: shop
}

// exampleOwner runs an owner with one service until ctx ends. It returns the files
// of a consumer, the owner's address and its registry.
func exampleOwner(ctx context.Context) (files mtls.Files, address string, published *registry.Registry) {
	dir := ensure(os.MkdirTemp("", "example"))
	context.AfterFunc(ctx, func() { os.RemoveAll(dir) })
	files = mtls.Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem")}
	authority := ensure(mtls.NewAuthority("example", 24*time.Hour))
	issued := ensure(authority.Issue(mtls.Leaf{Name: "both sides", DNSNames: []string{"owner.example"}}))
	if err := issued.WriteFiles(files); err != nil {
		panic(err)
	}
	published = registry.New()
	ensure(published.Upsert(&federation.Service{
		Name: "shop", FQDN: ensure(federation.ParseFQDN("shop.fed.example")),
		Endpoints: []federation.Endpoint{{Address: ensure(federation.ParseAddress("192.0.2.1")), Port: 443}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
	}))
	server := ensure(owner.New(owner.Config{
		Registry: published, Credentials: ensure(mtls.Load(files, nil)).Server(), Logger: slog.New(slog.DiscardHandler),
	}))
	listener := ensure(net.Listen("tcp", "127.0.0.1:0"))
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ctx, listener); err != nil {
			panic(err)
		}
	})
	return files, listener.Addr().String(), published
}

func ensure[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
