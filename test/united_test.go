package test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// TestSharedBeyondOneService has two owners share a name, where each says what one service may, and
// both together say more. CoreDNS answers, explains, transfers and logs it, and lives.
func TestSharedBeyondOneService(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ endpoints, labels int }{
		"501 endpoints each":      {501, 0},
		"64 labels of an address": {1, federation.MaxLabels},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPKI(t)
			var owners []string
			reported := freeAddress(t)
			for i, options := range []string{"status " + reported, ""} {
				s := &site{fqdn: "web.fed.example", files: p, address: freeAddress(t), catalog: filepath.Join(t.TempDir(), "catalog.yaml")}
				writeFile(t, s.catalog, unitedCatalog(i, tt.endpoints, tt.labels))
				s.start(t)
				owners = append(owners, s.owner(options))
			}
			d := startCoreDNS(t, federationBlock(p, "fed.example",
				"transfer {\n\tto *\n}\nmetadata\nlog . \"seen {name} <{/federation/instance}>\"", owners...))
			d.awaitComplete(t, "nope.fed.example")
			for i := range owners {
				at := fmt.Sprintf("v%d.web.fed.example.", i)
				eventually(t, patience, func() string { // an instance of each owner
					m, err := query(d.address, at, dns.TypeTXT)
					if err != nil || m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
						return fmt.Sprint(m, err)
					}
					return ""
				})
				d.awaitLog(t, 1, "seen "+at+fmt.Sprintf(" <v%d>", i))
				// whyOf compares it with the answer over TCP.
				w := whyOf(t, d, reported, at, "A")
				if a := w.Answers[0]; len(a.Records) != tt.endpoints || a.Verdict != status.Live {
					t.Errorf("%d addresses of %s are explained as %v", len(a.Records), at, a.Verdict)
				}
			}
			if w := whyOf(t, d, reported, "web.fed.example", "TXT"); len(w.Answers[0].Records) != 1+len(owners) {
				t.Errorf("the texts are %q", w.Answers[0].Records)
			}
			count := make(map[uint16]int)
			for range 3 { // as a secondary that comes back
				rrs, err := transferZone(d.address, "fed.example.", 0)
				if err != nil {
					t.Fatal(err)
				}
				clear(count)
				for _, rr := range rrs {
					count[rr.Header().Rrtype]++
				}
			}
			// The fqdn has two instances, whose texts are at their names as well; an address is at
			// its own name, that of its instance and the fqdn.
			if count[dns.TypeTXT] != 5 || count[dns.TypeA] != 3*len(owners)*tt.endpoints || count[dns.TypeSOA] != 2 {
				t.Errorf("%v records are transferred", count)
			}
			select {
			case <-d.done:
				t.Errorf("CoreDNS has ended:\n%s", d.log)
			default:
			}
		})
	}
}

// unitedCatalog returns the catalog of an owner that shares web.fed.example.
func unitedCatalog(owner, endpoints, labels int) string {
	var all, of []string
	for i := range labels {
		of = append(of, fmt.Sprint("l", i))
	}
	for i := range endpoints {
		all = append(all, fmt.Sprintf("{address: 10.%d.%d.%d, port: 80, labels: [%s]}", owner, i/250, 1+i%250, strings.Join(of, ", ")))
	}
	return fmt.Sprintf("services:\n- name: web\n  fqdn: web.fed.example\n  endpoints: [%s]\n  instances: [{id: v%d, protocol: HTTP, endpoint_selector: [%s]}]\n",
		strings.Join(all, ", "), owner, strings.Join(of, ", "))
}
