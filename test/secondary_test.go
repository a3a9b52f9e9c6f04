package test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// program returns the path of a program of another project, which is in the Debian
// package pkg. Where it is not installed the test is skipped, except in CI.
func program(t testing.TB, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	path = filepath.Join("/usr/sbin", name) // may not be in PATH
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is not installed; it is in the package %s", name, pkg)
	}
	t.Skipf("%s is not installed; it is in the package %s", name, pkg)
	return ""
}

// startNSD runs NSD as a secondary of the zone at primary.
func startNSD(t testing.TB, address, zone, primary string) *process {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "nsd.conf")
	writeFile(t, config, fmt.Sprintf(`server:
	ip-address: %[1]s
	username: ""
	chroot: ""
	zonesdir: "%[2]s"
	zonelistfile: "%[2]s/zone.list"
	database: ""
	pidfile: "%[2]s/nsd.pid"
	xfrdir: "%[2]s"
	xfrdfile: "%[2]s/xfrd.state"
	server-count: 1
	rrl-ratelimit: 0
	verbosity: 1
remote-control:
	control-enable: no
zone:
	name: "%[3]s"
	request-xfr: %[4]s NOKEY
	allow-notify: 127.0.0.1 NOKEY
	provide-xfr: 127.0.0.1 NOKEY
`, strings.Replace(address, ":", "@", 1), dir, zone, strings.Replace(primary, ":", "@", 1)))
	return startProcess(t, exec.Command(program(t, "nsd", "nsd"), "-d", "-c", config))
}

// startKnot runs Knot DNS as a secondary of the zone at primary. It checks the zone
// that each transfer makes.
func startKnot(t testing.TB, address, zone, primary string) *process {
	t.Helper()
	return startKnotWith(t, address, zone, primary, "on")
}

// startKnotWith is startKnot with a value of Knot's semantic-checks.
func startKnotWith(t testing.TB, address, zone, primary, checks string) *process {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "knot.conf")
	writeFile(t, config, fmt.Sprintf(`server:
  rundir: "%[2]s"
  listen: %[1]s
log:
  - target: stderr
    any: info
database:
  storage: "%[2]s"
remote:
  - id: primary
    address: %[4]s
acl:
  - id: primary
    address: 127.0.0.1
    action: [notify, transfer]
zone:
  - domain: "%[3]s"
    storage: "%[2]s"
    master: primary
    acl: primary
    semantic-checks: %[5]s
`, strings.Replace(address, ":", "@", 1), dir, zone, strings.Replace(primary, ":", "@", 1), checks))
	return startProcess(t, exec.Command(program(t, "knotd", "knot"), "-c", config))
}

// TestSecondaries lets other name servers transfer a federated zone. They must take
// it, follow its changes, and give the same answers.
func TestSecondaries(t *testing.T) {
	t.Parallel()
	kinds := []struct {
		name  string
		start func(t testing.TB, address, zone, primary string) *process
	}{
		{"NSD", startNSD},
		{"Knot", startKnot},
	}
	program(t, "nsd", "nsd")
	program(t, "knotd", "knot")
	p := newPKI(t)
	n := startNameserver(t, map[string]string{"gw.example.net.": "20 A 198.51.100.7"})
	o := startOwner(t, p.owner, "", firstOwner(t)...)
	addresses := []string{freeAddress(t), freeAddress(t)}
	d := startCoreDNS(t, federationBlock(p, "fed.example", "transfer {\n\tto "+strings.Join(addresses, " ")+"\n}", o.address)+
		fmt.Sprintf(".:PORT {\n\tbind 127.0.0.1\n\tforward . %s\n}", n.address))
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	for i, kind := range kinds {
		kind.start(t, addresses[i], "fed.example", d.address)
	}
	all := must.Get(transferZone(d.address, "fed.example.", 0))(t)
	for i, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			other := &coreDNS{address: addresses[i]}
			other.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
			compareServers(t, all, d.address, addresses[i])
		})
	}
	t.Run("8.5 a change", func(t *testing.T) {
		mustUpsert(t, o, fixtureService(t, "new", "new.fed.example", []string{"192.0.2.200:443"}, []string{"v1 HTTPS"}))
		o.Delete("s-eight")
		for _, address := range addresses {
			other := &coreDNS{address: address}
			other.awaitAnswer(t, "v1.new.fed.example", dns.TypeA, "NOERROR 192.0.2.200")
			other.awaitAnswer(t, "eight.fed.example", dns.TypeA, "NXDOMAIN")
			eventually(t, patience, func() string {
				want, got := mustQuery(t, d.address, "fed.example", dns.TypeSOA), mustQuery(t, address, "fed.example", dns.TypeSOA)
				return cmp.Diff(lines(want.Answer), lines(got.Answer))
			})
		}
	})
}

