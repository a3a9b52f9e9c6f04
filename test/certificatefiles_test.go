package test

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// damages are the ways in which the files of a certificate cannot be used. Each has what the
// reason says, and the remedy; CERT, KEY and CA stand for the files.
var damages = map[string]struct {
	do             func(t *testing.T, p *pki, f mtls.Files)
	reason, remedy string
}{
	"missing":     {func(t *testing.T, _ *pki, f mtls.Files) { must.Do(t, os.Remove(f.Cert)) }, "stat CERT: no such file or directory", "put CERT in its place, or correct the path"},
	"without key": {func(t *testing.T, _ *pki, f mtls.Files) { must.Do(t, os.Remove(f.Key)) }, "stat KEY: no such file or directory", "put KEY in its place, or correct the path"},
	"unreadable": {func(t *testing.T, _ *pki, f mtls.Files) {
		must.Do(t, os.Remove(f.Cert))
		must.Do(t, os.Mkdir(f.Cert, 0o700))
	}, "CERT is not a regular file", "replace CERT by a PEM file"},
	"not PEM":       {func(t *testing.T, _ *pki, f mtls.Files) { writeFile(t, f.Cert, "rubbish") }, "certificate CERT: holds no PEM certificate", "replace CERT by a whole PEM file with certificates"},
	"another's key": {func(t *testing.T, p *pki, f mtls.Files) { writeFile(t, f.Key, string(p.issued(t, mtls.Leaf{}).Key)) }, "key KEY of certificate CERT: tls: private key does not match public key", "replace KEY by the key that CERT was issued for"},
	"expired": {func(t *testing.T, p *pki, f mtls.Files) {
		must.Do(t, p.issued(t, mtls.Leaf{Lifetime: time.Minute}).WriteFiles(f))
	}, "certificate CERT: expired at ", "renew CERT"},
	"not valid yet": {func(t *testing.T, p *pki, f mtls.Files) { writeFile(t, f.Cert, string(p.early(t, f))) }, "certificate CERT: is not valid before ", "correct the clock of this machine, or have CERT issued anew"},
	"damaged CA": {func(t *testing.T, _ *pki, f mtls.Files) {
		data := must.Get(os.ReadFile(f.CA))(t)
		writeFile(t, f.CA, string(data[:len(data)/2]))
	}, "CA bundle CA: has a PEM block that is cut off or malformed", "replace CA by a whole PEM file with certificates"},
}

// issued is a certificate that the authority has signed.
func (p *pki) issued(t *testing.T, leaf mtls.Leaf) mtls.Issued {
	t.Helper()
	leaf.Name, leaf.DNSNames = "own", []string{"consumer.example", "localhost"}
	return must.Get(p.authority.Issue(leaf))(t)
}

// early is a certificate for the key of the one in the files that is valid in an hour.
func (p *pki) early(t *testing.T, f mtls.Files) []byte {
	t.Helper()
	authority := must.Get(tls.X509KeyPair(p.authority.PEM(), must.Get(p.authority.KeyPEM())(t)))(t)
	template := must.Get(tls.LoadX509KeyPair(f.Cert, f.Key))(t).Leaf
	template.NotBefore, template.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	signed := must.Get(x509.CreateCertificate(rand.Reader, template, authority.Leaf, template.PublicKey, authority.PrivateKey))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})
}

// expects returns the reason and the remedy of a damage of the files.
func expects(f mtls.Files, reason, remedy string) (string, string) {
	names := strings.NewReplacer("CERT", f.Cert, "KEY", f.Key, "CA CA", "CA", "CA:", f.CA+":", "CA by", f.CA+" by")
	return names.Replace(reason), names.Replace(remedy)
}

// act asks a process for its status as a program on call does, which has to be: to be acted on.
func act(t *testing.T, page string, says ...string) {
	t.Helper()
	program := must.Get(federationctl())(t)
	eventually(t, patience, func() string {
		out, err := exec.Command(program, "status", "--check", "--at", "http://"+page).CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != int(status.Act) || !containsAll(string(out), says) {
			return fmt.Sprintf("status --check ends with %v, expected %d and %q:\n%s", err, status.Act, says, out)
		}
		return ""
	})
}

