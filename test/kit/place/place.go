// Package place is where tests and demonstrations run the programs of this project as
// processes: a folder with certificates, configurations and logs.
package place

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// Place is a folder, and the authority of the certificates in it.
type Place struct {
	Dir string

	authority *mtls.Authority
}

// lifetime is how long an authority lives, in days.
const lifetime = 180 * 24 * time.Hour

// New returns a place in a folder, which must exist.
func New(dir string) (*Place, error) {
	authority, err := mtls.NewAuthority("test", lifetime)
	return &Place{Dir: dir, authority: authority}, err
}

// For returns a place for one test, with certificates: their SPIFFE IDs by name.
func For(t testing.TB, ids map[string]string) *Place {
	t.Helper()
	p := must.Get(New(t.TempDir()))(t)
	return must.Get(p.In(p.Dir, ids))(t)
}

// In returns a place in another folder with the same authority, with certificates: their SPIFFE IDs
// by name.
func (p *Place) In(dir string, ids map[string]string) (*Place, error) {
	other := &Place{Dir: dir, authority: p.authority}
	for name, id := range ids {
		if err := other.Issue(name, id, 0); err != nil {
			return nil, err
		}
	}
	return other, nil
}

// Path returns the path of a file.
func (p *Place) Path(name string) string { return filepath.Join(p.Dir, name) }

// Files are where the certificate of a name is.
func (p *Place) Files(name string) mtls.Files {
	return mtls.Files{Cert: p.Path(name + ".pem"), Key: p.Path(name + "-key.pem"), CA: p.Path("ca.pem")}
}

// Issue writes a certificate, for loopback and with a SPIFFE ID. It takes the place of an
// older one. A lifetime of 0 is the default of the authority.
func (p *Place) Issue(name, id string, lifetime time.Duration) error {
	issued, err := p.authority.Issue(mtls.Leaf{
		Name: name, URIs: []string{id}, DNSNames: []string{"localhost"}, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Lifetime: lifetime,
	})
	if err != nil {
		return err
	}
	return issued.WriteFiles(p.Files(name))
}

// Write writes a file as a whole: a program that watches it never sees a part.
func (p *Place) Write(name, text string) error {
	path := p.Path(name)
	if err := os.WriteFile(path+".part", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// Put is Write for a test. It returns the path.
func (p *Place) Put(t testing.TB, name, text string) string {
	t.Helper()
	must.Do(t, p.Write(name, text))
	return p.Path(name)
}

// Run runs a program until the test ends. It is ready once it listens on an address. The
// test fails where the program has a panic or a data race.
func (p *Place) Run(t testing.TB, name, program, address string, args ...string) *realserver.Process {
	t.Helper()
	process := &realserver.Process{Name: name, Path: program, Dir: p.Dir, Args: args, Ready: Dial(address)}
	process.StartFor(t)
	t.Cleanup(func() {
		if process.Logged("panic")+process.Logged("DATA RACE") > 0 {
			t.Errorf("%s has lines about panics or races:\n%s", process.Log(), process.Tail())
		}
	})
	return process
}

// Dial returns what finds out whether something listens on an address.
func Dial(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// Program returns the path of coredns or federationctl in bin, without links: an agent of
// SPIFFE sees it so.
func Program(name string) (string, error) {
	root, err := realserver.Root()
	if err != nil {
		return "", err
	}
	path, err := filepath.EvalSymlinks(filepath.Join(root, "bin", name))
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("bin/%s is not built: run make build", name)
	}
	return path, err
}

// DNS is what a Corefile says of a CoreDNS that follows the replicas of an owner.
type DNS struct {
	Zone       string
	Address    string // of CoreDNS
	Metrics    string // their address, or ""
	Owners     []string
	OwnerID    string
	TLS        mtls.Files
	Properties []string // of the block, beside those that are here
}

// Corefile returns the text.
func (d *DNS) Corefile() string {
	_, port, _ := net.SplitHostPort(d.Address)
	plugins := ""
	if d.Metrics != "" {
		plugins = "    prometheus " + d.Metrics + "\n"
	}
	return fmt.Sprintf(`%s:%s {
    bind 127.0.0.1
    errors
%s    federation {
        owner %s
        tls %s %s %s
        owner_id %s
        negative_ttl 1
        %s
    }
}
`, d.Zone, port, plugins, strings.Join(d.Owners, " "), d.TLS.Cert, d.TLS.Key, d.TLS.CA, d.OwnerID, strings.Join(d.Properties, "\n        "))
}

// Owner is what the configuration of an owner says.
type Owner struct {
	Address string // of consumers
	Metrics string // their address, or ""
	TLS     mtls.Files
	Allow   []string
	More    string // keys beside those that are here, with catalogs
}

// Config returns the text.
func (o *Owner) Config() string {
	metrics := ""
	if o.Metrics != "" {
		metrics = fmt.Sprintf("metrics: %q\n", o.Metrics)
	}
	return fmt.Sprintf(`listen: %q
%sidentity:
  files: {cert: %q, key: %q, ca: %q}
allow:
  ids: [%s]
%s`, o.Address, metrics, o.TLS.Cert, o.TLS.Key, o.TLS.CA, strings.Join(o.Allow, ", "), o.More)
}
