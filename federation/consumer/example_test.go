package consumer_test

import (
	"context"
	"fmt"
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

// A program that follows an owner and prints what changes, until the first catalog is complete and one service of
// it is gone.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	files, address, published := exampleOwner(ctx)

	certificates, err := mtls.Load(files, nil)
	if err != nil {
		fmt.Println("the certificates cannot be used:", err)
		return
	}
	identity := mtls.Consumer{Source: certificates, ServerName: "owner.example"}
	err = consumer.Follow(ctx, address, identity, func(e consumer.Event) {
		for _, change := range e.Changes {
			if change.Service == nil {
				fmt.Println("gone:", change.Name, change.Reason)
				stop()
				return
			}
			fmt.Println("offered:", change.Service.FQDN, "at", change.Service.Endpoints[0].Address)
		}
		if e.Status.State == consumer.Synced && published.Withdraw("shop") {
			fmt.Println("the catalog is complete:", e.Status.Services, "service")
		}
	})
	if err != nil {
		fmt.Println("the owner cannot be followed:", err)
	}
	// Output:
	// offered: shop.fed.example. at 192.0.2.1
	// the catalog is complete: 1 service
	// gone: shop withdrawn
}

// A Follower can be asked how its copy is, and keeps the catalog in a file: here until the program starts again,
// while its owner is down.
func ExampleFollower() {
	running, kill := context.WithCancel(context.Background())
	defer kill()
	files, address, _ := exampleOwner(running)
	config := consumer.Config{
		Name:      "shops",
		Addresses: []string{address},
		Identity:  mtls.Consumer{Source: ensure(mtls.Load(files, nil)), ServerName: "owner.example"},
		Retention: time.Hour,
		File:      filepath.Join(filepath.Dir(files.Cert), "catalog"),
	}
	follow := func(end consumer.State) {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		config.Show = func(e consumer.Event) {
			if e.Status.State == end && e.Status.Complete {
				stop()
			}
		}
		follower := ensure(consumer.New(config))
		if err := follower.Run(ctx); err != nil {
			fmt.Println(err)
		}
		status := follower.Status()
		fmt.Println(status.State, "with", status.Services, "service")
	}
	follow(consumer.Synced)
	config.Addresses = []string{"127.0.0.1:1"} // where nothing listens
	follow(consumer.Stale)
	// Output:
	// synced with 1 service
	// stale with 1 service
}

// exampleOwner runs an owner with one service until ctx ends. It returns the files of a consumer, the owner's address
// and its catalog.
func exampleOwner(ctx context.Context) (files mtls.Files, address string, published *owner.Catalog) {
	dir := ensure(os.MkdirTemp("", "example"))
	context.AfterFunc(ctx, func() { os.RemoveAll(dir) })
	files = mtls.Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem")}
	authority := ensure(mtls.NewAuthority("example", 24*time.Hour))
	issued := ensure(authority.Issue(mtls.Leaf{Name: "both sides", DNSNames: []string{"owner.example"}}))
	if err := issued.WriteFiles(files); err != nil {
		panic(err)
	}
	published = owner.NewCatalog()
	err := published.Put(&federation.Service{
		Name: "shop", FQDN: ensure(federation.ParseFQDN("shop.fed.example")),
		Endpoints: []federation.Endpoint{{Address: ensure(federation.ParseAddress("192.0.2.1")), Port: 443}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
	})
	if err != nil {
		panic(err)
	}
	server := ensure(owner.New(owner.Config{Catalog: published, Credentials: ensure(mtls.Load(files, nil)).Server()}))
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
