package test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

// TestPersist kills CoreDNS and stops its owner. The next CoreDNS answers from the
// file, with stale answers, for the rest of the retention. Without a usable file it
// answers SERVFAIL, as it knows nothing.
func TestPersist(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	o := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	file := filepath.Join(t.TempDir(), "catalog")
	const retention = 24 * time.Second // in which a process starts
	corefile := func(extra, persist string) string {
		return federationBlock(p, "fed.example", extra, fmt.Sprintf("%s retention %v\n%s", o.address, retention, persist))
	}
	first := startCoreDNS(t, corefile("", "persist "+file))
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
	saved := must.Get(os.ReadFile(file))(t)

	metrics := freeAddress(t)
	second := startCoreDNS(t, corefile("prometheus "+metrics, "persist "+file))
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

	newer := slices.Clone(saved)
	newer[len("fedsnap")]++ // the version of the format
	flipped := slices.Clone(saved)
	flipped[len(flipped)/2] ^= 1
	for name, tt := range map[string]struct {
		content []byte
		log     string // the file is kept under another name, too; empty: there is none
	}{
		"no file":   {nil, ""},
		"truncated": {saved[:len(saved)/2], "is damaged"},
		"flipped":   {flipped, "is damaged"},
		"newer":     {newer, "another version of the format"},
		"foreign":   {[]byte("something else"), "not a catalog snapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "catalog")
			if tt.content != nil {
				must.Do(t, os.WriteFile(file, tt.content, 0o600))
			}
			d := startCoreDNS(t, corefile("", "persist "+file))
			if tt.log != "" {
				d.awaitLog(t, 1, "[ERROR]", "catalog cannot be restored", tt.log)
				d.awaitLog(t, 1, "[WARNING]", "file is kept under another name")
			}
			if n := d.log.Count("catalog cannot be restored"); n > 1 {
				t.Errorf("the file was reported %d times, want once", n)
			}
			m := mustQuery(t, d.address, "web.fed.example", dns.TypeA)
			if m.Rcode != dns.RcodeServerFailure {
				t.Errorf("answer without a catalog: %s, want SERVFAIL", summary(m))
			}
			if kept, err := os.ReadFile(file + ".rejected"); !bytes.Equal(kept, tt.content) || (tt.log != "") != (err == nil) {
				t.Errorf("kept aside is %q, %v", kept, err)
			}
		})
	}
}
