package nsm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/nsm"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	zone       = "nsm.fed.example"
	ownerID    = "spiffe://owner.example/owner"
	consumerID = "spiffe://consumer.example/coredns"
)

// eventually waits until a condition has nothing to complain of.
var eventually = await.Eventually

// enabled ends the test here unless these tests are wanted. Otherwise the test runs
// beside the others.
func enabled(t *testing.T) {
	t.Helper()
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("not run: it needs a real registry of Network Service Mesh; make e2e-nsm builds and runs it")
	}
	t.Parallel()
}

// testMesh is a registry, an owner and a CoreDNS.
type testMesh struct {
	*place.Place

	tool string // the command nsm

	registry *realserver.Process
	address  string // of the registry

	ownerAddress string
	catalog      *source.Catalog // of the owner in this process
	coreDNS      *domain.DNS
}

// newMesh makes one in which nothing runs yet.
func newMesh(t *testing.T) *testMesh {
	t.Helper()
	tool, err := realserver.FindNSM()
	must.Do(t, err)
	return &testMesh{
		Place: place.For(t, map[string]string{"owner": ownerID, "coredns": consumerID}),
		tool:  tool, address: loopback.Address(t), ownerAddress: loopback.Address(t),
	}
}

// startRegistry starts the registry, which grants endpoints so much time.
func (m *testMesh) startRegistry(t *testing.T, expiration time.Duration) {
	t.Helper()
	m.registry = &realserver.Process{
		Name: "registry", Path: m.tool, Dir: m.Dir,
		Args:  []string{"registry", "-listen", m.address, "-expiration", expiration.String()},
		Ready: place.Dial(m.address),
	}
	m.registry.StartFor(t)
}

// register starts a program that registers endpoints, and waits until they are.
func (m *testMesh) register(t *testing.T, name, services, url string, args ...string) *realserver.Process {
	t.Helper()
	p := &realserver.Process{Name: "endpoint-" + name, Path: m.tool, Dir: m.Dir}
	p.Args = append([]string{"endpoint", "-registry", "tcp://" + m.address, "-name", name, "-services", services, "-url", url}, args...)
	p.Ready = func(context.Context) error {
		if p.Logged("all registered") == 0 {
			return errors.New("it has not registered")
		}
		return nil
	}
	p.StartFor(t)
	return p
}

// startOwner starts an owner in this process, which publishes what the registry holds.
func (m *testMesh) startOwner(t *testing.T, convergence time.Duration) {
	t.Helper()
	fqdn, err := federation.ParseFQDN(zone)
	must.Do(t, err)
	logger := slog.New(slog.DiscardHandler)
	src := nsm.New(nsm.Config{Registry: "tcp://" + m.address, Name: "nsm", Zone: fqdn, Convergence: convergence, Logger: logger})
	catalog := registry.New()
	m.catalog = source.NewCatalog(source.Config{
		Registry: catalog, Logger: logger, Sources: []source.Entry{{Name: "nsm", Source: src}},
	})
	certificates, err := mtls.Load(m.Files("owner"), nil)
	must.Do(t, err)
	server, err := owner.New(owner.Config{Catalogs: map[string]*registry.Registry{"": catalog}, Credentials: certificates.Server(), Logger: slog.New(slog.DiscardHandler)})
	must.Do(t, err)
	listener, err := net.Listen("tcp", m.ownerAddress)
	must.Do(t, err)
	must.Run(t, func(ctx context.Context) error { _ = m.catalog.Run(ctx); return nil })
	must.Run(t, func(ctx context.Context) error { return server.Serve(ctx, listener) })
}

// serve starts federationctl serve, which publishes what a source says.
func (m *testMesh) serve(t *testing.T, source string) {
	t.Helper()
	config := place.Owner{
		Address: m.ownerAddress, Metrics: loopback.Address(t), TLS: m.Files("owner"), Allow: []string{consumerID},
		More: "catalogs:\n- sources:\n  - " + source + "\n",
	}
	m.Run(t, "owner", must.Get(place.Program("federationctl"))(t), m.ownerAddress, "serve", "--config", m.Put(t, "owner.yaml", config.Config()))
}

// status is what there is to say of the source.
func (m *testMesh) status() source.SourceStatus { return m.catalog.Status().Sources[0] }

// startDNS starts a CoreDNS that answers for a zone of the owner.
func (m *testMesh) startDNS(t *testing.T, zone string) {
	t.Helper()
	address := loopback.Address(t)
	corefile := place.DNS{
		Zone: zone, Address: address, Owners: []string{m.ownerAddress}, OwnerID: ownerID, TLS: m.Files("coredns"), Properties: []string{"ttl 5"},
	}
	m.coreDNS = &domain.DNS{Address: address, Corefile: m.Put(t, "Corefile", corefile.Corefile())}
	m.coreDNS.Process = &realserver.Process{
		Name: "coredns", Path: must.Get(place.Program("coredns"))(t), Dir: m.Dir, Args: []string{"-conf", "Corefile"},
		Ready: func(ctx context.Context) error { _, err := m.coreDNS.Ask(ctx, zone, dns.TypeSOA); return err },
	}
	m.coreDNS.StartFor(t)
}

// answers waits until CoreDNS answers with want, in the form of domain.Short.
func (m *testMesh) answers(t *testing.T, name string, qtype uint16, want string) {
	t.Helper()
	eventually(t, func() string {
		if got := m.coreDNS.Answer(t.Context(), name, qtype); got != want {
			return fmt.Sprintf("the answer for %s %s is %q, want %q", name, dns.TypeToString[qtype], got, want)
		}
		return ""
	})
}
