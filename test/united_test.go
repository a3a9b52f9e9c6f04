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
			// The text of the instance is at its name and at the fqdn, an address at its own as well.
			all := len(owners) * tt.endpoints
			if count[dns.TypeTXT] != 3 || count[dns.TypeA] != 3*all || count[dns.TypeSOA] != 2 {
				t.Errorf("%v records are transferred", count)
			}
			// whyOf compares it with the answer over TCP.
			for of, want := range map[string]int{"v1.web.fed.example A": all, "v1.web.fed.example TXT": 1, "web.fed.example TXT": 2} {
				name, qtype, _ := strings.Cut(of, " ")
				if a := whyOf(t, d, reported, name, qtype).Answers[0]; len(a.Records) != want || a.Verdict != status.Live {
					t.Errorf("%d records of %s are explained as %v", len(a.Records), of, a.Verdict)
				}
			}
			d.awaitLog(t, 1, "seen v1.web.fed.example. <v1>")
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
	return fmt.Sprintf("services:\n- name: web\n  fqdn: web.fed.example\n  endpoints: [%s]\n  instances: [{id: v1, protocol: HTTP, endpoint_selector: [%s]}]\n",
		strings.Join(all, ", "), strings.Join(of, ", "))
}
