package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

// TestRotation replaces the consumer's certificate, its key and the authority under
// a running stream, in the usual order: the new authority joins the CA bundle, the
// owner gets a certificate of it, the old authority leaves the bundle. Each costs a stream, which
// resumes with the new files, and no client notices. A bundle without the owner's authority is a
// loss, until it has that authority again.
func TestRotation(t *testing.T) {
	t.Parallel()
	old := newPKI(t)
	o := startOwner(t, old.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	metrics := freeAddress(t)
	d := startCoreDNS(t, federationBlock(old, "fed.example", "prometheus "+metrics, o.address))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	a := keepAsking(t, d.address, map[string]string{"web.fed.example": "NOERROR 192.0.2.1"})
	expiry := func() float64 {
		return place.Scrape(t, metrics).Sum("coredns_federation_certificate_expiry_timestamp_seconds", old.consumer.Cert)
	}
	before := expiry()

	// A truncated file is reported and not used.
	good := must.Get(os.ReadFile(old.consumer.Cert))(t)
	writeFile(t, old.consumer.Cert, string(good[:len(good)/2]))
	d.awaitLog(t, 1, old.consumer.Cert)
	if got := expiry(); got != before {
		t.Errorf("with a broken certificate the expiry is %v, want %v as before", got, before)
	}

	// A certificate of another authority, with another expiry, and both authorities.
	young := newPKI(t)
	issued := must.Get(young.authority.Issue(mtls.Leaf{Name: "consumer", DNSNames: []string{"consumer.example"}, Lifetime: 12 * time.Hour}))(t)
	issued.CA = slices.Concat(old.authority.PEM(), young.authority.PEM())
	must.Do(t, issued.WriteFiles(old.consumer))
	eventually(t, patience, func() string {
		if got := expiry(); got == before {
			return "the new certificate is not used"
		}
		return ""
	})
	sessions := func() float64 {
		return place.Scrape(t, metrics).Sum("coredns_federation_sessions_total", `code="OK"`)
	}
	another := func(n float64, what string) {
		t.Helper()
		eventually(t, patience, func() string {
			if got := sessions(); got != n {
				return fmt.Sprintf("%v streams have given their place to another one after %s, want %v", got, what, n)
			}
			return ""
		})
	}
	another(1, "a new certificate")
	o.stop()
	startOwner(t, young.owner, o.address, simpleService(t, "web", "web.fed.example", "192.0.2.1"), simpleService(t, "new", "new.fed.example", "192.0.2.2"))
	d.awaitAnswer(t, "new.fed.example", dns.TypeA, "NOERROR 192.0.2.2")
	trust := func(only *pki) {
		t.Helper()
		changes := d.log.Count("certificates changed")
		writeFile(t, old.consumer.CA, string(only.authority.PEM()))
		d.awaitLog(t, changes+1, "certificates changed")
	}
	trust(young)
	another(2, "the old authority has left the bundle")
	a.check(t)
	trust(old)
	d.awaitLog(t, 1, "owner is lost")
	trust(young)
	d.awaitLog(t, 2, "owner is synced")
}

// TestParkedUntilTheCertificateChanges has an owner that refuses its consumer. The
// consumer tries once, and again only when its certificate has changed.
func TestParkedUntilTheCertificateChanges(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	catalog := filepath.Join(t.TempDir(), "catalog.yaml")
	writeFile(t, catalog, catalogOf("web.fed.example=192.0.2.1"))
	address := freeAddress(t)
	serveCatalog(t, address, catalog, p.owner, "--allow-id", "welcome.example")
	metrics := freeAddress(t)
	d := startCoreDNS(t, federationBlock(p, "fed.example", "prometheus "+metrics, address))
	eventually(t, patience, func() string {
		if place.Scrape(t, metrics).Sum("coredns_federation_owner_state", `state="parked"`) != 1 {
			return "the owner is not parked"
		}
		return ""
	})
	if got := place.Scrape(t, metrics).Sum("coredns_federation_sessions_total", `code="Unauthenticated"`); got != 1 {
		t.Errorf("%v attempts, want 1", got)
	}
	p.issue(t, "consumer", mtls.Leaf{Name: "consumer", DNSNames: []string{"welcome.example"}})
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
}
