package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"iter"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// asked is a CoreDNS that follows one owner, whose catalog it has from a file.
type asked struct{ services []*wire.EncodedService }

var askedAt = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func (*asked) Status() status.Status {
	return status.Status{
		Role: status.Consumer, Version: "v1.2.3", Now: askedAt, Began: askedAt.Add(-time.Hour), Ready: true,
		Owners: []status.FollowedOwner{{ID: "o1:8008", State: "synced", Since: askedAt.Add(-time.Minute), Known: true, Retention: 86400, Retry: func() {}}},
	}
}

func (*asked) Why(_ context.Context, name string, qtype uint16) (status.NameExplanation, error) {
	return status.NameExplanation{Role: status.Consumer, Now: askedAt, Name: name, Type: dns.TypeToString[qtype], Answers: []status.BlockAnswer{{
		Servers: []string{"dns://.:53"}, Zone: "fed.example.", Rcode: "NXDOMAIN", Is: "missing", Verdict: status.NoName,
		Owners: []status.OwnerPart{{ID: "o1:8008", State: "synced"}},
	}}}, nil
}

func (a *asked) Catalog(string) iter.Seq2[status.CatalogService, error] {
	return func(yield func(status.CatalogService, error) bool) {
		for _, encoded := range a.services {
			if !yield(status.NewService(encoded.Service(), askedAt, false)) {
				return
			}
		}
	}
}

// relaying is an owner that relays another one, and holds services.
type relaying struct{ page.ReportSource }

func (relaying) Status() status.Status {
	return status.Status{Role: status.Owner, Catalogs: []status.Catalog{{Sources: []status.CatalogSource{
		{Name: "mesh", Paused: 12, Confirm: func() int { return 12 }, Relay: &status.FollowedOwner{ID: "o1:8008", State: "parked", Retry: func() {}}},
		{Name: "west"},
	}}}}
}

// statusOf serves the status of a CoreDNS with the catalog of a file, until the test ends,
// and returns its URL.
func statusOf(t *testing.T, file string) string {
	t.Helper()
	data := must.Get(os.ReadFile(file))(t)
	catalog := catalogfile.Parse(data, wire.AnyAddress())
	must.Do(t, catalog.Err())
	slices.SortFunc(catalog.Services, func(a, b *wire.EncodedService) int { return strings.Compare(a.Name(), b.Name()) })
	server := httptest.NewServer(page.NewHandler(&asked{catalog.Services}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestInspect has what each command prints, and its exit code.
func TestInspect(t *testing.T) {
	t.Chdir(t.TempDir())
	const one = `services:
- name: web
  fqdn: web.fed.example
  endpoints:
    - address: 192.0.2.1
      port: 443
  instances:
    - id: v1
      protocol: HTTPS
`
	write(t, "one.yaml", one)
	at := statusOf(t, "one.yaml")
	const why = `web.fed.example A: NXDOMAIN: no owner publishes the name, and the catalogs of all owners of the zone are known
  answered by server block dns://.:53, zone fed.example
  owner o1:8008 is synced and did not withdraw this name; nothing of it was refused
  to do: if the name should exist, ask the owner that should publish it: 'federationctl why' there, or 'federationctl watch' with this server's certificate
`
	relay := statusAt(t, relaying{})
	hint := func(command string) string { return "\nfederationctl: see 'federationctl " + command + " --help'\n" }
	for _, tt := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"why web.fed.example --at " + at, 0, why, ""},
		{"why WEB.fed.example. aaaa --at " + at, 0, strings.Replace(why, " A:", " AAAA:", 1), ""},
		{"why a..b --at " + at, 2, "", "federationctl: \"a..b\" is not a domain name" + hint("why")},
		{"why a FOO --at " + at, 2, "", "federationctl: \"FOO\" is not a type such as A, AAAA, SRV or TXT" + hint("why")},
		{"why", 2, "", "federationctl: why takes a NAME and perhaps a TYPE, not 0 arguments" + hint("why")},
		{"why a -o xml", 2, "", "federationctl: -o: \"xml\" is not one of table, json" + hint("why")},
		{"why a --timeout 0s", 2, "", "federationctl: --timeout: 0s is not positive" + hint("why")},
		{"why 192.0.2.10", 2, "", "federationctl: 192.0.2.10 is an IP address; 'federationctl services 192.0.2.10' lists what has it" + hint("why")},
		{"status --at ftp://a", 2, "", "federationctl: \"ftp://a\" is not a URL such as http://localhost:9154 or https://host:9154" + hint("status")},
		{"status --at https://a", 2, "", "federationctl: https://a needs --cert, --key and --ca" + hint("status")},
		{"retry --at " + at, 0, "o1:8008 is synced: there is nothing to try\n", ""},
		{"retry --of o2:8008 --at " + at, 1, "", "federationctl: " + at + ": there is no owner or catalog \"o2:8008\"; there are [\"o1:8008\"]\n"},
		{"retry --at " + relay, 0, "o1:8008 was parked and is tried now; see 'federationctl status'\n", ""},
		{"confirm --source mesh --at " + relay, 0, "withdrawn: 12 paused services of mesh\n", ""},
		{"confirm --at " + relay, 0, "withdrawn: 12 paused services of mesh\n", ""},
		{"confirm --source west --at " + relay, 0, "no withdrawal is paused: there is nothing to confirm\n", ""},
		{"confirm --source east --at " + relay, 1, "", "federationctl: " + relay + ": there is no source \"east\"; there are [\"mesh\" \"west\"]\n"},
		{"confirm mesh", 2, "", "federationctl: confirm takes no argument, not \"mesh\"; name the endpoint with --at, the catalog with --of and the source with --source" + hint("confirm")},
		{"retry o1:8008", 2, "", "federationctl: retry takes no argument, not \"o1:8008\"; name the endpoint with --at, and the owner with --of" + hint("retry")},
		{"dump --of o1:8008 --at " + at, 0, "{\"services\": [\n" + `{"name":"web","fqdn":"web.fed.example","endpoints":[{"address":"192.0.2.1","port":443}],"instances":[{"id":"v1","protocol":"HTTPS"}]}` + "\n]}\n", ""},
	} {
		t.Run(strings.ReplaceAll(tt.args, "/", "_"), func(t *testing.T) {
			expectCtl(t, tt.code, tt.stdout, tt.stderr, strings.Fields(tt.args)...)
		})
	}
	for _, command := range []string{"status", "why web.fed.example"} {
		code, stdout, stderr := ctl(t, strings.Fields(command+" -o json --at "+at)...)
		if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "{") {
			t.Errorf("%s -o json: exit code %d, %q, %q", command, code, stdout, stderr)
		}
	}
}

