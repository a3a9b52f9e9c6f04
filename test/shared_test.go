package test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// sharedServers are three replicas of CoreDNS that share a name of two owners, and Knot, a
// secondary of the first.
type sharedServers struct {
	replicas []*coreDNS
	knot     string
	key      *dns.DNSKEY // of the third, which signs
}

// startShared starts them. Options stand in the block of each owner.
func startShared(t *testing.T, p *pki, options string, owners ...string) *sharedServers {
	t.Helper()
	s := &sharedServers{knot: freeAddress(t)}
	path, key := signingKey(t, "fed.example.")
	s.key = key
	for _, more := range []string{"transfer {\n\tto " + s.knot + "\n}", "", "dnssec {\n\tkey file " + path + "\n}"} {
		block := "fed.example:PORT {\n\tbind 127.0.0.1\n" + more + "\n"
		for _, o := range owners {
			block += "federation {\nowner " + o + "\n" + p.tls() + "\nretention 5m\n" + options + "\n}\n"
		}
		s.replicas = append(s.replicas, startCoreDNS(t, block+"}\n"))
	}
	s.replicas[0].awaitComplete(t, "nope.fed.example")
	startKnot(t, s.knot, "fed.example", s.replicas[0].address)
	return s
}

// addresses returns the A records of a name, as text.
func addresses(address, name string) (string, error) {
	m, err := query(address, name, dns.TypeA)
	if err != nil {
		return "", err
	}
	var all []string
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			all = append(all, a.A.String())
		}
	}
	slices.Sort(all)
	return strings.Join(all, " "), nil
}

// priorities returns the SRV records of a name as PRIORITY PORT, by target.
func priorities(address, name string) (string, error) {
	m, err := query(address, name, dns.TypeSRV)
	if err != nil {
		return "", err
	}
	var all []string
	for _, rr := range m.Answer {
		if srv, ok := rr.(*dns.SRV); ok {
			label, _, _ := strings.Cut(srv.Target, ".")
			all = append(all, fmt.Sprintf("%s:%d", label[strings.LastIndexByte(label, '-')+1:], srv.Priority))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " "), nil
}

// await waits until all four answer the same.
func (s *sharedServers) await(t *testing.T, of func(address, name string) (string, error), want string) {
	t.Helper()
	servers := []string{s.knot}
	for _, d := range s.replicas {
		servers = append(servers, d.address)
	}
	for _, address := range servers {
		eventually(t, patience, func() string {
			got, err := of(address, "web.fed.example")
			if err != nil {
				return err.Error()
			}
			if got != want {
				return fmt.Sprintf("%s answers %q, not %q", address, got, want)
			}
			return ""
		})
	}
}

// neverEmpty asks for the name all the while, until the test ends: there is always an address.
func (s *sharedServers) neverEmpty(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for asked := 0; ; asked++ {
			if ctx.Err() != nil {
				t.Logf("asked %d times", asked)
				return
			}
			for _, d := range s.replicas {
				if got, err := addresses(d.address, "web.fed.example"); err == nil && got == "" {
					t.Errorf("%s has no address of a name that is within retention", d.address)
					return
				}
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// TestSharedNames has two owners share a name, from the first union to the loss of both, and
// three replicas with a secondary follow it; the answers of one are signed.
func TestSharedNames(t *testing.T) {
	delv := program(t, "delv", "bind9-dnsutils")
	program(t, "knotd", "knot")
	p := newPKI(t)
	web := func(last ...int) []string {
		var all []string
		for _, n := range last {
			all = append(all, fmt.Sprintf("192.0.2.%d:80", n))
		}
		return all
	}
	a := startOwner(t, p.owner, "", fixtureService(t, "web", "web.fed.example", web(1, 2, 3), []string{"v1 HTTP"}))
	b := startOwner(t, p.owner, "", fixtureService(t, "web", "web.fed.example", web(3, 4, 5), []string{"v1 HTTP"}))
	s := startShared(t, p, "share web.fed.example\nhold 1s\ndemote 2s", a.address, b.address)
	s.await(t, addresses, "192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5")
	s.neverEmpty(t)

	mustUpsert(t, b, fixtureService(t, "web", "web.fed.example", web(4, 5), []string{"v1 HTTP"}))
	s.await(t, priorities, "1:0 2:0 3:0 4:0 5:0")
	mustUpsert(t, a, fixtureService(t, "web", "web.fed.example", web(1, 2), []string{"v1 HTTP"}))
	s.await(t, addresses, "192.0.2.1 192.0.2.2 192.0.2.4 192.0.2.5")

	b.stop()
	s.await(t, priorities, "1:0 2:0 4:10 5:10")
	s.await(t, addresses, "192.0.2.1 192.0.2.2")
	a.stop()
	s.await(t, addresses, "192.0.2.1 192.0.2.2 192.0.2.4 192.0.2.5")
	for _, d := range s.replicas {
		d.awaitStale(t, "web.fed.example")
	}
	b = startOwner(t, p.owner, b.address, fixtureService(t, "web", "web.fed.example", web(4, 5), []string{"v1 HTTP"}))
	s.await(t, priorities, "1:10 2:10 4:0 5:0")
	s.await(t, addresses, "192.0.2.4 192.0.2.5")
	b.stop()

	anchor := filepath.Join(t.TempDir(), "anchor")
	writeFile(t, anchor, fmt.Sprintf("trust-anchors {\n\t%s static-key %d %d %d \"%s\";\n};\n",
		s.key.Hdr.Name, s.key.Flags, s.key.Protocol, s.key.Algorithm, s.key.PublicKey))
	host, port, _ := strings.Cut(s.replicas[2].address, ":")
	for _, qtype := range []string{"A", "SRV", "TXT"} {
		out, err := exec.Command(delv, "@"+host, "-p", port, "-a", anchor, "+root=fed.example", "web.fed.example", qtype).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "; fully validated") {
			t.Errorf("%s: %v\n%s", qtype, err, out)
		}
	}
}

// TestNotShared has two owners of which only one shares the name: the first in the Corefile has it.
func TestNotShared(t *testing.T) {
	p := newPKI(t)
	a := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	b := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.2"))
	d := startCoreDNS(t, "fed.example:PORT {\n\tbind 127.0.0.1\nfederation {\nowner "+a.address+"\n"+p.tls()+"\n}\nfederation {\nname b\nowner "+b.address+"\n"+p.tls()+"\nshare *\n}\n"+
		"prometheus 127.0.0.1:METRICS\n}\n")
	d.awaitComplete(t, "nope.fed.example")
	if got := must.Get(addresses(d.address, "web.fed.example"))(t); got != "192.0.2.1" {
		t.Errorf("the answer is %s", got)
	}
}
