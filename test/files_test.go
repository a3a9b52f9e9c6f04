package test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestUnusableCertificate starts CoreDNS and an owner without the key of their certificate. CoreDNS
// answers a zone that has nothing to do with it, and what persist has; both say what is to be done,
// and go on when the key is there. What else cannot be used is in package mtls.
func TestUnusableCertificate(t *testing.T) {
	t.Parallel()
	p, dir := newPKI(t), t.TempDir()
	own := mtls.Files{Cert: filepath.Join(dir, "own.pem"), Key: filepath.Join(dir, "own-key.pem"), CA: filepath.Join(dir, "own-ca.pem")}
	good := must.Get(p.authority.Issue(mtls.Leaf{Name: "own", DNSNames: []string{"consumer.example", "localhost"}}))(t)
	must.Do(t, good.WriteFiles(own))
	catalog := filepath.Join(dir, "catalog.yaml")
	writeFile(t, catalog, catalogOf("web.fed.example=192.0.2.1"))
	address, page, ownerPage := freeAddress(t), freeAddress(t), freeAddress(t)
	corefile := fmt.Sprintf("other.example:PORT {\nbind 127.0.0.1\nhosts {\n192.0.2.9 web.other.example\n}\n}\n"+
		"fed.example:PORT {\nbind 127.0.0.1\nfederation {\nowner %s\ntls %s %s %s\ntls_servername localhost\npersist %s\nstatus %s\n}\n}\n",
		address, own.Cert, own.Key, own.CA, filepath.Join(dir, "catalog"), page)
	o, before := serveCatalog(t, address, catalog, own), startCoreDNS(t, corefile)
	before.awaitComplete(t, "nope.fed.example")
	before.end(t, syscall.SIGTERM)
	o.end(t, syscall.SIGTERM)

	must.Do(t, os.Remove(own.Key))
	o, d := serveCatalog(t, address, catalog, own, "--status", ownerPage), startCoreDNS(t, corefile)
	d.awaitAnswer(t, "web.other.example", dns.TypeA, "NOERROR 192.0.2.9")
	d.awaitStale(t, "web.fed.example")
	o.awaitLog(t, 1, "certificate files cannot be used", "put "+own.Key+" in its place")
	program := must.Get(federationctl())(t)
	for _, at := range []string{page, ownerPage} {
		eventually(t, patience, func() string {
			out, err := exec.Command(program, "status", "--check", "--at", "http://"+at).CombinedOutput()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != int(status.Act) || !containsAll(string(out), []string{own.Key}) {
				return fmt.Sprintf("status --check ends with %v, expected %d and %s:\n%s", err, status.Act, own.Key, out)
			}
			return ""
		})
	}
	must.Do(t, good.WriteFiles(own))
	d.awaitComplete(t, "nope.fed.example")
}