// TestInspectNobody asks where no endpoint is.
func TestInspectNobody(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	for _, command := range []string{"why a.example", "status", "dump"} {
		code, stdout, stderr := ctl(t, strings.Fields(command+" --at "+server.URL)...)
		if code != exitFailed || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, expected %d; %q, %q", command, code, exitFailed, stdout, stderr)
		}
	}
}

// TestInspectOverTLS asks an endpoint that requires a certificate.
func TestInspectOverTLS(t *testing.T) {
	dir := pkiIn(t)
	certificate := must.Get(tls.LoadX509KeyPair(filepath.Join(dir, "owner.pem"), filepath.Join(dir, "owner-key.pem")))(t)
	ca := must.Get(os.ReadFile(filepath.Join(dir, "ca.pem")))(t)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	server := httptest.NewUnstartedServer(page.NewHandler(&asked{}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS13}
	server.StartTLS()
	t.Cleanup(server.Close)
	at := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	code, stdout, stderr := ctl(t, append([]string{"status", "--at", at}, files(dir, "consumer")...)...)
	if code != exitDone || !strings.Contains(stdout, ": well\n") || stderr != "" {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
	other := pkiIn(t)
	code, _, stderr = ctl(t, append([]string{"status", "--at", at}, files(other, "consumer")...)...)
	if code != exitFailed || !strings.Contains(stderr, "certificate") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("with the certificate of another authority: exit code %d, %q", code, stderr)
	}
}

// TestDumpIsServed dumps a catalog, serves the dump, and finds that its consumers get the
// same services.
func TestDumpIsServed(t *testing.T) {
	dir := pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), strings.Replace(catalogText, "v 2", "v2", 1))
	seen := func(file string) string {
		_, address := runServe(t, dir, file)
		code, stdout, stderr := ctl(t, append([]string{"watch", address, "--once", "-o", "json"}, files(dir, "consumer")...)...)
		if code != 0 {
			t.Fatal(stderr)
		}
		return stdout
	}
	code, text, stderr := ctl(t, "dump", "--at", statusOf(t, file))
	if code != 0 {
		t.Fatal(stderr)
	}
	dumped := write(t, filepath.Join(dir, "dumped.json"), text)
	if diff := cmp.Diff(seen(file), seen(dumped)); diff != "" {
		t.Error(diff)
	}
	if _, again, _ := ctl(t, "dump", "--at", statusOf(t, dumped)); again != text {
		t.Error(cmp.Diff(text, again))
	}
}

// TestREADMEWhy compares the explanation in the README with the one that is tested.
func TestREADMEWhy(t *testing.T) {
	readme := must.Get(os.ReadFile("README.md"))(t)
	want := must.Get(os.ReadFile("../../internal/status/testdata/why-no-name-refused.txt"))(t)
	if !strings.Contains(string(readme), fmt.Sprintf("```txt\n%s```", want)) {
		t.Errorf("the README does not have\n%s", want)
	}
}
