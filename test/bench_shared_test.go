package test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// BenchmarkShared asks for names of 2, 10 and 100 endpoints: of one owner alone, and of two
// owners that share them.
func BenchmarkShared(b *testing.B) {
	var all, first, second []*federation.Service
	sizes := []int{2, 10, 100}
	for _, n := range sizes {
		for _, name := range []string{"alone", "shared"} {
			s := simpleService(b, fmt.Sprint(name, n), fmt.Sprintf("n%d.%s.%s", n, name, benchOrigin), "192.0.2.1")
			s.Endpoints = nil
			for i := range n {
				s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: must.Get(federation.ParseAddress(fmt.Sprintf("10.0.0.%d", i)))(b), Port: 8080})
			}
			all = append(all, s)
			here := *s
			if name == "shared" {
				there := *s
				here.Endpoints, there.Endpoints = s.Endpoints[:n/2], s.Endpoints[n/2:]
				second = append(second, &there)
			}
			first = append(first, &here)
		}
	}

	c := &contest{handlers: make(map[string]plugin.Handler), bytes: make(map[string]int64), started: make(map[string]time.Duration)}
	keys, hosts := newPKI(b), filepath.Join(b.TempDir(), "hosts")
	block := func(all []*federation.Service) string {
		return fmt.Sprintf("owner %s\n%s\nshare *.shared.%s", serveRegistry(b, keys.owner, "", filled(b, all), 256).address, keys.tls(), benchOrigin)
	}
	c.start(b, "federation", block(first)+"\n}\nfederation {\n"+block(second), transfers)
	export(b, all, filepath.Join(b.TempDir(), "zone"), hosts)
	c.start(b, "hosts "+hosts, "reload 0\nno_reverse\nttl 30", func(plugin.Handler) bool { return true })
	for _, name := range []string{"alone", "shared"} {
		for _, n := range sizes {
			for _, q := range []benchQuery{
				{name: "A", qtype: dns.TypeA, answers: n, contests: []string{"federation", "hosts"}},
				{name: "SRV", qtype: dns.TypeSRV, answers: n, extra: n, contests: []string{"federation"}},
			} {
				for _, of := range q.contests {
					b.Run(fmt.Sprintf("query=%s/endpoints=%d/name=%s/plugin=%s", q.name, n, name, of), func(b *testing.B) {
						q.run(b, c.handlers[of], []string{fmt.Sprintf("%sn%d.%s.%s", q.labels, n, name, benchOrigin)})
					})
				}
			}
		}
	}
}
