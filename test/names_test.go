package test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/consumer/snapshot"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

// answersStale waits until the answer for a name is stale, and fails the test where it is
// another one.
func (d *coreDNS) answersStale(t testing.TB, name, want string) {
	t.Helper()
	if got := summary(d.awaitStale(t, name)); got != want {
		t.Errorf("the stale answer for %s is %s, want %s", name, got, want)
	}
}

// TestOwnerIsItsName reloads while the owner is away. Its records stay, stale, with another
// address, and with another identity under the same name, until an owner that has it has said
// what its catalog is. Another name is another owner, and the log says what is gone.
func TestOwnerIsItsName(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	const web, stale = "web.fed.example", "NOERROR 192.0.2.1"
	first := startOwner(t, p.owner, "", simpleService(t, "web", web, "192.0.2.1"), simpleService(t, "api", "api.fed.example", "192.0.2.1"))
	second, metrics := freeAddress(t), freeAddress(t)
	corefile := func(properties string) string {
		return fmt.Sprintf("fed.example:PORT {\nbind 127.0.0.1\nprometheus %s\nfederation {\n%s\n%s\nretention 1h\n}\n}\n", metrics, p.tls(), properties)
	}
	d := startCoreDNS(t, corefile("owner "+first.address))
	d.awaitAnswer(t, web, dns.TypeA, stale)
	d.awaitComplete(t, "nope.fed.example")
	first.stop()
	d.answersStale(t, web, stale)
	asking := keepAsking(t, d.address, map[string]string{web: stale, "nope.fed.example": "NXDOMAIN"})
	for _, properties := range []string{
		fmt.Sprintf("owner %s %s", first.address, second),
		fmt.Sprintf("name %s\nowner %s %s", first.address, second, first.address),
		fmt.Sprintf("name %s\nowner %s\ntls_servername other.example", first.address, second),
		fmt.Sprintf("name %s\nowner %s\nowner_id spiffe://other.example/hamlet", first.address, second),
	} {
		d.write(t, corefile(properties))
		d.reload(t)
		d.answersStale(t, web, stale)
	}
	left := place.Scrape(t, metrics).Sum("coredns_federation_retention_remaining_seconds", fmt.Sprintf("owner=%q", first.address))
	if left <= 0 || left > 3600 {
		t.Errorf("%v s of the retention are left", left)
	}

	// Whoever has the old identity is nobody now.
	refused := d.log.Count("not connected to owner", first.address, "certificate")
	next := startOwner(t, p.owner, second, simpleService(t, "web", web, "192.0.2.2"))
	d.reload(t)
	d.awaitLog(t, refused+1, "not connected to owner", first.address, "certificate")
	d.answersStale(t, web, stale)
	asking.check(t)
	d.write(t, corefile(fmt.Sprintf("name %s\nowner %s\nowner_id %s", first.address, second, ownerID)))
	d.reload(t)
	d.awaitAnswer(t, web, dns.TypeA, "NOERROR 192.0.2.2")
	d.awaitAnswer(t, "api.fed.example", dns.TypeA, "NXDOMAIN")
	next.stop()
	d.answersStale(t, web, "NOERROR 192.0.2.2")

	const dropped = "owner has left the configuration with a reload, and its records are gone"
	if n := d.log.Count(dropped); n != 0 {
		t.Errorf("the log says %d times that records are gone:\n%s", n, d.log)
	}
	d.write(t, corefile("name shop\nowner "+second))
	d.reload(t)
	d.awaitLog(t, 1, "[WARNING]", dropped, "owner="+first.address, "services=1")
	if m := mustQuery(t, d.address, web, dns.TypeA); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("answer of an owner with another name: %s, want SERVFAIL", summary(m))
	}
	d.end(t, syscall.SIGTERM)
	if n := d.log.Count(dropped); n != 1 {
		t.Errorf("the log says %d times that records are gone, want once:\n%s", n, d.log)
	}
}

// TestReloadWithoutFederation says what is gone with the last block as well.
func TestReloadWithoutFederation(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	o := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	d := startCoreDNS(t, federationBlock(p, "fed.example", "", o.address+" owner_id "+ownerID))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	d.write(t, "fed.example:PORT {\nbind 127.0.0.1\n}\n")
	d.reload(t)
	d.awaitLog(t, 1, "[WARNING]", "owner has left the configuration with a reload", "owner="+ownerID, "services=1")
}

// TestFileOfEarlierVersion starts with the file of a version that knew owners by all of their
// addresses and identities.
func TestFileOfEarlierVersion(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	o := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	other, file := freeAddress(t), filepath.Join(t.TempDir(), "catalog")
	corefile := func(more string) string {
		return fmt.Sprintf("fed.example:PORT {\nbind 127.0.0.1\nfederation {\nowner %s %s\n%s\nowner_id %s\nretention 1h\npersist %s\n%s\n}\n}\n",
			o.address, other, p.tls(), ownerID, file, more)
	}
	first := startCoreDNS(t, corefile(""))
	first.awaitComplete(t, "nope.fed.example")
	first.end(t, syscall.SIGTERM)
	o.stop()
	saved := must.Get(snapshot.Load(file, snapshot.Options{Owner: ownerID, Policy: wire.AnyAddress()}))(t)
	saved.Owner = fmt.Sprintf("[%q %q] %q [%q]", o.address, other, "", ownerID)
	must.Do(t, snapshot.Save(file, saved))
	for _, more := range []string{"", "name mesh-a"} {
		d := startCoreDNS(t, corefile(more))
		d.answersStale(t, "web.fed.example", "NOERROR 192.0.2.1")
		d.end(t, syscall.SIGTERM)
		if _, err := os.Stat(file + ".rejected"); err == nil || d.log.Count("catalog cannot be restored") > 0 {
			t.Errorf("%q: the file was refused:\n%s", more, d.log)
		}
	}
}
