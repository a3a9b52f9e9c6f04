package test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// scratch is a directory that lasts until the tests end, or "".
var scratch string

// federationctl builds the command once.
var federationctl = sync.OnceValues(func() (string, error) {
	var err error
	if scratch, err = os.MkdirTemp("", "federationctl"); err != nil {
		return "", err
	}
	path := filepath.Join(scratch, "federationctl")
	out, err := exec.Command("go", "build", "-o", path, "../cmd/federationctl").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// serveCatalog runs an owner as a process.
func serveCatalog(t testing.TB, address, catalog string, files mtls.Files, flags ...string) *process {
	t.Helper()
	path := must.Get(federationctl())(t)
	args := append([]string{
		"serve", "--listen", address, "--catalog", catalog,
		"--cert", files.Cert, "--key", files.Key, "--ca", files.CA,
	}, flags...)
	if !slices.Contains(flags, "--allow-id") {
		args = append(args, "--allow-any")
	}
	return startProcess(t, exec.Command(path, args...))
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	temporary := path + ".new"
	must.Do(t, os.WriteFile(temporary, []byte(content), 0o600))
	must.Do(t, os.Rename(temporary, path))
}

// catalogOf is a catalog file with services of one instance, as fqdn=address.
func catalogOf(services ...string) string {
	var b strings.Builder
	b.WriteString("services:\n")
	for _, s := range services {
		fqdn, address, _ := strings.Cut(s, "=")
		fmt.Fprintf(&b, "- {name: %q, fqdn: %q, endpoints: [{address: %q, port: 443}], instances: [{id: v1, protocol: HTTPS}]}\n", fqdn, fqdn, address)
	}
	return b.String()
}

// TestCatalogFile is what a newcomer does: edits of the catalog file are
// answered, an owner that is killed is missed for as long as the retention says,
// and one that comes back is noticed.
func TestCatalogFile(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	catalog := filepath.Join(t.TempDir(), "catalog.yaml")
	writeFile(t, catalog, catalogOf("web.fed.example=192.0.2.1"))
	address := freeAddress(t)
	o := serveCatalog(t, address, catalog, p.owner)
	const retention = 15 * time.Second // which must not be over before the first stale answer
	d := startCoreDNS(t, fmt.Sprintf(`fed.example:PORT {
	bind 127.0.0.1
	federation {
		owner %s
		%s
		owner_id %s
		retention %v
	}
}`, address, p.tls(), ownerID, retention))

	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	writeFile(t, catalog, catalogOf("web.fed.example=192.0.2.1", "new.fed.example=192.0.2.2"))
	d.awaitAnswer(t, "new.fed.example", dns.TypeA, "NOERROR 192.0.2.2")
	writeFile(t, catalog, catalogOf("web.fed.example=192.0.2.1", "new.fed.example=2001:db8::2"))
	d.awaitAnswer(t, "new.fed.example", dns.TypeAAAA, "NOERROR 2001:db8::2")
	d.awaitAnswer(t, "new.fed.example", dns.TypeA, "NOERROR")
	writeFile(t, catalog, catalogOf("web.fed.example=192.0.2.1"))
	gone := d.awaitAnswer(t, "new.fed.example", dns.TypeA, "NXDOMAIN")
	if len(gone.Ns) != 1 || gone.Ns[0].Header().Rrtype != dns.TypeSOA {
		t.Errorf("authority of NXDOMAIN is %v, want one SOA", gone.Ns)
	}

	killed := time.Now()
	o.end(t, syscall.SIGKILL)
	eventually(t, patience, func() string {
		m := mustQuery(t, d.address, "web.fed.example", dns.TypeA, withEDNS)
		if summary(m) != "NOERROR 192.0.2.1" {
			t.Fatalf("%v after the kill: %s", time.Since(killed), summary(m))
		}
		if extendedError(m) != int(dns.ExtendedErrorCodeStaleAnswer) {
			return "the answer is not marked stale"
		}
		if ttl := m.Answer[0].Header().Ttl; ttl > uint32(retention/time.Second) {
			return fmt.Sprintf("the TTL is %d, over the retention", ttl)
		}
		return ""
	})
	held := d.awaitNXDOMAIN(t, "web.fed.example", killed)
	const early, late = retention - time.Second, retention + 10*time.Second // in the last second no TTL is left for them
	if gone := time.Since(killed); gone < early || held > late {
		t.Errorf("the records were there %v after the kill and gone after %v, want %v to %v", held, gone, early, late)
	}

	back := time.Now()
	serveCatalog(t, address, catalog, p.owner)
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	t.Logf("answered %v after the owner came back", time.Since(back))
}

// TestUntrustedOwner shows that nothing is taken from an owner that is not who
// it should be, and that the log says so once.
func TestUntrustedOwner(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	other := newPKI(t)
	mixed := other.owner
	mixed.CA = p.owner.CA // it accepts the consumer, which does not accept it
	nameless := p.issue(t, "nameless", mtls.Leaf{Name: "nameless", DNSNames: []string{"elsewhere.example"}})
	web := simpleService(t, "web", "web.fed.example", "192.0.2.1")
	plain := plainListener(t)
	for name, address := range map[string]string{
		"another authority": startOwner(t, mixed, "", web).address,
		"another identity":  startOwner(t, nameless, "", web).address,
		"plain text":        plain,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startCoreDNS(t, fmt.Sprintf(`fed.example:PORT {
	bind 127.0.0.1
	federation {
		owner %s
		%s
		owner_id %s
	}
}`, address, p.tls(), ownerID))
			eventually(t, patience, func() string {
				if d.log.Count("not connected to owner") != 1 {
					return "the log does not say why"
				}
				return ""
			})
			if n := d.log.Count(address); n != 1 {
				t.Errorf("%d lines are about the owner, want 1:\n%s", n, d.log)
			}
			m := mustQuery(t, d.address, "web.fed.example", dns.TypeA, withEDNS)
			if m.Rcode != dns.RcodeServerFailure {
				t.Errorf("answer is %s", summary(m))
			}
		})
	}
}

