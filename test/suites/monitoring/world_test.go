package monitoring

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// The zones and identities.
const (
	zone       = "fed.example"
	ownerID    = "spiffe://fed.example/owner"
	coreDNSID  = "spiffe://fed.example/coredns"
	providerID = "spiffe://fed.example/provider"
)

// Lifetimes of certificates.
const (
	long  = 90 * 24 * time.Hour
	days  = 3 * 24 * time.Hour
	short = 70 * time.Minute // ten minutes are left: it counts from an hour ago
)

func freeAddress(t testing.TB) string {
	t.Helper()
	address, err := loopback.FreeAddress()
	must(t, err)
	return address
}

// write replaces a file at once.
func write(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.WriteFile(path+".part", []byte(text), 0o600))
	must(t, os.Rename(path+".part", path))
	return path
}

// world is where a test runs its processes.
type world struct {
	*prometheus

	dir       string
	authority *mtls.Authority
}

func newWorld(t testing.TB) *world {
	t.Helper()
	dir := t.TempDir()
	p := startPrometheus(t, dir)
	authority, err := mtls.NewAuthority("test", 2*long)
	must(t, err)
	return &world{prometheus: p, dir: dir, authority: authority}
}

// files are where the certificate of a process is.
func (w *world) files(name string) mtls.Files {
	in := func(name string) string { return filepath.Join(w.dir, name) }
	return mtls.Files{Cert: in(name + ".pem"), Key: in(name + "-key.pem"), CA: in("ca.pem")}
}

// issue writes a new certificate for a process, which takes it at once.
func (w *world) issue(t testing.TB, name, id string, lifetime time.Duration) mtls.Files {
	t.Helper()
	issued, err := w.authority.Issue(mtls.Leaf{
		Name: name, URIs: []string{id}, DNSNames: []string{"localhost"}, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Lifetime: lifetime,
	})
	must(t, err)
	files := w.files(name)
	must(t, issued.WriteFiles(files))
	return files
}

// process is CoreDNS or an owner, which Prometheus scrapes.
type process struct {
	*realserver.Process

	job, address, metrics string
}

// start starts a program until the test ends, and has it scraped.
func (w *world) start(t testing.TB, job, name, program, address, metrics string, args ...string) *process {
	t.Helper()
	root, err := realserver.Root()
	must(t, err)
	p := &process{job: job, address: address, metrics: metrics, Process: &realserver.Process{
		Name: name, Path: filepath.Join(root, "bin", program), Dir: w.dir, Args: args,
		Ready: func(ctx context.Context) error {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", cmp.Or(metrics, address))
			if err != nil {
				return err
			}
			return conn.Close()
		},
	}}
	p.StartFor(t)
	t.Cleanup(func() {
		if p.Logged("panic: ") > 0 {
			t.Errorf("%s has panicked:\n%s", name, p.Tail())
		}
	})
	if metrics != "" {
		w.scrape(t, job, name, metrics)
	}
	return p
}

// service is one of a catalog file.
func service(name, fqdn, address, instance string) string {
	return fmt.Sprintf("- {name: %s, fqdn: %s, endpoints: [{address: %s, port: 80}], instances: [{id: %q, protocol: HTTP}]}\n", name, fqdn, address, instance)
}

// web is the only service of a catalog without faults.
func web(address string) string { return service("web", "web."+zone, address, "v1") }

// startOwner starts an owner. catalogs is that key of its configuration.
func (w *world) startOwner(t testing.TB, job, name, catalogs string, lifetime time.Duration) *process {
	t.Helper()
	files := w.issue(t, name, ownerID, lifetime)
	address, metrics := freeAddress(t), freeAddress(t)
	config := write(t, w.dir, name+".yaml", fmt.Sprintf(`listen: %q
metrics: %q
identity:
  files: {cert: %q, key: %q, ca: %q}
allow:
  ids: [%s]
catalogs:
%s
`, address, metrics, files.Cert, files.Key, files.CA, coreDNSID, catalogs))
	return w.start(t, job, name, "federationctl", address, metrics, "serve", "--config", config)
}

// startDNS starts a CoreDNS that follows an owner, with more properties in its block. Its
// certificate must be there.
func (w *world) startDNS(t testing.TB, job, name, owner string, retention time.Duration, properties ...string) *process {
	t.Helper()
	address, metrics := freeAddress(t), freeAddress(t)
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	files := w.files(name)
	kept := filepath.Join(w.dir, name+"-kept")
	must(t, os.Mkdir(kept, 0o700))
	corefile := write(t, w.dir, name+".corefile", fmt.Sprintf(`%s:%s {
    bind 127.0.0.1
    errors
    prometheus %s
    federation {
        owner %s
        tls %s %s %s
        owner_id %s
        ttl 2
        negative_ttl 1
        retention %v
        persist %s
        %s
    }
}
`, zone, port, metrics, owner, files.Cert, files.Key, files.CA, ownerID, retention, filepath.Join(kept, "catalog"), strings.Join(properties, "\n")))
	return w.start(t, job, name, "coredns", address, metrics, "-conf", corefile)
}

// answers waits until a CoreDNS has an address for web.
func (p *process) answers(t testing.TB, address string) {
	t.Helper()
	question := new(dns.Msg).SetQuestion("web."+zone+".", dns.TypeA)
	eventually(t, func() string {
		reply, _, err := (&dns.Client{Timeout: time.Second}).ExchangeContext(t.Context(), question, p.address)
		if err != nil {
			return err.Error()
		}
		for _, rr := range reply.Answer {
			if a, ok := rr.(*dns.A); ok && a.A.String() == address {
				return ""
			}
		}
		return fmt.Sprintf("%s answers %v, not %s", p.Name, reply, address)
	})
}

// has waits until an expression has series.
func (w *world) has(t testing.TB, expr string) {
	t.Helper()
	eventually(t, func() string {
		n, err := w.query(t.Context(), expr)
		switch {
		case err != nil:
			return err.Error()
		case n == 0:
			return "there is no " + expr
		}
		return ""
	})
}
