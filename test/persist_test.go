package test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

// TestPersist kills CoreDNS, stops its owner, and takes away the key of its certificate. The next
// CoreDNS answers a zone that has nothing to do with it, and from the file with stale answers, for the
// rest of the retention. It follows the owner when key and owner are back. Files that cannot be used are
// in packages mtls, consumer and snapshot.
func TestPersist(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	o := startOwner(t, p, simpleService("web", "web.fed.example", "192.0.2.1"))
	file, metrics := p.Path("catalog"), loopback.Address(t)
	corefile := "other.example:PORT {\nbind 127.0.0.1\nhosts {\n192.0.2.9 web.other.example\n}\n}\n" +
		federationBlock(p, "fed.example", "prometheus "+metrics, o.address+" retention 1h\npersist "+file)
	first := startCoreDNS(t, corefile)
	first.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	await.Eventually(t, func() string {
		if _, err := os.Stat(file); err != nil {
			return err.Error()
		}
		return ""
	})
	first.Kill()
	killed := time.Now()
	o.stop()
	key := p.Files("consumer").Key
	content := must.Get(os.ReadFile(key))(t)
	must.Do(t, os.Remove(key))

	second := startCoreDNS(t, corefile)
	second.awaitAnswer(t, "web.other.example", dns.TypeA, "NOERROR 192.0.2.9")
	if got := summary(second.awaitStale(t, "web.fed.example")); got != "NOERROR 192.0.2.1" {
		t.Errorf("the restored answer is %s", got)
	}
	second.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	most := time.Hour - time.Since(killed)
	if left := place.Scrape(t, metrics).Sum("coredns_federation_retention_remaining_seconds", o.address); left <= 0 || left > most.Seconds() {
		t.Errorf("%v s of the retention are left, want some, and no more than %v", left, most)
	}
	awaitLog(t, second.Process, 1, "certificate", fmt.Sprintf("put %s in its place", key))
	serveRegistry(t, p, o.address, o.Registry, 1)
	writeFile(t, key, string(content))
	second.awaitComplete(t, "nope.fed.example")
}