// plainListener answers without TLS, as a web server would.
func plainListener(t testing.TB) string {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 16<<10)) // what is not read resets the connection, and the reply may be lost
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

// TestRefusedServices shows that a service that breaks a rule of the consumer's
// is refused with that rule, and harms no other.
func TestRefusedServices(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	outside := simpleService(t, "outside", "web.other.example", "192.0.2.1")
	loopback := simpleService(t, "loopback", "lo.fed.example", "127.0.0.1")
	reserved := simpleService(t, "reserved", "ns.dns.fed.example", "192.0.2.1")
	o := startOwner(t, p.owner, "", outside, loopback, reserved, simpleService(t, "web", "web.fed.example", "192.0.2.2"))
	d := startCoreDNS(t, fmt.Sprintf(`fed.example:PORT {
	bind 127.0.0.1
	federation {
		owner %s
		%s
	}
}`, o.address, p.tls()))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.2")
	d.awaitAnswer(t, "lo.fed.example", dns.TypeA, "NXDOMAIN")
	for service, rule := range map[string]string{
		"outside":  "is outside the zones",
		"loopback": "loopback address 127.0.0.1",
		"reserved": "is reserved",
	} {
		d.awaitLog(t, 1, service, rule) // which comes after the answers
		if n := d.log.Count(service, rule); n != 1 {
			t.Errorf("the log says %d times that %q breaks the rule %q:\n%s", n, service, rule, d.log)
		}
	}
}

// TestCorefileMistakes shows that each mistake is one clear error with its line,
// and that CoreDNS does not start with it.
func TestCorefileMistakes(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	for name, tt := range map[string]struct{ block, want string }{
		"no owner":      {p.tls(), "Corefile:3 - Error during parsing: owner: is missing"},
		"no tls":        {"owner a.example:1", "Corefile:3 - Error during parsing: tls: is missing"},
		"property":      {"owner a.example:1\n" + p.tls() + "\ncolour red", `Corefile:6 - Error during parsing: colour: is not a property`},
		"ttl":           {"owner a.example:1\n" + p.tls() + "\nttl 0", `Corefile:6 - Error during parsing: ttl: "0"`},
		"api":           {"owner a.example:1\n" + p.tls() + "\napi v1", `Corefile:6 - Error during parsing: api: "v1" is not v1alpha2 or v1alpha1`},
		"persist":       {"owner a.example:1\n" + p.tls() + "\npersist /nonexistent/catalog", "Corefile:3 - Error: owner a.example:1: persist:"},
		"two in a zone": {"owner a.example:1\n" + p.tls() + "\n}\nfederation {\nowner a.example:1\n" + p.tls(), "Corefile:7 - Error during parsing: owner:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			corefile := filepath.Join(t.TempDir(), "Corefile")
			writeFile(t, corefile, "fed.example:0 {\nbind 127.0.0.1\nfederation {\n"+tt.block+"\n}\n}\n")
			out, err := coreDNSCommand(corefile).CombinedOutput()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
				t.Errorf("CoreDNS ended with %v, want exit code 1", err)
			}
			if !strings.Contains(string(out), tt.want) {
				t.Errorf("output is\n%s\nwant %q in it", out, tt.want)
			}
		})
	}
}
