package duplex_test

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
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/stream"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
)

// Two domains exchange their catalogs on one stream: berlin listens, and paris dials. Each
// has an owner.Server for what it publishes, and a mirror for what it gets.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	authority := ensure(mtls.NewAuthority("example", 24*time.Hour))
	berlin, paris := certificate(authority, "berlin.example"), certificate(authority, "paris.example")

	// Berlin subscribes on the streams that paris opens.
	acceptor := stream.NewAcceptor()
	listening := ensure(owner.New(owner.Config{
		Registry: publishes("shop.berlin.example"), Credentials: berlin.Server(), Logger: slog.New(slog.DiscardHandler),
		Consume: func(ids []federation.ID) owner.Subscriber {
			if ids[0].String() != "paris.example" {
				return nil // a consumer like any other
			}
			return acceptor
		},
	}))
	inBerlin, ofParis := follow("paris", consumer.Subscription{Accept: acceptor})

	// Paris publishes on the stream that it opens. It does not listen, so its server has
	// no Serve.
	publishing := ensure(owner.New(owner.Config{
		Registry: publishes("bank.paris.example"), Credentials: paris.Server(), Logger: slog.New(slog.DiscardHandler),
	}))
	listener := ensure(net.Listen("tcp", "127.0.0.1:0"))
	inParis, ofBerlin := follow("berlin", consumer.Subscription{
		Addresses: []string{listener.Addr().String()},
		Identity:  mtls.Consumer{Source: paris, ServerName: "berlin.example"},
		Publisher: publishing,
	})

	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{
		func(ctx context.Context) error { return listening.Serve(ctx, listener) }, inBerlin.Run, inParis.Run,
	} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				panic(err)
			}
		})
	}
	fmt.Println("berlin has", <-ofParis)
	fmt.Println("paris has", <-ofBerlin)
	stop()
	running.Wait()
	// Output:
	// berlin has bank.paris.example.
	// paris has shop.berlin.example.
}

// follow returns a mirror, and what its catalog has once that is complete.
func follow(name string, subscription consumer.Subscription) (m *consumer.Mirror, complete <-chan string) {
	services, told := make(chan string, 1), false
	var fqdn string
	return ensure(consumer.New(consumer.Config{
		Name: name, Subscription: subscription, Rules: catalog.Rules{Settle: 5 * time.Second, Retention: time.Hour},
		Publish: func(c consumer.Changes) {
			for _, change := range c.Services {
				if change.Op() != catalog.Gone {
					fqdn = change.Service().FQDN.String()
				}
			}
			if c.Status.State == catalog.Synced && !told {
				told = true
				services <- fqdn
			}
		},
	})), services
}

// publishes returns a registry with one service.
func publishes(fqdn string) *registry.Registry {
	registry := registry.New()
	ensure(registry.Upsert(&federation.Service{
		Name: fqdn, FQDN: ensure(federation.ParseFQDN(fqdn)),
		Endpoints: []federation.Endpoint{{Address: ensure(federation.ParseAddress("192.0.2.1")), Port: 443}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
	}))
	return registry
}

// certificate returns the certificate of a domain.
func certificate(authority *mtls.Authority, name string) *mtls.Source {
	dir := ensure(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)
	files := mtls.Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem")}
	issued := ensure(authority.Issue(mtls.Leaf{Name: name, DNSNames: []string{name}}))
	if err := issued.WriteFiles(files); err != nil {
		panic(err)
	}
	return ensure(mtls.Load(files, nil))
}

// ensure returns v; an example does not fail.
func ensure[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