// TestSecondariesReferToNestedZones lets other name servers transfer the outer of
// two nested zones. They do not know the names of the inner zone, and must answer
// with a referral to it.
func TestSecondariesReferToNestedZones(t *testing.T) {
	program(t, "nsd", "nsd")
	program(t, "knotd", "knot")
	p := newPKI(t)
	outer := startOwner(t, p.owner, "", fixtureService(t, "web", "web.fed.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}))
	inner := startOwner(t, p.owner, "", fixtureService(t, "deep", "deep.x.in.fed.example", []string{"192.0.2.2:443"}, []string{"v1 HTTPS"}))
	addresses := []string{freeAddress(t), freeAddress(t)}
	d := startCoreDNS(t, fmt.Sprintf(`fed.example:PORT {
	bind 127.0.0.1
	transfer {
		to %s
	}
	federation fed.example {
		owner %s
		%[4]s
	}
	federation x.in.fed.example {
		owner %[3]s
		%[4]s
	}
}
`, strings.Join(addresses, " "), outer.address, inner.address, p.tls()))
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	d.awaitAnswer(t, "deep.x.in.fed.example", dns.TypeA, "NOERROR 192.0.2.2")
	startNSD(t, addresses[0], "fed.example", d.address)
	startKnot(t, addresses[1], "fed.example", d.address)
	for _, address := range addresses {
		other := &coreDNS{address: address}
		other.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
		for _, name := range []string{"x.in.fed.example.", "deep.x.in.fed.example.", "v1.deep.x.in.fed.example.", "nope.x.in.fed.example."} {
			// A server that has just transferred the zone may answer once more without it.
			eventually(t, patience, func() string {
				m, err := query(address, name, dns.TypeA)
				switch {
				case err != nil:
					return err.Error()
				case m.Rcode == dns.RcodeNameError:
					t.Fatalf("%s is denied:\n%v", name, m)
				case m.Rcode != dns.RcodeSuccess || m.Authoritative || len(m.Answer) > 0 || len(m.Ns) != 1 ||
					m.Ns[0].Header().Name != "x.in.fed.example." || m.Ns[0].(*dns.NS).Ns != "ns.dns.x.in.fed.example.":
					return fmt.Sprintf("%s: want a referral, the reply is\n%v", name, m)
				}
				return ""
			})
		}
		other.awaitAnswer(t, "nope.in.fed.example", dns.TypeA, "NXDOMAIN")
	}
}

// lines returns records as text, sorted.
func lines(rrs []dns.RR) []string {
	all := make([]string, len(rrs))
	for i, rr := range rrs {
		all[i] = rr.String()
	}
	slices.Sort(all)
	return all
}

// compareServers asks two servers for every name of a transferred zone, and for
// some that are not in it. Below dns.<zone> there is nothing to transfer: the
// server is bound to loopback only, so its name has no address.
func compareServers(t *testing.T, zone []dns.RR, ours, theirs string) {
	t.Helper()
	names := make(map[string]bool) // to whether one of its hosts is elsewhere, so that a transfer lacks addresses
	for _, rr := range zone {
		srv, ok := rr.(*dns.SRV)
		names[rr.Header().Name] = names[rr.Header().Name] || ok && !dns.IsSubDomain("fed.example.", srv.Target)
	}
	for _, name := range []string{
		"x.dns", "b", "a.b", "x.b", "nope", "*", "*.web", "_tcp.web", "_udp.web", "_grpc._tcp.web", "addr.web", "192-0-2-2.addr.web",
		"r1.deep.a.b", "x.v1.web", "_tcp.v1.web",
	} {
		names[name+".fed.example."] = false
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeSOA, dns.TypeNS, dns.TypeMX, dns.TypeCNAME} {
			if names[name] && (qtype == dns.TypeA || qtype == dns.TypeAAAA) {
				continue
			}
			// A secondary that takes a new version answers with the old one until then, and
			// may close the connections to it.
			eventually(t, patience, func() string {
				var replies [2]string
				for i, address := range []string{ours, theirs} {
					var err error
					if replies[i], err = transferred(address, name, qtype); err != nil {
						return fmt.Sprintf("%s %s of %s: %v", name, dns.TypeToString[qtype], address, err)
					}
				}
				if d := cmp.Diff(replies[0], replies[1]); d != "" {
					return fmt.Sprintf("%s %s (-ours +theirs):\n%s", name, dns.TypeToString[qtype], d)
				}
				return ""
			})
		}
	}
	t.Logf("%d names", len(names))
}

// transferred returns the parts of a reply that follow from the transferred zone:
// code, flags and answers, or the authority section where there are none. The
// serial is left out, as a newer one may be on its way.
func transferred(address, name string, qtype uint16) (string, error) {
	query := new(dns.Msg)
	query.SetQuestion(name, qtype)
	m, err := exchangeRaw("tcp", address, query)
	if err != nil {
		return "", err
	}
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		if soa, ok := rr.(*dns.SOA); ok {
			soa.Serial = 0
		}
	}
	said := append([]string{dns.RcodeToString[m.Rcode], fmt.Sprint(m.Authoritative, m.Truncated)}, lines(m.Answer)...)
	if len(m.Answer) == 0 {
		said = append(said, lines(m.Ns)...)
	}
	return strings.Join(said, "\n"), nil
}
