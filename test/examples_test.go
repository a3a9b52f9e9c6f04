package test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

var (
	exampleOwner = regexp.MustCompile(`\bmesh-[a-z0-9-]+\.example:8008\b`)
	examplePort  = regexp.MustCompile(`:(1053|1054|8008|8080|8181|9153|9154|9155|9156)\b`)
)

// TestExamples boots every example Corefile and those in the documents, with their
// owners away: the server is up, and says that it does not know yet.
func TestExamples(t *testing.T) {
	t.Parallel()
	corefiles := make(map[string]string)
	paths := must.Get(filepath.Glob("../corefile-examples/*/Corefile"))(t)
	index := documentAt(t, "corefile-examples/README.md").prose
	for _, path := range paths {
		if name := filepath.Base(filepath.Dir(path)); !strings.Contains(index, "]("+name+"/Corefile)") {
			t.Errorf("corefile-examples/README.md does not list %s", name)
		}
		content := must.Get(os.ReadFile(path))(t)
		corefiles[filepath.Base(filepath.Dir(path))] = string(content)
	}
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if b.language == "corefile" {
				corefiles[fmt.Sprintf("%s:%d", d.path, b.line)] = b.text
			}
		}
	}
	if len(corefiles) < 11 {
		t.Fatalf("only %d examples were found", len(corefiles))
	}
	p := newPlace(t)
	files := p.Files("consumer")
	for name, file := range map[string]string{"tls.crt": files.Cert, "tls.key": files.Key, "ca.crt": files.CA} {
		must.Do(t, os.Symlink(file, p.Path(name)))
	}
	delete(corefiles, "kubernetes-cluster-dns") // needs an API server: test/suites/kubernetes/deploy boots it
	for name, corefile := range corefiles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := bootExample(t, p, corefile, nil)
			m := mustQuery(t, d.address, "nope.a.fed.example", dns.TypeA)
			if m.Rcode != dns.RcodeServerFailure || extendedError(m) != int(dns.ExtendedErrorCodeNotReady) {
				t.Errorf("before the first catalog the answer is\n%v\nwant SERVFAIL with extended error 14", m)
			}
		})
	}
}

// bootExample boots a Corefile with ports of its own. The addresses of owners are by those in
// the Corefile; where there is none, nobody listens.
func bootExample(t *testing.T, p *place.Place, corefile string, owners map[string]string) *coreDNS {
	t.Helper()
	// Ports and owners of this test, so that nothing leaves the machine.
	ports := map[string]string{":1053": ":PORT"}
	corefile = exampleOwner.ReplaceAllStringFunc(corefile, func(owner string) string {
		if address, ok := owners[owner]; ok {
			return address
		}
		return loopback.Address(t)
	})
	corefile = examplePort.ReplaceAllStringFunc(corefile, func(s string) string {
		if ports[s] == "" {
			_, free, _ := net.SplitHostPort(loopback.Address(t))
			ports[s] = ":" + free
		}
		return ports[s]
	})
	corefile = strings.ReplaceAll(corefile, "unix:///run/", "unix://"+p.Dir+"/") // where no agent is
	for _, dir := range []string{"certs/", "run/"} {
		corefile = strings.ReplaceAll(corefile, " "+dir, " "+p.Dir+"/")
	}
	return startCoreDNS(t, corefile)
}

// TestSharedExample has the owners of the example for shared names there: each has endpoints in the
// zone that is near, and what the first has elsewhere comes before what the second has.
func TestSharedExample(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	owners := make(map[string]string)
	for name, endpoints := range map[string][]string{
		"mesh-a.example:8008": {"192.0.2.1:80@[zone/eu-1a]", "192.0.2.2:80"},
		"mesh-b.example:8008": {"192.0.2.3:80@[zone/eu-1a]", "192.0.2.4:80"},
	} {
		owners[name] = startOwner(t, p, fixtureService("web", "web.fed.example", endpoints, []string{"v1 HTTP"})).address
	}
	d := bootExample(t, p, string(must.Get(os.ReadFile("../corefile-examples/shared/Corefile"))(t)), owners)
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1 192.0.2.2 192.0.2.3")
	d.awaitAnswer(t, "web.fed.example", dns.TypeSRV, "NOERROR 0 100 80 192-0-2-1.addr.web.fed.example. 0 100 80 192-0-2-3.addr.web.fed.example. "+
		"1 100 80 192-0-2-2.addr.web.fed.example. 2 100 80 192-0-2-4.addr.web.fed.example.")
}