// TestStartWithUnusableCertificate damages the files of a consumer in each way. CoreDNS starts,
// answers a zone that has nothing to do with them and what persist has, says what is to be
// done, takes a reload, and follows the owner when the files are mended.
func TestStartWithUnusableCertificate(t *testing.T) {
	p, dir := newPKI(t), t.TempDir()
	own := mtls.Files{Cert: filepath.Join(dir, "own.pem"), Key: filepath.Join(dir, "own-key.pem"), CA: filepath.Join(dir, "own-ca.pem")}
	good := p.issued(t, mtls.Leaf{})
	must.Do(t, good.WriteFiles(own))
	o := startOwner(t, p.owner, "", fixtureService(t, "web", "web.fed.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}))
	page := freeAddress(t)
	corefile := fmt.Sprintf(`other.example:PORT {
	bind 127.0.0.1
	hosts {
		192.0.2.9 web.other.example
	}
}
fed.example:PORT {
	bind 127.0.0.1
	federation {
		name owner
		owner %s
		tls %s %s %s
		persist %s
		status %s
	}
}
`, o.address, own.Cert, own.Key, own.CA, filepath.Join(dir, "catalog"), page)
	before := startCoreDNS(t, corefile)
	before.awaitComplete(t, "nope.fed.example")
	before.end(t, syscall.SIGTERM)
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			damage.do(t, p, own)
			reason, remedy := expects(own, damage.reason, damage.remedy)
			d := startCoreDNS(t, corefile)
			d.awaitAnswer(t, "web.other.example", dns.TypeA, "NOERROR 192.0.2.9")
			d.awaitStale(t, "web.fed.example")
			act(t, page, reason)
			for _, u := range statusOf[status.Status](t, page, "/v1/status").Owners {
				if !strings.Contains(u.CertificateError, reason) || u.Failure != u.CertificateError || !strings.HasPrefix(u.Remedy, remedy) {
					t.Errorf("the owner is %+v, expected %q and %q", u, reason, remedy)
				}
			}
			why := strings.Join(statusWhy(t, page, "web.fed.example").Lines(), "\n")
			if !containsAll(why, []string{reason, remedy}) {
				t.Errorf("why says\n%s\nexpected %q and %q", why, reason, remedy)
			}
			d.reload(t)
			if n := d.log.Count("Restart failed"); n > 0 {
				t.Errorf("a reload is refused:\n%s", d.log)
			}
			d.awaitStale(t, "web.fed.example")
			if n := d.log.Count("certificate files cannot be used"); n > 2 { // at the start, and after the reload
				t.Errorf("the reason is logged %d times:\n%s", n, d.log)
			}
			must.Do(t, os.RemoveAll(own.Cert))
			must.Do(t, good.WriteFiles(own))
			d.awaitComplete(t, "nope.fed.example")
			eventually(t, patience, func() string { // an answer is there before the state is announced
				if u := statusOf[status.Status](t, page, "/v1/status").Owners[0]; u.State != "synced" || u.CertificateError != "" {
					return fmt.Sprintf("when the files are mended the owner is %+v", u)
				}
				return ""
			})
			d.end(t, syscall.SIGTERM)
		})
	}
}

// statusWhy is what a process says of a name.
func statusWhy(t *testing.T, page, name string) *status.Why {
	t.Helper()
	why := statusOf[status.Why](t, page, "/v1/why?name="+name+"&type=A")
	return &why
}

// TestServeWithUnusableCertificate damages the files of an owner. It starts, says what is to
// be done, and serves when the files are mended. The same goes for those of its status.
func TestServeWithUnusableCertificate(t *testing.T) {
	p, dir := newPKI(t), t.TempDir()
	own := mtls.Files{Cert: filepath.Join(dir, "own.pem"), Key: filepath.Join(dir, "own-key.pem"), CA: filepath.Join(dir, "own-ca.pem")}
	good := p.issued(t, mtls.Leaf{})
	catalog := filepath.Join(dir, "catalog.yaml")
	writeFile(t, catalog, catalogOf("web.fed.example=192.0.2.1"))
	address := freeAddress(t)
	d := startCoreDNS(t, federationBlock(p, "fed.example", "", address+" tls_servername localhost"))
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			must.Do(t, good.WriteFiles(own))
			damage.do(t, p, own)
			reason, remedy := expects(own, damage.reason, damage.remedy)
			page := freeAddress(t)
			o := serveCatalog(t, address, catalog, own, "--status", page)
			o.awaitLog(t, 1, "certificate files cannot be used", remedy)
			act(t, page, reason)
			must.Do(t, os.RemoveAll(own.Cert))
			must.Do(t, good.WriteFiles(own))
			d.awaitComplete(t, "nope.fed.example")
			o.end(t, syscall.SIGTERM)
		})
	}

	t.Run("status", func(t *testing.T) {
		must.Do(t, good.WriteFiles(own))
		must.Do(t, os.Remove(own.Key))
		page := freeAddress(t)
		d := startCoreDNS(t, federationBlock(p, "fed.example", "", address+" "+strings.Join([]string{"status", page, own.Cert, own.Key, own.CA}, " ")))
		d.awaitLog(t, 1, "certificate files cannot be used", own.Key)
		must.Do(t, good.WriteFiles(own))
		eventually(t, patience, func() string {
			if code, err := fetchTLS(strings.Replace(page, "127.0.0.1", "localhost", 1), p.consumer); err != nil || code != 200 {
				return fmt.Sprintf("the status is %d, %v", code, err)
			}
			return ""
		})
	})
}
