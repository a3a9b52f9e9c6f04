package stream_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/stream"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
)

// A consumer takes the services of an owner, all but one that it does not want.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	certificates, address, stopped := exampleOwner(ctx, "shop.fed.example", "bank.example")

	subscriber := ensure(stream.New(stream.Config{
		Addresses: []string{address},
		Identity:  mtls.Consumer{Source: certificates, ServerName: "owner.example"},
		Sink:      zone{origin: ".fed.example.", complete: stop},
	}))
	if err := subscriber.Run(ctx); err != nil {
		panic(err)
	}
	stopped()
	// Output:
	// a stream is open
	// refused bank.example.: not below .fed.example.
	// shop.fed.example. is at 192.0.2.1
	// the catalog is complete
}

// zone is a Sink that takes services below an origin.
type zone struct {
	origin   string
	complete func()
}

func (zone) StreamOpened() { fmt.Println("a stream is open") }

// HeldDigests makes the owner send everything.
func (zone) HeldDigests(context.Context) resume.Digests { return nil }

// AcceptHeader says whether the event End will come: without it, silence has to tell.
func (zone) AcceptHeader(context.Context, stream.Announcement) error { return nil }

func (z zone) ApplyUpdates(updates []stream.Update) {
	for i := range updates {
		switch u := &updates[i]; {
		case u.Invalid != nil:
			// It is malformed, and the owner will be told.
		case u.Operation == federation.Upsert && !strings.HasSuffix(u.Service.FQDN.String(), z.origin):
			u.Invalid = &federation.InvalidError{
				Service: u.Name, Field: "fqdn", Reason: federation.ReasonOutOfZone, Rule: "not below " + z.origin,
			}
			fmt.Printf("refused %s: %s\n", u.Service.FQDN, u.Invalid.Rule)
		case u.Operation == federation.Upsert:
			fmt.Printf("%s is at %s\n", u.Service.FQDN, u.Service.Endpoints[0].Address)
		case u.Operation == federation.Delete:
			fmt.Printf("%s is gone\n", u.Name)
		case u.Operation == federation.End:
			fmt.Println("the catalog is complete")
			z.complete()
		}
	}
}

func (zone) UpdatesAnswered([]stream.Update) {}

// IsComplete says whether another stream may take the place of the open one.
func (zone) IsComplete() bool { return true }

func (zone) StreamLost(l stream.Loss) {
	fmt.Printf("lost: %v (parked: %v)\n", l.Err, l.Parked)
}

func (zone) AttemptStarted()            {}
func (zone) AttemptScheduled(time.Time) {}

// exampleOwner publishes a service for each name until ctx ends. It returns the
// certificates of a consumer, the owner's address, and a function that waits for
// its end.
func exampleOwner(ctx context.Context, names ...string) (certificates *mtls.Source, address string, stopped func()) {
	dir := ensure(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)
	files := mtls.Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem")}
	authority := ensure(mtls.NewAuthority("example", 24*time.Hour))
	issued := ensure(authority.Issue(mtls.Leaf{Name: "both sides", DNSNames: []string{"owner.example"}}))
	if err := issued.WriteFiles(files); err != nil {
		panic(err)
	}
	certificates = ensure(mtls.Load(files, nil))

	registry := registry.New()
	for _, name := range names {
		ensure(registry.Upsert(&federation.Service{
			Name: name, FQDN: ensure(federation.ParseFQDN(name)),
			Endpoints: []federation.Endpoint{{Address: ensure(federation.ParseAddress("192.0.2.1")), Port: 443}},
			Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
		}))
	}
	server := ensure(owner.New(owner.Config{Registry: registry, Credentials: certificates.Server(), Logger: slog.New(slog.DiscardHandler)}))
	listener := ensure(net.Listen("tcp", "127.0.0.1:0"))
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Serve(ctx, listener); err != nil {
			fmt.Println("the owner has failed:", err)
		}
	})
	return certificates, listener.Addr().String(), running.Wait
}

// ensure returns v; an example does not fail.
func ensure[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
