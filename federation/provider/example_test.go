package provider_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/provider"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// A program registers itself at two ports, of which the owner's rules allow both, and at
// an address that is not its own, which they do not. Then it ends, in good order.
func Example() {
	authority := ensure(mtls.NewAuthority("example", 24*time.Hour))
	address, stop := exampleOwner(authority)
	defer stop()

	changes := make(chan provider.Status, 100)
	program := ensure(provider.New(provider.Config{
		Addresses: []string{address},
		Identity: mtls.Consumer{
			Source: certificates(authority, "spiffe://shop.example/web"),
			IDs:    []federation.ID{ensure(federation.ParseID("spiffe://owner.example/owner"))},
		},
		OnChange: func(s provider.Status) { changes <- s },
	}))
	for _, uri := range []string{"https://:8443", "grpc://:9443", "https://192.0.2.1:8443"} {
		node := provider.Node{Service: "web.shop.example", URI: uri, Metadata: map[string]string{"tier": "gold"}}
		if err := program.Set(node); err != nil {
			panic(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() {
		if err := program.Run(ctx); err != nil {
			panic(err)
		}
	})

	for range 3 {
		show(<-changes)
	}
	// What a program does when it is told to end: it is withdrawn, serves on for as long
	// as clients may have it in their caches, and ends then.
	if err := program.Drain(ctx, 10*time.Millisecond); err != nil {
		panic(err)
	}
	running.Wait()
	fmt.Println("drained")
	// Unordered output:
	// https://:8443 is registered as https://127.0.0.1:8443, ttl 10s
	// grpc://:9443 is registered as grpc://127.0.0.1:9443, ttl 10s
	// https://192.0.2.1:8443 is refused by rule address
	// drained
}

// show prints a status.
func show(s provider.Status) {
	if s.State == provider.Refused {
		fmt.Println(s.Node.URI, "is refused by rule", s.Rule)
	} else {
		fmt.Printf("%s is %v as %s, ttl %v\n", s.Node.URI, s.State, s.URI, s.TTL)
	}
}

// exampleRules let every program of shop.example register below that name, at its own
// address.
const exampleRules = `
rules:
- name: shop
  providers: ["spiffe://shop.example/*"]
  services: ["*.shop.example"]
  addresses: [peer]
  ttl: {min: 1s, max: 1m, default: 10s}
`

// exampleOwner runs an owner that programs register with. It returns its address, and what ends it.
func exampleOwner(authority *mtls.Authority) (address string, stop func()) {
	parsed, problems := rules.Parse([]byte(exampleRules))
	if len(problems) > 0 {
		panic(problems)
	}
	source := registration.New(registration.Config{
		Name: "registration", Owner: "example", Rules: parsed, Convergence: time.Minute, Published: func(string) bool { return true },
		Policy: wire.AddressPolicy{AllowAddresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, Logger: slog.New(slog.DiscardHandler),
	})
	listener := ensure(net.Listen("tcp", "127.0.0.1:0"))
	server := grpc.NewServer(
		grpc.Creds(certificates(authority, "spiffe://owner.example/owner").Server()),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second}),
	)
	registrationv1.RegisterRegistrationServiceServer(server, source)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	running.Go(func() { source.Run(ctx, nobody{}) })
	return listener.Addr().String(), func() {
		cancel()
		server.Stop()
		running.Wait()
	}
}

// nobody is the catalog of an owner that nobody subscribes to.
type nobody struct{}

func (nobody) Replace([]*wire.EncodedService)          {}
func (nobody) Update([]*wire.EncodedService, []string) {}
func (nobody) SetAway(error)                           {}
func (nobody) SetPath(wire.OwnerPath) error            { return nil }

func (nobody) SetRefused(map[string]int) {}

// certificates returns those of somebody with that identity.
func certificates(authority *mtls.Authority, id string) *mtls.Source {
	dir := ensure(os.MkdirTemp("", "provider"))
	defer os.RemoveAll(dir) // they have been read
	files := mtls.Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem")}
	if err := ensure(authority.Issue(mtls.Leaf{URIs: []string{id}})).WriteFiles(files); err != nil {
		panic(err)
	}
	return ensure(mtls.Load(files, nil))
}

// ensure returns v, and panics when there is an error.
func ensure[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
