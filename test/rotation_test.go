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
)

// TestRotation replaces the consumer's certificate, its key and the authority
// under a running stream, in the usual order: the new authority joins the bundle,
// the owner gets a certificate of it, the old one leaves. The streams stay, and
// each next one uses the new ones. Only a bundle without the owner's authority
// ends a stream, and it is back when the authority is.
func TestRotation(t *testing.T) {
	t.Parallel()
	old := newPKI(t)
	o := startOwner(t, old.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	metrics := freeAddress(t)
	d := startCoreDNS(t, fmt.Sprintf(`fed.example:PORT {
	bind 127.0.0.1
	prometheus %s
	federation {
		owner %s
		%s
	}
}`, metrics, o.address, old.tls()))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	a := keepAsking(t, d.address, map[string]string{"web.fed.example": "NOERROR 192.0.2.1"})
	expiry := func() float64 {
		return sum(scrape(t, metrics), "coredns_federation_certificate_expiry_timestamp_seconds", old.consumer.Cert)
	}
	before := expiry()

	// Half a file is not used.
	good, err := os.ReadFile(old.consumer.Cert)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, old.consumer.Cert, string(good[:len(good)/2]))
	eventually(t, patience, func() string {
		if d.log.count(old.consumer.Cert) == 0 {
			return "the broken file is not reported"
		}
		return ""
	})
	if got := expiry(); got != before {
		t.Errorf("a broken certificate is used: it expires at %v, not %v", got, before)
	}

	// A certificate of another authority, with another life, and both authorities.
	young := newPKI(t)
	issued, err := young.authority.Issue(mtls.Leaf{Name: "consumer", DNSNames: []string{"consumer.example"}, Lifetime: 12 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	issued.CA = slices.Concat(old.authority.PEM(), young.authority.PEM())
	if err := issued.WriteFiles(old.consumer); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, func() string {
		if got := expiry(); got == before {
			return "the new certificate is not used"
		}
		return ""
	})
	sessions := func() float64 { return sum(scrape(t, metrics), "coredns_federation_sessions_total") }
	if got := sessions(); got != 0 {
		t.Errorf("%v streams have ended through the rotation", got)
	}
	o.stop()
	startOwner(t, young.owner, o.address, simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	eventually(t, patience, func() string {
		if d.log.count("owner is synced") < 2 {
			return "the owner with a certificate of the new authority is not back"
		}
		return ""
	})
	trust := func(authority *pki) {
		t.Helper()
		changes := d.log.count("certificates changed")
		writeFile(t, old.consumer.CA, string(authority.authority.PEM()))
		eventually(t, patience, func() string {
			if d.log.count("certificates changed") == changes {
				return "the new bundle is not used"
			}
			return ""
		})
	}
	ended := sessions()
	trust(young)
	if got := sessions(); got != ended {
		t.Errorf("%v streams have ended when the old authority left", got-ended)
	}
	trust(old)
	eventually(t, patience, func() string {
		if sessions() == ended {
			return "the stream of an owner whose authority has left goes on"
		}
		return ""
	})
	synced := d.log.count("owner is synced")
	trust(young)
	eventually(t, patience, func() string {
		if d.log.count("owner is synced") == synced {
			return "the owner is not back with its authority"
		}
		return ""
	})
	a.check(t)
}

// TestParkedOwnerComesBack shows that a consumer that its owner refuses asks
// once, and again when its certificate has changed.
func TestParkedOwnerComesBack(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	catalog := filepath.Join(t.TempDir(), "catalog.yaml")
	writeFile(t, catalog, catalogOf("web.fed.example=192.0.2.1"))
	address := freeAddress(t)
	serveCatalog(t, address, catalog, p.owner, "--allow-id", "welcome.example")
	metrics := freeAddress(t)
	d := startCoreDNS(t, fmt.Sprintf(`fed.example:PORT {
	bind 127.0.0.1
	prometheus %s
	federation {
		owner %s
		%s
	}
}`, metrics, address, p.tls()))
	eventually(t, patience, func() string {
		if sum(scrape(t, metrics), "coredns_federation_owner_state", `state="parked"`) != 1 {
			return "the owner is not parked"
		}
		return ""
	})
	if got := sum(scrape(t, metrics), "coredns_federation_sessions_total", `code="Unauthenticated"`); got != 1 {
		t.Errorf("%v attempts, want 1", got)
	}
	p.issue(t, "consumer", mtls.Leaf{Name: "consumer", DNSNames: []string{"welcome.example"}})
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
}
