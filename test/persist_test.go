package test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

// TestPersist kills CoreDNS and stops its owner. The next CoreDNS answers from the
// file, with stale answers, for the rest of the retention. Files that cannot be used are in packages
// consumer and snapshot.
func TestPersist(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	o := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	file := filepath.Join(t.TempDir(), "catalog")
	const retention = 24 * time.Second // in which a process starts
	metrics := freeAddress(t)
	corefile := federationBlock(p, "fed.example", "prometheus "+metrics, fmt.Sprintf("%s retention %v\npersist %s", o.address, retention, file))
	first := startCoreDNS(t, corefile)
	first.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	eventually(t, patience, func() string {
		if _, err := os.Stat(file); err != nil {
			return err.Error()
		}
		return ""
	})
	first.end(t, syscall.SIGKILL)
	killed := time.Now()
	o.stop()

	second := startCoreDNS(t, corefile)
	stale := second.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	if got := extendedError(stale); got != int(dns.ExtendedErrorCodeStaleAnswer) {
		t.Errorf("extended error of a restored answer is %d, want that of a stale one", got)
	}
	second.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	most := retention - time.Since(killed)
	if left := place.Scrape(t, metrics).Sum("coredns_federation_retention_remaining_seconds", o.address); left <= 0 || left > most.Seconds() {
		t.Errorf("%v s of the retention are left, want some, and no more than %v", left, most)
	}
	second.awaitNXDOMAIN(t, "web.fed.example")
}
